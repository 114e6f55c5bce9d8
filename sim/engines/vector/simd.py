"""A vector of LANES numbers as a Numba type, so that the same scalar-looking equations compile to vector instructions.

`array[row, ALL]` loads or stores a whole row of a (rows, LANES) array; `+ - * / min max abs sqrt`, comparisons and
`select` then work on all lanes at once. With an integer in place of `ALL` (a CUDA thread's lane) the same code is
scalar.

Why not leave it to LLVM's loop vectoriser: it unrolls short loops over 16 lanes before it can vectorise them, and
guards the others with overlap checks and a scalar copy (measured: 4 to 6 times slower for the networks, twice the
compile time).
"""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import lower_constant
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import (
    NativeValue,
    intrinsic,
    lower_builtin,
    models,
    overload,
    register_model,
    typeof_impl,
    unbox,
)

LANES = 16  # one AVX-512 register of float32, two of AVX2, four of NEON


class AllLanes:
    """The type of `ALL`, an index that means every lane."""


ALL = AllLanes()


class AllLanesType(types.Type):
    """Numba's type of `ALL`."""

    def __init__(self) -> None:
        super().__init__(name="AllLanes")


ALL_LANES = AllLanesType()


class Vector(types.Type):
    """LANES numbers of `dtype`."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


class Mask(types.Type):
    """LANES truth values."""

    def __init__(self) -> None:
        super().__init__(name="Mask")


MASK = Mask()
register_model(AllLanesType)(models.OpaqueModel)


@typeof_impl.register(AllLanes)
def _typeof_all(value: Any, context: Any) -> Any:
    return ALL_LANES


@unbox(AllLanesType)
def _unbox_all(kind: Any, value: Any, context: Any) -> Any:
    return NativeValue(context.context.get_dummy_value())


@lower_constant(AllLanesType)
def _constant_all(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(manager.lookup(kind.dtype).get_value_type(), LANES))


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.IntType(1), LANES))


def _vector_of(arguments: Any) -> Any:
    """The vector type among operands that are otherwise numbers; None when there is none."""
    vectors = [a for a in arguments if isinstance(a, Vector)]
    fits = all(isinstance(a, Vector | types.Float | types.Integer) for a in arguments)
    return vectors[0] if vectors and fits else None


def splat(context: Any, builder: Any, vector: Any, kind: Any, value: Any) -> Any:
    """`value` of type `kind` as an LLVM vector: repeated, unless it is one already."""
    if isinstance(kind, Vector):
        return value
    scalar = context.cast(builder, value, kind, vector.dtype)
    element = context.get_value_type(vector)
    one = builder.insert_element(ir.Constant(element, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(element, ir.Undefined), order)


def _binary(symbol: Any, result: Any, emit: Any) -> None:
    """Give `symbol` a meaning on vectors: `emit(builder, left, right)` on LLVM vectors."""

    @infer_global(symbol)
    class _Template(AbstractTemplate):
        def generic(self, arguments: Any, keywords: Any) -> Any:
            vector = _vector_of(arguments) if len(arguments) == 2 else None
            return None if vector is None else signature(result or vector, *arguments)

    def lower(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        vector = _vector_of(sig.args)
        pair = [splat(context, builder, vector, k, v) for k, v in zip(sig.args, arguments, strict=True)]
        return emit(builder, *pair)

    for left, right in ((Vector, Vector), (Vector, types.Number), (types.Number, Vector)):
        lower_builtin(symbol, left, right)(lower)


def _whole(vector: Any) -> bool:
    """Whether an LLVM vector is one of integers."""
    return isinstance(vector.type.element, ir.IntType)


def _unary(symbol: Any, emit: Any) -> None:
    @infer_global(symbol)
    class _Template(AbstractTemplate):
        def generic(self, arguments: Any, keywords: Any) -> Any:
            return signature(arguments[0], arguments[0]) if isinstance(arguments[0], Vector) else None

    def lower(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return emit(builder, arguments[0])

    lower_builtin(symbol, Vector)(lower)


def _called(name: str) -> Any:
    """Emit a call of an LLVM intrinsic on the vector type."""

    def emit(builder: Any, *values: Any) -> Any:
        kind = values[0].type
        suffix = "f64" if isinstance(kind.element, ir.DoubleType) else "f32"
        function = ir.FunctionType(kind, [kind] * len(values))
        declared = cgutils.get_or_insert_function(builder.module, function, f"{name}.v{LANES}{suffix}")
        return builder.call(declared, values)

    return emit


_binary(operator.add, None, lambda b, x, y: b.add(x, y) if _whole(x) else b.fadd(x, y))
_binary(operator.sub, None, lambda b, x, y: b.fsub(x, y))
_binary(operator.mul, None, lambda b, x, y: b.mul(x, y) if _whole(x) else b.fmul(x, y))
_binary(operator.truediv, None, lambda b, x, y: b.fdiv(x, y))
_binary(operator.iadd, None, lambda b, x, y: b.fadd(x, y))
_binary(operator.isub, None, lambda b, x, y: b.fsub(x, y))
_binary(operator.imul, None, lambda b, x, y: b.fmul(x, y))
_binary(min, None, lambda b, x, y: b.select(b.fcmp_ordered("<", y, x), y, x))
_binary(max, None, lambda b, x, y: b.select(b.fcmp_ordered(">", y, x), y, x))
_binary(operator.gt, MASK, lambda b, x, y: b.fcmp_ordered(">", x, y))
_binary(operator.lt, MASK, lambda b, x, y: b.icmp_signed("<", x, y) if _whole(x) else b.fcmp_ordered("<", x, y))
_binary(operator.le, MASK, lambda b, x, y: b.fcmp_ordered("<=", x, y))
_binary(operator.xor, None, lambda b, x, y: b.xor(x, y))
_binary(operator.and_, None, lambda b, x, y: b.and_(x, y))
_binary(operator.or_, None, lambda b, x, y: b.or_(x, y))
_binary(operator.rshift, None, lambda b, x, y: b.lshr(x, y))
_unary(operator.neg, lambda b, x: b.fneg(x))
_unary(abs, _called("llvm.fabs"))
_unary(math.sqrt, _called("llvm.sqrt"))


@intrinsic
def _select(typing_context, mask, yes, no):  # Numba's compiler protocol
    vector = _vector_of((yes, no)) or Vector(yes)  # of two numbers, too

    def generate(context, builder, sig, arguments):
        pair = [splat(context, builder, vector, k, v) for k, v in zip(sig.args[1:], arguments[1:], strict=True)]
        return builder.select(arguments[0], *pair)

    return vector(mask, yes, no), generate


def select(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`; for numbers and for vectors."""
    return yes if condition else no


