"""The graph of a policy file, for one robot: shapes known, constants folded, what is not needed removed.

The free batch size becomes 1. This is what the C generator reads; flying in Python needs none of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.lowering.parts import Parts, UnsupportedError
from deploy.codegen.lowering.quantised import QUANTISED
from deploy.codegen.lowering.table import decompose
from deploy.codegen.rounded import tanh

AnyArray = NDArray[Any]


class GraphError(ValueError):
    """The graph holds something that cannot be turned into C; the message names the operator and its node."""


@dataclass(frozen=True)
class Value:
    """A tensor: `data` for a constant, otherwise None."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    data: AnyArray | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Node:
    """One operator. An input that was left out is the empty name."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: Any  # onnx.NodeProto

    def __str__(self) -> str:
        return f"operator {self.operator!r} (node {self.name!r})"


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can be computed, and every value that they touch."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    nodes: tuple[Node, ...]
    opset: int


def constants_of(content: bytes) -> dict[str, AnyArray]:
    """The tensors that are stored in an ONNX file, by name."""
    import onnx
    from onnx import numpy_helper

    stored = onnx.load_from_string(content).graph.initializer
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in stored}


def evaluate(node: Node, feeds: Mapping[str, AnyArray], opset: int) -> list[AnyArray]:
    """What `node` makes of its inputs, by ONNX's reference implementation; padding and operators of ours by numpy."""
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    if node.operator == "Pad":
        return [_padded(node, [feeds[name] if name else None for name in node.inputs])]
    if node.operator == tanh.TANH:
        return [tanh.rounded(feeds[node.inputs[0]], node.attributes[tanh.ONE])]
    anything = TensorProto.UNDEFINED
    named = [helper.make_tensor_value_info(name, anything, None) for name in dict.fromkeys(node.inputs) if name]
    results = [helper.make_tensor_value_info(name, anything, None) for name in node.outputs]
    model = helper.make_model(
        helper.make_graph([node.proto], "one", named, results), opset_imports=[helper.make_opsetid("", opset)]
    )
    try:
        with np.errstate(all="ignore"):  # infinite and undefined values are values
            made = ReferenceEvaluator(model).run(None, {value.name: feeds[value.name] for value in named})
    except Exception as error:  # whatever the reference implementation raises
        raise GraphError(f"{node} cannot be evaluated: {error}") from None
    return [np.asarray(value) for value in made]


def applied(operator: str, inputs: Sequence[AnyArray | None], attributes: Mapping[str, Any]) -> AnyArray:
    """What an operator with one output makes of constants; None: left out."""
    from onnx import helper

    names = ["" if value is None else f"input_{k}" for k, value in enumerate(inputs)]
    node = _node(helper.make_node(operator, names, ["made"], name=operator, **attributes))
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}
    return evaluate(node, feeds, 18)[0]


def _padded(node: Node, inputs: list[AnyArray | None]) -> AnyArray:
    """Pads below zero take away."""
    x, pads, value, axes = (*inputs, None, None)[:4]
    if x is None or pads is None:
        raise GraphError(f"{node} lacks an input")
    chosen = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    widths = [(0, 0)] * x.ndim
    for k, axis in enumerate(chosen):
        widths[axis] = int(pads[k]), int(pads[k + len(pads) // 2])
    cut = x[tuple(slice(max(0, -a), size - max(0, -b)) for size, (a, b) in zip(x.shape, widths, strict=True))]
    mode = node.attributes.get("mode", b"constant").decode()
    more = {"constant_values": 0 if value is None else value.reshape(())} if mode == "constant" else {}
    made: AnyArray = np.pad(cut, [(max(0, a), max(0, b)) for a, b in widths], mode, **more)
    return made


def run(
    graph: Graph,
    inputs: Mapping[str, AnyArray],
    stored: Callable[[Node, int, AnyArray], AnyArray] = lambda node, index, value: value,
) -> dict[str, AnyArray]:
    """The outputs by name. `stored`: what input number `index` becomes, of a node whose second input is constant."""
    constant = {name: v.data for name, v in graph.values.items() if v.data is not None}
    known = dict(inputs) | constant
    for node in graph.nodes:
        feeds = {name: known[name] for name in node.inputs if name}
        if len(node.inputs) > 1 and node.inputs[1] in constant:
            feeds = {name: stored(node, index, known[name]) for index, name in enumerate(node.inputs) if name}
        known |= dict(zip(node.outputs, evaluate(node, feeds, graph.opset), strict=True))
    return {name: known[name] for name in graph.outputs}


def _node(proto: Any, index: int = 0) -> Node:
    from onnx import helper

    if proto.domain not in ("", "ai.onnx"):
        raise GraphError(f"operator {proto.domain}.{proto.op_type} (node {proto.name!r}) is not standard ONNX")
    attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    name = proto.name or f"{proto.op_type}_{index}"
    return Node(proto.op_type, name, tuple(proto.input), tuple(proto.output), attributes, proto)


def _needed(nodes: list[Node], outputs: tuple[str, ...]) -> tuple[Node, ...]:
    """Those nodes that an output depends on."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


def _parts(node: Node, probes: Mapping[str, AnyArray], constant: Mapping[str, AnyArray]) -> Parts | None:
    shapes = {name: probes[name].shape for name in node.inputs if name}
    try:
        return decompose(node, shapes, {name: constant[name] for name in shapes if name in constant})
    except UnsupportedError as error:
        raise GraphError(f"{node} {error}") from None


def _check(node: Node, supported: Collection[str]) -> None:
    if node.operator not in supported:
        raise GraphError(f"{node} is not supported; supported are: {', '.join(sorted(supported))}")


def _zeros(model: Any) -> dict[str, AnyArray]:
    """An array for every input, for a batch of one."""
    from onnx import helper

    made = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = (1, *(d.dim_value for d in kind.shape.dim[1:]))
        made[value.name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return made


def read(content: bytes, supported: Collection[str]) -> Graph:
    """The graph in the bytes of a policy file.

    Raises GraphError for an operator that is not among the `supported` ones, unless it can be computed beforehand.
    """
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_from_string(content)
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    constant: dict[str, AnyArray] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    inputs = tuple(i.name for i in model.graph.input if i.name not in constant)
    probes = {**_zeros(model), **constant}  # of every value: zeros of its shape, or what it is
    kept = []
    waiting = deque(_node(proto, index) for index, proto in enumerate(model.graph.node))
    while waiting:
        node = waiting.popleft()
        feeds = {name: probes[name] for name in node.inputs if name}
        known = node.operator == "Shape" or feeds.keys() <= constant.keys()
        # The reference implementation has those of newer opsets only.
        parts = None if known and node.operator not in QUANTISED else _parts(node, probes, constant)
        if parts:
            constant |= parts.constants
            probes |= parts.constants
            protos = [helper.make_node(o, i, [to], name=f"{node.name}/{o}", **a) for o, i, to, a in parts.nodes]
            waiting.extendleft(map(_node, reversed(protos)))
            continue
        if not known:
            _check(node, supported)
        with np.errstate(all="ignore"):
            made = dict(zip(node.outputs, evaluate(node, feeds, opset), strict=True))
        probes |= made
        if known:
            constant |= made
        else:
            kept.append(node)
    outputs = tuple(o.name for o in model.graph.output)
    values = {name: Value(name, v.shape, v.dtype, constant.get(name)) for name, v in probes.items()}
    return Graph(inputs, outputs, values, _needed(kept, outputs), opset)
