"""Vectors in half precision, in which a replay takes half the memory: as arrays (vectors, LANES) of their bits."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sim.engines.vector.simd import LANES, Vector

HALVES, FLOATS = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(ir.FloatType(), LANES)


def _place(context, builder, kind, array, row):
    """A pointer to the vector in that row of an array of bits."""
    view = context.make_array(kind)(context, builder, array)
    first = builder.gep(view.data, [builder.mul(row, ir.Constant(row.type, LANES))])
    return builder.bitcast(first, HALVES.as_pointer())


@intrinsic
def widened(typing_context, bits, row):  # Numba's compiler protocol
    """bits[row] as a vector of float32."""

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature.args[0], *arguments)
        return builder.fpext(builder.load(place, align=2), FLOATS)

    return Vector(types.float32)(bits, types.intp), generate


@intrinsic
def narrow(typing_context, bits, row, vector):
    """bits[row] = a vector of float32, rounded."""

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature.args[0], *arguments[:2])
        builder.store(builder.fptrunc(arguments[2], HALVES), place, align=2)
        return context.get_dummy_value()

    return types.void(bits, types.intp, Vector(types.float32)), generate
