"""Whole numbers that a graph computes from constants and shapes alone: the sizes that torch's exports are full of.

Only what ONNX and numpy define alike is computed; of anything else nothing is known, and an operator whose size depends
on it is refused. Numbers stay below 2**31, so that no sum or product leaves 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.trust.onnx_reader import KEPT
from deploy.trust.onnx_shapes import Call, Value, axes_of, axis_of, reach

Array = NDArray[Any]
LARGEST = 2**31


def _div(a: Array, b: Array) -> Array:
    """Towards zero, as C does."""
    quotient: Array = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    return quotient


def _mod(a: Array, b: Array) -> Array:
    return np.mod(a, b)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _div,
    "Neg": np.negative,
    "Abs": np.abs,
    "Min": lambda *values: np.min(np.broadcast_arrays(*values), axis=0),
    "Max": lambda *values: np.max(np.broadcast_arrays(*values), axis=0),
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
    "Where": np.where,
}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceProd": lambda data, **options: np.prod(data.astype(object), **options),
    "ReduceMax": np.max,
    "ReduceMin": np.min,
}
RESHAPED = {"Reshape", "Squeeze", "Unsqueeze", "Flatten"}


def _moved(call: Call, data: list[Array], made: Value) -> list[Array] | None:
    """Moves of known numbers; None for other operators."""
    operator = call.node.operator
    if operator in RESHAPED:
        return [data[0].reshape(made.shape)]
    if operator == "Concat":
        return [np.concatenate(data, axis=axis_of(call.integer("axis", 0), data[0].ndim))]
    if operator == "Gather":
        return [np.take(data[0], data[1].astype(np.int64), axis=axis_of(call.integer("axis", 0), data[0].ndim))]
    if operator == "Slice":
        return [_sliced(data)]
    if operator == "Expand":
        return [np.broadcast_to(data[0], made.shape).copy()]
    if operator == "Tile":
        return [np.tile(data[0], data[1].reshape(-1).tolist())]
    if operator == "Transpose":
        return [np.transpose(data[0], call.integers("perm"))]
    if operator == "Split":
        axis = axis_of(call.integer("axis", 0), data[0].ndim)
        return list(np.split(data[0], np.cumsum(data[1])[:-1].tolist(), axis)) if len(data) > 1 else None
    return None


def _sliced(data: list[Array]) -> Array:
    starts, ends = (data[k].reshape(-1).tolist() for k in (1, 2))
    axes = axes_of(data[3].reshape(-1).tolist() if len(data) > 3 else range(len(starts)), data[0].ndim)
    steps = data[4].reshape(-1).tolist() if len(data) > 4 else [1] * len(starts)
    made = data[0]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        made = np.take(made, np.array(reach(start, end, step, made.shape[axis]), np.int64), axis)
    return made


def folded(call: Call, results: list[Value]) -> list[Value]:
    """The results with their values, where these follow from known ones."""
    given = [value for value in call.inputs if value is not None]
    if not given or any(v.data is None for v in given) or len(given) != len(call.inputs):
        return results
    if any(v.size > KEPT for v in results):
        return results
    data = [v.data for v in given if v.data is not None]
    operator = call.node.operator
    if operator == "Cast":
        made = _cast(data[0], results[0].dtype)
    elif any(d.dtype.kind not in "iub" for d in data):
        made = None
    elif (moved := _moved(call, data, results[0])) is not None:
        made = moved
    elif any((np.abs(d.astype(np.float64)) >= LARGEST).any() for d in data):
        made = None
    elif operator in ARITHMETIC:
        made = [ARITHMETIC[operator](*(d if d.dtype == bool else d.astype(np.int64) for d in data))]
    elif operator in REDUCTIONS and call.node.attributes.get("noop_with_empty_axes", 0) == 0:
        made = _reduced(call, data)
    else:
        made = None
    return results if made is None else [_kept(value, array) for value, array in zip(results, made, strict=True)]


def _cast(data: Array, dtype: np.dtype[Any]) -> list[Array] | None:
    """To whole numbers and truth values only, of numbers that they can hold."""
    if dtype.kind not in "iub" or not np.isfinite(data).all():
        return None
    if dtype.kind == "b":
        return [data != 0]
    info = np.iinfo(dtype)
    low, high = max(info.min, -LARGEST), min(info.max, LARGEST)
    wide = data.astype(np.float64)
    return [np.trunc(wide).astype(dtype)] if ((wide > low - 1) & (wide < high + 1)).all() else _same(data, dtype)


def _same(data: Array, dtype: np.dtype[Any]) -> list[Array] | None:
    """Whole numbers that fit, though they are large: 2**63 - 1 is what a slice up to the end says."""
    if data.dtype.kind not in "iub" or dtype != np.int64:
        return None
    return [data.astype(dtype)]


def _reduced(call: Call, data: list[Array]) -> list[Array]:
    named = call.integers("axes")
    axes = named if named is not None else tuple(data[1].reshape(-1).tolist()) if len(data) > 1 else ()
    gone = tuple(axes_of(axes, data[0].ndim)) or None
    wide = data[0].astype(np.int64)
    return [np.asarray(REDUCTIONS[call.node.operator](wide, axis=gone, keepdims=bool(call.integer("keepdims", 1))))]


def _kept(value: Value, array: Array) -> Value:
    """Nothing is known of numbers that their type cannot hold."""
    if array.shape != value.shape:
        return value
    if value.dtype.kind in "iu" and array.size:
        info = np.iinfo(value.dtype)
        if int(array.min()) < info.min or int(array.max()) > info.max:
            return value
    return value._replace(data=array.astype(value.dtype))