@overload(select)
def _overload_select(condition, yes, no):
    if isinstance(condition, Mask):
        return lambda condition, yes, no: _select(condition, yes, no)
    return lambda condition, yes, no: yes if condition else no


def _row_pointer(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    """A pointer to the vector at array[row, 0], aligned as one element."""
    view = context.make_array(kind)(context, builder, array)
    shape = cgutils.unpack_tuple(builder, view.shape, 2)
    strides = cgutils.unpack_tuple(builder, view.strides, 2)
    where = [row, context.get_constant(types.intp, 0)]
    first = cgutils.get_item_pointer2(context, builder, view.data, shape, strides, kind.layout, where)
    return builder.bitcast(first, context.get_value_type(Vector(kind.dtype)).as_pointer())


@intrinsic
def load(typing_context, array, row):
    """array[row, :] of a (rows, LANES) array as a vector."""

    def generate(context, builder, sig, arguments):
        pointer = _row_pointer(context, builder, sig.args[0], *arguments)
        return builder.load(pointer, align=sig.args[0].dtype.bitwidth // 8)

    return Vector(array.dtype)(array, types.intp), generate


@intrinsic
def store(typing_context, array, row, value):
    """array[row, :] = value for a (rows, LANES) array."""

    def generate(context, builder, sig, arguments):
        vector = Vector(sig.args[0].dtype)
        pointer = _row_pointer(context, builder, sig.args[0], *arguments[:2])
        whole = splat(context, builder, vector, sig.args[2], arguments[2])
        builder.store(whole, pointer, align=sig.args[0].dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


def _is_row(array: Any, index: Any) -> bool:
    pair = isinstance(index, types.containers.BaseTuple) and len(index) == 2
    return bool(isinstance(array, types.Array) and pair and isinstance(index[1], AllLanesType))


@overload(operator.getitem)
def _overload_getitem(array, index):
    if _is_row(array, index):
        return lambda array, index: load(array, index[0])
    return None


@overload(operator.setitem)
def _overload_setitem(array, index, value):
    if _is_row(array, index):
        return lambda array, index, value: store(array, index[0], value)
    return None


def _converted(dtype: Any, emit: Any) -> Any:
    """From a vector to one of `dtype`: `emit(builder, value, LLVM type)`."""

    @intrinsic
    def convert(typing_context, vector):
        def generate(context, builder, sig, arguments):
            return emit(builder, arguments[0], context.get_value_type(sig.return_type))

        return Vector(dtype)(vector), generate

    return convert


narrowed = _converted(types.uint32, lambda b, x, kind: b.trunc(x, kind))  # the lower half of 64 bits
_to_number = _converted(types.float32, lambda b, x, kind: b.sitofp(x, kind))
_to_whole = _converted(types.int32, lambda b, x, kind: b.fptosi(x, kind))
bits_of = _converted(types.uint32, lambda b, x, kind: b.bitcast(x, kind))
from_bits = _converted(types.float32, lambda b, x, kind: b.bitcast(x, kind))


@intrinsic
def _flags(typing_context, mask):
    def generate(context, builder, sig, arguments):
        return builder.zext(builder.bitcast(arguments[0], ir.IntType(LANES)), ir.IntType(64))

    return types.int64(mask), generate


@intrinsic
def repeated(typing_context, array, index):  # Numba's compiler protocol
    """The number at that place in the memory of an array (vectors, LANES), in all lanes."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        number = builder.load(builder.gep(view.data, [arguments[1]]))
        kind = ir.VectorType(number.type, LANES)
        one = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), order)

    return Vector(array.dtype)(array, types.intp), generate


@intrinsic
def _looked_up_pair(typing_context, array, index):  # Numba's compiler protocol
    """Both numbers in one load of 32 bits per lane."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        kind = ir.VectorType(ir.IntType(32), LANES)
        both, half = ir.Constant(kind, ir.Undefined), ir.Constant(kind, [16] * LANES)
        for lane in range(LANES):
            at = ir.Constant(kind.element, lane)
            place = builder.sext(builder.extract_element(arguments[1], at), ir.IntType(64))
            pointer = builder.bitcast(builder.gep(view.data, [place]), kind.element.as_pointer())
            both = builder.insert_element(both, builder.load(pointer, align=2), at)
        pair = builder.ashr(builder.shl(both, half), half), builder.ashr(both, half)
        return context.make_tuple(builder, signature.return_type, pair if sys.byteorder == "little" else pair[::-1])

    return types.containers.UniTuple(Vector(types.int32), 2)(array, index), generate


def number(x: Any) -> Any:
    """Whole numbers of 31 bits as float32."""
    return np.float32(x)


def whole(x: Any) -> Any:
    """Numbers without what is behind their point, as int32, which they must fit."""
    return np.int32(x)


def flags(mask: Any) -> Any:
    """A bit for each lane, the first one the lowest; a scalar's truth."""
    return mask


def looked_up_pair(array: Any, index: Any) -> Any:
    """array[index] and array[index + 1] of int16 (n,), for a vector of indices or for one, all within it."""
    return array[index], array[index + 1]


@overload(number)
def _overload_number(x):
    return (lambda x: _to_number(x)) if isinstance(x, Vector) else (lambda x: np.float32(x))


@overload(whole)
def _overload_whole(x):
    return (lambda x: _to_whole(x)) if isinstance(x, Vector) else (lambda x: np.int32(x))


@overload(flags)
def _overload_flags(mask):
    return (lambda mask: _flags(mask)) if isinstance(mask, Mask) else (lambda mask: mask)


@overload(looked_up_pair)
def _overload_looked_up_pair(array, index):
    if isinstance(index, Vector):
        return (lambda array, index: _looked_up_pair(array, index)) if array.dtype == types.int16 else None
    return lambda array, index: (array[index], array[index + 1])


def _exchange(distance: int) -> Any:
    """Lanes whose numbers differ by that power of two in each other's place."""

    @intrinsic
    def exchanged(typing_context, vector):
        def generate(context, builder, sig, arguments):
            order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [k ^ distance for k in range(LANES)])
            return builder.shuffle_vector(arguments[0], arguments[0], order)

        return vector(vector), generate

    return exchanged


exchanged_1, exchanged_2, exchanged_4 = _exchange(1), _exchange(2), _exchange(4)


@intrinsic
def total(typing_context, vector):
    """The sum over lanes."""

    def generate(context, builder, sig, arguments):
        value = arguments[0]
        width = LANES // 2
        while width:  # add the upper half to the lower one
            order = [(k + width) % LANES for k in range(LANES)]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), order)
            value = builder.fadd(value, builder.shuffle_vector(value, value, mask))
            width //= 2
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return vector.dtype(vector), generate
