"""An ONNX graph that is being written, node by node."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy.policy_file import PolicyFileError
from policies.models.controller import Array

if TYPE_CHECKING:
    import onnx

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
        """A tensor stored in the graph."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value, dtype), name))
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

    def when(self, asked: str, made: Callable[[], str], otherwise: str) -> str:
        """What `made` adds nodes for, worked out only where the scalar `asked` is true; else `otherwise`. float32."""
        from onnx import TensorProto, helper

        start = len(self.nodes)
        names = made(), self.add("Identity", otherwise)
        *nodes, last = self.nodes[start:]
        kept = {constant.name for constant in self.constants}
        fixed = [node for node in nodes if {*node.input} <= kept]  # weights as float32: once, not in every run
        inner = [node for node in nodes if node not in fixed]
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
