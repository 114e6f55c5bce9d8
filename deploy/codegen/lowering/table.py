"""Normalisations, means and the like; and the table of all operators that are made of others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from deploy.codegen.lowering.parts import AnyArray, Parts, Shapes, UnsupportedError
from deploy.codegen.lowering.products import einsum, gemm, matmul
from deploy.codegen.lowering.quantised import QUANTISED
from deploy.codegen.lowering.recurrent import gru, lstm, rnn
from deploy.codegen.lowering.resampling import grouped, resize, transposed

REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


def _normalised(parts: Parts, x: str, axes: list[int], epsilon: float) -> str:
    """To the mean 0 and the mean square 1 along axes."""
    along = parts.constant(axes, np.int64)
    centred = parts.add("Sub", x, parts.add("ReduceMean", x, along, keepdims=1))
    variance = parts.add("ReduceMean", parts.add("Mul", centred, centred), along, keepdims=1)
    return parts.add("Div", centred, parts.add("Sqrt", parts.add("Add", variance, parts.constant(epsilon))))


def _layer_normalization(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    if any(outputs[1:]):
        raise UnsupportedError("also says the means, which is not supported")
    rank = len(shapes[parts.given(0)])
    axes = list(range(int(attributes.get("axis", -1)) % rank, rank))
    scaled = _normalised(parts, parts.given(0), axes, attributes.get("epsilon", 1e-5))
    bias = parts.given(2) or parts.constant(0.0)
    parts.add("Add", parts.add("Mul", scaled, parts.given(1)), bias, to=outputs[0])


def _instance_normalization(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Per channel; torch's group normalisation is this, too, of groups as channels."""
    shape = shapes[parts.given(0)]
    flat = parts.reshape(parts.given(0), *shape[:2], -1)
    x = parts.reshape(_normalised(parts, flat, [2], attributes.get("epsilon", 1e-5)), *shape)
    scale, bias = (parts.reshape(parts.given(k), 1, shape[1], *[1] * (len(shape) - 2)) for k in (1, 2))
    parts.add("Add", parts.add("Mul", x, scale), bias, to=outputs[0])


def _batch_normalization(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """With the statistics of training: a factor and a shift per channel."""
    scale, bias, mean, variance = (parts.data(k).astype(np.float64) for k in range(1, 5))
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    shape = (-1, *[1] * (len(shapes[parts.given(0)]) - 2))
    factors, shifts = (parts.constant(v.reshape(shape)) for v in (factor, bias - mean * factor))
    parts.add("Add", parts.add("Mul", parts.given(0), factors), shifts, to=outputs[0])


def _lp_normalization(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    axis = parts.constant([int(attributes.get("axis", -1))], np.int64)
    norm = parts.add(f"ReduceL{int(attributes.get('p', 2))}", parts.given(0), axis, keepdims=1)
    parts.add("Div", parts.given(0), norm, to=outputs[0])


def _reduction(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Axes that are no neighbours are moved to the end first; of none, nothing is reduced, or everything."""
    shape = shapes[parts.given(0)]
    given = parts.data(1).tolist() if parts.given(1) else list(attributes.get("axes", ()))
    if not given and attributes.get("noop_with_empty_axes", 0):
        alone = parts.reshape(parts.given(0), *shape, 1)  # each element by itself: of squares not the identity
        parts.add(parts.operator, alone, parts.constant([len(shape)], np.int64), keepdims=0, to=outputs[0])
        return
    axes = sorted(int(axis) % len(shape) for axis in given or range(len(shape)))
    if not axes or axes == list(range(axes[0], axes[-1] + 1)):
        return
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    moved = parts.transpose(parts.given(0), *kept, *axes)
    flat = parts.reshape(moved, *(shape[axis] for axis in kept), math.prod(shape[axis] for axis in axes))
    reduced = parts.add(parts.operator, flat, parts.constant([len(kept)], np.int64), keepdims=0)
    ones = attributes.get("keepdims", 1)
    result = [1 if axis in axes else length for axis, length in enumerate(shape) if ones or axis in kept]
    parts.reshape(reduced, *result, to=outputs[0])


def _folded(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Max, Min, Sum and Mean of any number of inputs: two at a time."""
    pair = {"Sum": "Add", "Mean": "Add"}.get(parts.operator, parts.operator)
    if len(parts.inputs) == 2 and pair == parts.operator:
        return
    total = parts.inputs[0]
    for name in parts.inputs[1:]:
        total = parts.add(pair, total, name)
    if parts.operator == "Mean":
        total = parts.add("Div", total, parts.constant(len(parts.inputs)))
    parts.add("Identity", total, to=outputs[0])


def _dropout(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    parts.add("Identity", parts.given(0), to=outputs[0])


def _one_hot(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Where the index is k, or counted from the end, the second value."""
    depth, (off, on) = int(parts.data(1).reshape(())), parts.data(2)
    rank = len(shapes[parts.given(0)]) + 1
    axis = int(attributes.get("axis", -1)) % rank
    numbers = np.arange(depth).reshape([-1 if k == axis else 1 for k in range(rank)])
    whole = parts.add("CastLike", parts.given(0), parts.constant(0, np.int64))
    index = parts.add("Unsqueeze", whole, parts.constant([axis], np.int64))
    same = (parts.add("Equal", index, parts.constant(numbers - shift, np.int64)) for shift in (0, depth))
    chosen = parts.add("Or", *same)
    parts.add("Where", chosen, *(parts.constant(value, parts.data(2).dtype.type) for value in (on, off)), to=outputs[0])


MADE_OF_OTHERS = {
    "BatchNormalization": _batch_normalization,
    "Conv": grouped,
    "ConvTranspose": transposed,
    "Dropout": _dropout,
    "Einsum": einsum,
    "GRU": gru,
    "Gemm": gemm,
    "InstanceNormalization": _instance_normalization,
    "LSTM": lstm,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MatMul": matmul,
    "OneHot": _one_hot,
    "RNN": rnn,
    "Resize": resize,
    **QUANTISED,
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _folded),
    **dict.fromkeys((f"Reduce{name}" for name in REDUCTIONS), _reduction),
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
