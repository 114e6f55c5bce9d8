"""ONNX operators that are made of others: recurrent cells, normalisations, grouped convolutions, some reductions.

The graph's reader replaces each by its parts, so that the C generator has to know only those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]


class UnsupportedError(ValueError):
    """Not this form of the operator; the message completes "operator X (node Y) ..."."""


class Parts:
    """Collects the nodes that replace one; every method returns the name of its result."""

    def __init__(self, node: Any, known: Mapping[str, AnyArray]) -> None:
        """`node`: a deploy.codegen.onnx_graph.Node; `known`: those of its inputs that are constant."""
        self.operator, self.name, self.inputs, self._known = node.operator, node.name, node.inputs, known
        self.nodes: list[tuple[str, tuple[str, ...], str, dict[str, Any]]] = []  # operator, inputs, result, attributes
        self.constants: dict[str, AnyArray] = {}

    def add(self, operator: str, *inputs: str, to: str | None = None, **attributes: Any) -> str:
        """One node with one output."""
        result = to or f"{self.name}/{operator}_{len(self.nodes)}"
        self.nodes.append((operator, inputs, result, attributes))
        return result

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """A tensor that is known beforehand."""
        name = f"{self.name}/constant_{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(value, dtype)
        return name

    def given(self, index: int) -> str:
        """The name of an input; empty when it was left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def data(self, index: int) -> AnyArray:
        """An input that must be constant."""
        name = self.given(index)
        if name not in self._known:
            raise UnsupportedError(f"needs its input {index} to be constant")
        return self._known[name]

    def reshape(self, x: str, *shape: int, to: str | None = None) -> str:
        return self.add("Reshape", x, self.constant(shape, np.int64), to=to)

    def columns(self, x: str, start: int, stop: int, axis: int = 1) -> str:
        """The elements start .. stop - 1 along an axis."""
        return self.add("Slice", x, *(self.constant([k], np.int64) for k in (start, stop, axis)))

    def linear(self, x: str, weight: AnyArray, bias: AnyArray) -> str:
        """x W^T + b."""
        return self.add("Gemm", x, self.constant(weight), self.constant(bias), transB=1)


Cell = Callable[[Parts, str, tuple[str, ...]], tuple[str, ...]]  # x (1, in), state (1, hidden) ... -> next state


def _only(attributes: Mapping[str, Any], **allowed: Any) -> None:
    for name, value in allowed.items():
        if attributes.get(name, value) != value:
            raise UnsupportedError(f"has {name} = {attributes[name]!r}; only {value!r} is supported")


def _matrices(parts: Parts, gates: int, attributes: Mapping[str, Any]) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
    """W (gates, in), R (gates, hidden) and their biases (gates,)."""
    _only(attributes, direction=b"forward", layout=0, clip=None, activations=None, input_forget=0)
    for index, what in ((4, "lengths of sequences"), (7, "peepholes")):
        if parts.given(index):
            raise UnsupportedError(f"has {what}, which are not supported")
    w, r = parts.data(1), parts.data(2)
    size = gates * r.shape[2]
    bias = parts.data(3)[0] if parts.given(3) else np.zeros(2 * size, np.float32)
    return w[0], r[0], bias[:size], bias[size:]


def _unroll(parts: Parts, steps: int, outputs: list[str], hidden: int, states: int, cell: Cell) -> None:
    """The cell once per step of a sequence. `outputs`: all hidden states, then the last state; empty: not wanted."""
    state = tuple(
        parts.reshape(parts.given(k), 1, hidden) if parts.given(k) else parts.constant(np.zeros((1, hidden)))
        for k in range(5, 5 + states)
    )
    seen = []
    for step in range(steps):
        x = parts.reshape(parts.columns(parts.given(0), step, step + 1, axis=0), 1, -1)
        state = cell(parts, x, state)
        seen.append(state[0])
    if outputs[0]:
        parts.reshape(parts.add("Concat", *seen, axis=0), steps, 1, 1, hidden, to=outputs[0])
    for last, name in zip(state, outputs[1:], strict=False):
        if name:
            parts.reshape(last, 1, 1, hidden, to=name)


