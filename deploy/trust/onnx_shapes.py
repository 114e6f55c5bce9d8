"""What ONNX's operators make of shapes, and what they cost: for a bound before anything is allocated or run.

A rule gets the shapes of an operator's inputs, and their values where those are small whole numbers that are known, and
returns the same of its outputs. The operators here are all that a policy file may use (with If, Loop and Scan, which
`onnx_limits` unrolls in thought); opsets 13 to 23 (the standard: onnx.ai/onnx/operators).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deploy.trust.onnx_reader import DTYPES, KEPT, Node, Tensor

FLOAT, INT64, BOOL = DTYPES[1], DTYPES[7], DTYPES[9]
Shape = tuple[int, ...]


class ShapeError(ValueError):
    """A rule cannot say how large the result is; the message goes on after the operator's name."""


class Value(NamedTuple):
    """A tensor: `data` where its values are known, small and whole."""

    shape: Shape
    dtype: np.dtype[Any] = FLOAT
    data: NDArray[Any] | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass
class Call:
    """One operator with its inputs. `products`: multiply-adds and the like, beyond one visit of each element."""

    node: Node
    inputs: Sequence[Value | None]
    opset: int
    products: float = 0.0
    scratch: int = 0  # elements of memory beside inputs and outputs

    def __getitem__(self, index: int) -> Value:
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise ShapeError(f"lacks its input {index}")
        return value

    def has(self, index: int) -> bool:
        """Whether the input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def known(self, index: int, what: str) -> list[Any]:
        """The values of an input that decides about a size."""
        data = self[index].data
        if data is None:
            raise ShapeError(f"takes its {what} from what it computes in flight; make the {what} constant")
        return list(data.reshape(-1).tolist())

    def integer(self, name: str, default: int) -> int:
        """An attribute."""
        value = self.node.attributes.get(name, default)
        if not isinstance(value, int):
            raise ShapeError(f"has {name}={value!r}, which is no whole number")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """An attribute that is 0 or 1: of other numbers onnxruntime's parts think differently."""
        value = self.node.attributes.get(name, int(default))
        if value not in (0, 1):
            raise ShapeError(f"has {name}={value!r}, which is neither 0 nor 1")
        return bool(value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute; None when it is absent."""
        value = self.node.attributes.get(name)
        if value is not None and not (isinstance(value, tuple) and all(isinstance(k, int) for k in value)):
            raise ShapeError(f"has {name}={value!r}, which are no whole numbers")
        return value

    def text(self, name: str, default: str) -> str:
        """An attribute."""
        value = self.node.attributes.get(name, default.encode())
        return value.decode("ascii", "replace") if isinstance(value, bytes) else "?"


Rule = Callable[[Call], list[Value]]


def axis_of(axis: int, rank: int) -> int:
    """From 0 on."""
    if not -rank <= axis < rank:
        raise ShapeError(f"has the axis {axis} of {rank}")
    return axis % rank


def axes_of(axes: Sequence[int], rank: int) -> list[int]:
    """From 0 on, each once."""
    found = [axis_of(int(axis), rank) for axis in axes]
    if len(set(found)) != len(found):
        raise ShapeError(f"names an axis twice: {list(axes)[:8]}")
    return found


def broadcast(*shapes: Shape) -> Shape:
    """The common shape of operands."""
    rank = max(map(len, shapes))
    made = [1] * rank
    for shape in shapes:
        for k, size in enumerate(shape, rank - len(shape)):
            if size != 1 and made[k] not in (1, size):
                raise ShapeError(f"has operands of the shapes {', '.join(map(str, shapes))}")
            made[k] = size if size != 1 else made[k]
    return tuple(made)


def same(call: Call) -> list[Value]:
    return [Value(call[0].shape, call[0].dtype)]


def test(call: Call) -> list[Value]:
    return [Value(call[0].shape, BOOL)]


def identity(call: Call) -> list[Value]:
    return [call[0]]


def dropout(call: Call) -> list[Value]:
    return [call[0], Value(call[0].shape, BOOL)]


def elementwise(call: Call) -> list[Value]:
    return [Value(broadcast(*(v.shape for v in call.inputs if v is not None)), call[0].dtype)]


def divide(call: Call) -> list[Value]:
    """Whole numbers must be divided by known ones: a division by zero would end the process."""
    if call[0].dtype.kind in "iu" and (call[1].data is None or np.isin(call[1].data, (0, -1)).any()):
        raise ShapeError("divides whole numbers by something other than constants that are neither 0 nor -1")
    return elementwise(call)


def compare(call: Call) -> list[Value]:
    return [Value(broadcast(*(v.shape for v in call.inputs if v is not None)), BOOL)]


def where(call: Call) -> list[Value]:
    return [Value(broadcast(call[0].shape, call[1].shape, call[2].shape), call[1].dtype)]


def element_type(call: Call, number: int) -> np.dtype[Any]:
    if number not in DTYPES:
        raise ShapeError(f"makes the element type {number}, which a policy has no use for")
    return DTYPES[number]


def cast(call: Call) -> list[Value]:
    return [Value(call[0].shape, element_type(call, call.integer("to", 0)))]


def cast_like(call: Call) -> list[Value]:
    return [Value(call[0].shape, call[1].dtype)]


def constant(call: Call) -> list[Value]:
    attributes = call.node.attributes
    if len(attributes) != 1:
        raise ShapeError(f"has {len(attributes)} attributes, not one")
    if isinstance(tensor := attributes.get("value"), Tensor):
        return [Value(tensor.shape, tensor.dtype, tensor.data)]
    for name, dtype in (("value_int", INT64), ("value_ints", INT64), ("value_float", FLOAT), ("value_floats", FLOAT)):
        if name in attributes:
            data = np.asarray(attributes[name], dtype)
            return [Value(data.shape, dtype, data)]
    raise ShapeError("holds no numbers")


def constant_of_shape(call: Call) -> list[Value]:
    tensor, shape = call.node.attributes.get("value"), tuple(map(int, call.known(0, "shape")))
    if any(k < 0 for k in shape):
        raise ShapeError(f"makes the shape {shape[:8]}")
    if not isinstance(tensor, Tensor):
        return [Value(shape)]
    data = None
    if tensor.data is not None and tensor.data.size == 1 and math.prod(shape) <= KEPT:
        data = np.full(shape, tensor.data.reshape(-1)[0])
    return [Value(shape, tensor.dtype, data)]


def shape(call: Call) -> list[Value]:
    rank = len(call[0].shape)
    data = np.array(call[0].shape[slice(call.integer("start", 0), call.integer("end", rank))], np.int64)
    return [Value(data.shape, INT64, data)]


def size(call: Call) -> list[Value]:
    return [Value((), INT64, np.array(min(call[0].size, 2**62), np.int64))]


def reshape(call: Call) -> list[Value]:
    given, zero = call[0], not call.flag("allowzero")
    wanted = [int(k) for k in call.known(1, "shape")]
    made = [given.shape[k] if s == 0 and zero and k < len(given.shape) else s for k, s in enumerate(wanted)]
    if made.count(-1) == 1:
        rest = -math.prod(made)
        made[made.index(-1)] = given.size // rest if rest else 0
    if any(k < 0 for k in made) or math.prod(made) != given.size:
        raise ShapeError(f"makes {tuple(wanted[:8])} of {given.shape}")
    return [Value(tuple(made), given.dtype)]


def flatten(call: Call) -> list[Value]:
    given = call[0].shape
    axis = call.integer("axis", 1)
    axis = axis if axis == len(given) else axis_of(axis, len(given))
    return [Value((math.prod(given[:axis]), math.prod(given[axis:])), call[0].dtype)]


def squeeze(call: Call) -> list[Value]:
    given = call[0].shape
    axes = axes_of(call.known(1, "axes"), len(given)) if call.has(1) else []
    axes = axes or [k for k, s in enumerate(given) if s == 1]
    if any(given[k] != 1 for k in axes):
        raise ShapeError(f"drops the axes {axes} of {given}")
    return [Value(tuple(s for k, s in enumerate(given) if k not in axes), call[0].dtype)]


def unsqueeze(call: Call) -> list[Value]:
    axes = call.known(1, "axes")
    rank = len(call[0].shape) + len(axes)
    new, rest = axes_of(axes, rank), iter(call[0].shape)
    return [Value(tuple(1 if k in new else next(rest) for k in range(rank)), call[0].dtype)]


def transpose(call: Call) -> list[Value]:
    given = call[0].shape
    order = call.integers("perm") or tuple(range(len(given)))[::-1]
    if sorted(order) != list(range(len(given))):
        raise ShapeError(f"puts {given} in the order {order[:8]}")
    return [Value(tuple(given[k] for k in order), call[0].dtype)]


def concat(call: Call) -> list[Value]:
    shapes = [call[k].shape for k in range(len(call.inputs))]
    axis = axis_of(call.integer("axis", 0), len(call[0].shape))
    if len({(len(s), s[:axis], s[axis + 1 :]) for s in shapes}) != 1:
        raise ShapeError(f"joins {', '.join(map(str, shapes[:8]))} along the axis {axis}")
    whole = sum(s[axis] for s in shapes)
    return [Value((*shapes[0][:axis], whole, *shapes[0][axis + 1 :]), call[0].dtype)]


def split(call: Call) -> list[Value]:
    given, pieces = call[0].shape, len(call.node.outputs)
    axis = axis_of(call.integer("axis", 0), len(given))
    if call.has(1):
        sizes = [int(k) for k in call.known(1, "sizes")]
    else:
        each = -(-given[axis] // pieces)
        sizes = [max(0, min(each, given[axis] - each * k)) for k in range(pieces)]
    if (
        call.integer("num_outputs", pieces) != pieces
        or len(sizes) != pieces
        or sum(sizes) != given[axis]
        or min(sizes) < 0
    ):
        raise ShapeError(f"cuts {given} into {sizes[:8]}")
    return [Value((*given[:axis], k, *given[axis + 1 :]), call[0].dtype) for k in sizes]


def sliced(call: Call) -> list[Value]:
    given = list(call[0].shape)
    starts, ends = call.known(1, "starts"), call.known(2, "ends")
    axes = axes_of(call.known(3, "axes") if call.has(3) else range(len(starts)), len(given))
    steps = call.known(4, "steps") if call.has(4) else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise ShapeError("has starts, ends, axes and steps that do not fit")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        given[axis] = len(reach(int(start), int(end), int(step), given[axis]))
    return [Value(tuple(given), call[0].dtype)]


def reach(start: int, end: int, step: int, length: int) -> range:
    """What Slice takes of an axis. Backwards it begins inside the axis even where Python would take nothing."""
    start, end = (k + length if k < 0 else k for k in (start, end))
    if step < 0:
        return range(min(max(start, 0), length - 1), min(max(end, -1), length), step)
    return range(min(max(start, 0), length), min(max(end, 0), length), step)


def gather(call: Call) -> list[Value]:
    given, axis = call[0].shape, axis_of(call.integer("axis", 0), len(call[0].shape))
    return [Value((*given[:axis], *call[1].shape, *given[axis + 1 :]), call[0].dtype)]


def gather_nd(call: Call) -> list[Value]:
    given, indices, batch = call[0].shape, call[1].shape, call.integer("batch_dims", 0)
    if not indices or not 0 <= batch < min(len(given), len(indices)) or batch + indices[-1] > len(given):
        raise ShapeError(f"takes {indices} of {given}")
    return [Value((*indices[:-1], *given[batch + indices[-1] :]), call[0].dtype)]


def gather_elements(call: Call) -> list[Value]:
    return [Value(call[1].shape, call[0].dtype)]


def expand(call: Call) -> list[Value]:
    return [Value(broadcast(call[0].shape, _sizes(call, call.known(1, "shape"))), call[0].dtype)]


def _sizes(call: Call, values: Sequence[Any]) -> Shape:
    if any(k < 0 for k in values):
        raise ShapeError(f"has the sizes {tuple(values)[:8]}")
    return tuple(map(int, values))


def tile(call: Call) -> list[Value]:
    repeats = _sizes(call, call.known(1, "repeats"))
    if len(repeats) != len(call[0].shape):
        raise ShapeError(f"repeats {call[0].shape} {repeats[:8]} times")
    return [Value(tuple(s * r for s, r in zip(call[0].shape, repeats, strict=True)), call[0].dtype)]


def pad(call: Call) -> list[Value]:
    given, pads = call[0].shape, [int(k) for k in call.known(1, "pads")]
    axes = axes_of(call.known(3, "axes"), len(given)) if call.has(3) else list(range(len(given)))
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"has {len(pads)} pads for {len(axes)} axes")
    mode, made = call.text("mode", "constant"), list(given)
    for k, axis in enumerate(axes):
        low, high = (-given[axis], math.inf) if mode == "constant" else (0, given[axis] - 1)
        if not (low <= pads[k] <= high and low <= pads[k + len(axes)] <= high):
            raise ShapeError(f"pads {given} by {pads[:8]} ({mode})")
        made[axis] += pads[k] + pads[k + len(axes)]
    return [Value(_sizes(call, made), call[0].dtype)]


def value_range(call: Call) -> list[Value]:
    start, limit, step = (call.known(k, "range")[0] for k in range(3))
    if step == 0 or not all(abs(k) < 2**31 for k in (start, limit, step)):
        raise ShapeError(f"counts from {start} to {limit} by {step}")
    count = max(0, math.ceil((limit - start) / step))
    whole = call[0].dtype.kind in "iu" and count <= KEPT
    return [Value((count,), call[0].dtype, start + step * np.arange(count, dtype=call[0].dtype) if whole else None)]


def one_hot(call: Call) -> list[Value]:
    depth, rank = int(call.known(1, "depth")[0]), len(call[0].shape) + 1
    axis = axis_of(call.integer("axis", -1), rank)
    return [Value((*call[0].shape[:axis], *_sizes(call, [depth]), *call[0].shape[axis:]), call[2].dtype)]


def reduce(call: Call) -> list[Value]:
    given = call[0].shape
    attribute = call.integers("axes")
    axes: Sequence[int] = attribute if attribute is not None else call.known(1, "axes") if call.has(1) else ()
    if not axes and call.flag("noop_with_empty_axes"):
        return [Value(given, call[0].dtype)]  # though not its values: of a sum of squares they are others
    gone = axes_of(axes, len(given)) if axes else range(len(given))
    kept = call.flag("keepdims", True)
    return [Value(tuple(1 if k in gone else s for k, s in enumerate(given) if kept or k not in gone), call[0].dtype)]


def arg(call: Call) -> list[Value]:
    given = call[0].shape
    axis = axis_of(call.integer("axis", 0), len(given))
    middle = (1,) if call.flag("keepdims", True) else ()
    return [Value((*given[:axis], *middle, *given[axis + 1 :]), INT64)]


def top_k(call: Call) -> list[Value]:
    given = list(call[0].shape)
    axis = axis_of(call.integer("axis", -1), len(given))
    given[axis] = min(given[axis], _sizes(call, call.known(1, "k"))[0])
    call.products = call[0].size * 1000.0  # sorts
    return [Value(tuple(given), call[0].dtype), Value(tuple(given), INT64)]
