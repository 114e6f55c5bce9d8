"""An ONNX graph that is being written, node by node."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFileError
from policies.models.networks import Array

if TYPE_CHECKING:
    import onnx
    import torch

    from deploy.remote.subgraph import Part

OPSET = 18
HALF = float(np.finfo(np.float16).max)
LEAST = 256  # numbers from which on weights are worth storing as float16


class Graph:
    """Collects ONNX nodes and constants; every method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.metadata: dict[str, Any] = {}  # what the nodes mean, for the file's metadata
        self._inside = 0  # nodes of branches

    @property
    def made(self) -> int:
        """How many nodes were added until now."""
        return len(self.nodes) + self._inside

    def add(self, operator: str, *inputs: str, to: str | None = None, **attributes: Any) -> str:
        """One node with one output."""
        from onnx import helper

        name = to or f"{operator.lower()}_{self.made}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """A tensor stored in the graph; a number is one of shape (1,)."""
        return self.stored(np.ascontiguousarray(value, dtype))

    def stored(self, tensor: NDArray[Any]) -> str:
        """A tensor stored in the graph as it is."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(tensor, name))
        return name

    def weight(self, value: Array) -> str:
        """A constant that takes half the space where each of its numbers is one of float16."""
        half = value.astype(np.float16) if value.size >= LEAST and np.abs(value).max() < HALF else None
        if half is None or not (half.astype(np.float32) == value).all():
            return self.constant(value)
        return self.real(self.constant(half, np.float16))

    def linear(self, x: str, weight: Array, bias: Array) -> str:
        """x W^T + b."""
        return self.add("Gemm", x, self.weight(weight), self.constant(bias), transB=1)

    def columns(self, x: str, start: int, stop: int, to: str | None = None) -> str:
        """x[:, start:stop]."""
        where = (self.constant([k], np.int64) for k in (start, stop, 1))
        return self.add("Slice", x, *where, to=to)

    def rows(self, x: str, *shape: int) -> str:
        """x as rows of `shape`, as many as there are."""
        return self.add("Reshape", x, self.constant([-1, *shape], np.int64))

    def whole(self, x: str) -> str:
        """x as int64."""
        from onnx import TensorProto

        return self._cast(x, TensorProto.INT64)

    def real(self, x: str) -> str:
        """x as float32."""
        from onnx import TensorProto

        return self._cast(x, TensorProto.FLOAT)

    def _cast(self, x: str, kind: int) -> str:
        from onnx import helper

        name = f"cast_{self.made}"
        self.nodes.append(helper.make_node("Cast", [x], [name], name=name, to=kind))
        return name

    def split(self, x: str, sizes: list[int]) -> list[str]:
        """x cut into pieces of these sizes along the last axis."""
        from onnx import helper

        names = [f"split_{self.made}_{k}" for k in range(len(sizes))]
        self.nodes.append(helper.make_node("Split", [x, self.constant(sizes, np.int64)], names, axis=-1))
        return names

    def some(self, rows: str) -> str:
        """Whether it is so in some row: a scalar of (n, 1)."""
        most = self.add("ReduceMax", self.real(rows), keepdims=0)
        return self.add("Greater", most, self.constant(0.0))

    def when(self, asked: str, made: Callable[[], str], otherwise: str) -> str:
        """What `made` adds nodes for, worked out only where the scalar `asked` is true; else `otherwise`. float32."""
        from onnx import TensorProto, helper

        start = len(self.nodes)
        names = made(), self.add("Identity", otherwise)
        *nodes, last = self.nodes[start:]
        kept = {constant.name for constant in self.constants}
        fixed: list[onnx.NodeProto] = []
        inner: list[onnx.NodeProto] = []
        for node in nodes:  # weights as float32: once, not in every run
            (fixed if kept.issuperset(node.input) else inner).append(node)
        number = self.made
        self.nodes[start:] = fixed
        self._inside += len(inner) + 1
        then, other = (
            helper.make_graph(
                part, f"branch_{number}_{k}", [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
            )
            for k, (part, name) in enumerate(zip((inner, [last]), names, strict=True))
        )
        return self.add("If", asked, then_branch=then, else_branch=other)

    def inline(self, part: Part, *given: str) -> str:
        """A part of another graph, fed with these tensors."""
        if part.opset != OPSET:
            raise PolicyFileError(f"{part.path} is of opset {part.opset}, this version writes {OPSET}: export it again")
        prefix, names = f"part_{self.made}/", {"": "", **dict(zip(part.inputs, given, strict=True))}
        for constant in part.constants:
            self.constants.append(copy.deepcopy(constant))
            self.constants[-1].name = prefix + constant.name
        for node in part.nodes:
            self.nodes.append(copy.deepcopy(node))
            self.nodes[-1].name = prefix + node.name
            self.nodes[-1].input[:] = [names.get(name, prefix + name) for name in node.input]
            self.nodes[-1].output[:] = [prefix + name for name in node.output]
        return prefix + part.output

    def join(self, parts: list[str], to: str | None = None) -> str:
        """Concatenate along the last axis; of one part, the part itself."""
        if len(parts) == 1 and to is None:
            return parts[0]
        return self.add("Concat", *parts, to=to, axis=-1)


def spliced(graph: Graph, module: torch.nn.Module, examples: tuple[Any, ...], given: tuple[str, ...]) -> str:
    """Torch's own ONNX export of a module with one output, fed with these tensors; the name of its output.

    `examples` are inputs for two rows; any number of rows goes. ValueError for a module that takes more than standard
    ONNX. Weights that are numbers of float16 take half the space.
    """
    import onnx.compose
    import torch
    from onnx import numpy_helper

    rows = torch.export.Dim("N")
    with _quiet():
        program = torch.onnx.export(
            module.eval(),
            examples,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=tuple(_free(example, rows) for example in examples),
            verbose=False,
        )
    assert program is not None
    model = onnx.compose.add_prefix(program.model_proto, f"torch_{graph.made}/")
    if model.functions or any(opset.domain for opset in model.opset_import):
        raise ValueError("this torch module exports to operators outside of standard ONNX")
    names: dict[str, str] = {}
    kept: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        same = (value.dtype.str, value.shape, value.tobytes())  # torch repeats weights that are used several times
        if same not in kept:
            weights = value.dtype == "float32" and value.ndim > 0
            # As it is: what Gather takes by a number has one axis less than what it takes by a list of one.
            kept[same] = graph.weight(value) if weights else graph.stored(value)
        names[tensor.name] = kept[same]
    names |= dict(zip((value.name for value in model.graph.input), given, strict=True))
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    graph.nodes.extend(model.graph.node)
    output: str = model.graph.output[0].name
    return output


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks about its own code, and about what is not installed and not needed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*treespec.*", FutureWarning)
        warnings.filterwarnings("ignore", ".*axis name.*", UserWarning)
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


def _free(example: Any, rows: Any) -> Any:
    """The same structure, in which each tensor's first size is any."""
    return tuple(_free(one, rows) for one in example) if isinstance(example, tuple) else {0: rows}