def _gru(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Gates in the order update, reset, new; the reset gate acts before or after the product with R."""
    w, r, w_bias, r_bias = _matrices(parts, 3, attributes)
    n = r.shape[1]
    late = bool(attributes.get("linear_before_reset", 0))

    def cell(parts: Parts, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
        (before,) = state
        from_input, rows = parts.linear(x, w, w_bias), len(r) if late else 2 * n
        from_state = parts.linear(before, r[:rows], r_bias[:rows])
        gates = (parts.columns(values, 0, 2 * n) for values in (from_input, from_state))
        both = parts.add("Sigmoid", parts.add("Add", *gates))
        update, reset = parts.columns(both, 0, n), parts.columns(both, n, 2 * n)
        if late:
            kept = parts.add("Mul", reset, parts.columns(from_state, 2 * n, 3 * n))
        else:
            kept = parts.linear(parts.add("Mul", reset, before), r[2 * n :], r_bias[2 * n :])
        new = parts.add("Tanh", parts.add("Add", parts.columns(from_input, 2 * n, 3 * n), kept))
        change = parts.add("Mul", update, parts.add("Sub", before, new))
        return (parts.add("Add", new, change),)

    _unroll(parts, shapes[parts.given(0)][0], outputs, n, 1, cell)


def _lstm(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Gates in the order input, output, forget, cell; one product for what comes from the input and from the state."""
    w, r, w_bias, r_bias = _matrices(parts, 4, attributes)
    n = r.shape[1]
    weight, bias = np.concatenate([w, r], axis=1), w_bias + r_bias

    def cell(parts: Parts, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
        hidden, memory = state
        gates = parts.linear(parts.add("Concat", x, hidden, axis=1), weight, bias)
        open_ = parts.add("Sigmoid", parts.columns(gates, 0, 3 * n))
        into, out, keep = (parts.columns(open_, k * n, k * n + n) for k in range(3))
        new = parts.add("Mul", into, parts.add("Tanh", parts.columns(gates, 3 * n, 4 * n)))
        memory = parts.add("Add", parts.add("Mul", keep, memory), new)
        return parts.add("Mul", out, parts.add("Tanh", memory)), memory

    _unroll(parts, shapes[parts.given(0)][0], outputs, n, 2, cell)


def _layer_normalization(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    x = parts.given(0)
    rank = len(shapes[x])
    axes = parts.constant(range(int(attributes.get("axis", -1)) % rank, rank), np.int64)
    centred = parts.add("Sub", x, parts.add("ReduceMean", x, axes, keepdims=1))
    variance = parts.add("ReduceMean", parts.add("Mul", centred, centred), axes, keepdims=1)
    epsilon = parts.constant(attributes.get("epsilon", 1e-5))
    scaled = parts.add("Div", centred, parts.add("Sqrt", parts.add("Add", variance, epsilon)))
    bias = parts.given(2) or parts.constant(0.0)
    parts.add("Add", parts.add("Mul", scaled, parts.given(1)), bias, to=outputs[0])


def _batch_normalization(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """With the statistics of training: a factor and a shift per channel."""
    scale, bias, mean, variance = (parts.data(k).astype(np.float64) for k in range(1, 5))
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    shape = (-1, *[1] * (len(shapes[parts.given(0)]) - 2))
    factors, shifts = (parts.constant(v.reshape(shape)) for v in (factor, bias - mean * factor))
    parts.add("Add", parts.add("Mul", parts.given(0), factors), shifts, to=outputs[0])


def _axes(parts: Parts, attributes: Mapping[str, Any], rank: int) -> list[int]:
    """What is reduced, counted from the front."""
    given = parts.data(1).tolist() if parts.given(1) else attributes.get("axes", range(rank))
    return sorted(int(axis) % rank for axis in given)


def _reduction(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Over axes that are not the last ones: over the last one, after these have been moved there."""
    shape = shapes[parts.given(0)]
    axes = _axes(parts, attributes, len(shape))
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    if not axes or kept == list(range(len(kept))):
        return
    moved = parts.add("Transpose", parts.given(0), perm=[*kept, *axes])
    flat = parts.reshape(moved, *(shape[axis] for axis in kept), -1)
    reduced = parts.add(parts.operator, flat, parts.constant([len(kept)], np.int64), keepdims=0)
    ones = attributes.get("keepdims", 1)
    result = [1 if axis in axes else length for axis, length in enumerate(shape) if ones or axis in kept]
    parts.reshape(reduced, *result, to=outputs[0])


def _norm(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    square = parts.add("Mul", parts.given(0), parts.given(0))
    axes = [parts.given(1)] if parts.given(1) else []
    parts.add("Sqrt", parts.add("ReduceSum", square, *axes, keepdims=attributes.get("keepdims", 1)), to=outputs[0])


def _grouped(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """A convolution per group of channels."""
    if attributes.get("group", 1) == 1:
        return
    groups = int(attributes["group"])
    weight = parts.data(1)
    inputs, made = weight.shape[1], len(weight) // groups
    rest = {name: value for name, value in attributes.items() if name != "group"}
    results = []
    for k in range(groups):
        where = slice(k * made, k * made + made)
        bias = [parts.constant(parts.data(2)[where])] if parts.given(2) else []
        x = parts.columns(parts.given(0), k * inputs, k * inputs + inputs)
        results.append(parts.add("Conv", x, parts.constant(weight[where]), *bias, **rest))
    parts.add("Concat", *results, axis=1, to=outputs[0])


MADE_OF_OTHERS = {
    "BatchNormalization": _batch_normalization,
    "Conv": _grouped,
    "GRU": _gru,
    "LSTM": _lstm,
    "LayerNormalization": _layer_normalization,
    "ReduceL2": _norm,
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceSum"), _reduction),
}


def decompose(node: Any, shapes: Shapes, known: Mapping[str, AnyArray]) -> Parts | None:
    """What replaces a deploy.codegen.onnx_graph.Node; None when it stays. `shapes` and `known` are of its inputs.

    Raises UnsupportedError.
    """
    if node.operator not in MADE_OF_OTHERS:
        return None
    parts = Parts(node, known)
    MADE_OF_OTHERS[node.operator](parts, node.attributes, list(node.outputs), shapes)
    return parts if parts.nodes else None
