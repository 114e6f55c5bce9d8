"""Quantised graphs (QDQ, QLinear and integer operators) as products and roundings of whole numbers.

Whole numbers are floats in C, so bytes are, too: products of bytes add up exactly below 2^24, which is 518 inputs of
the largest ones; beyond, a sum's last bits are rounded. The standard: onnx.ai/onnx/operators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from deploy.codegen.lowering.parts import AnyArray, Parts, Shapes, UnsupportedError

BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
UNSIGNED, SIGNED = 2, 3  # TensorProto.DataType


def _along(values: AnyArray, rank: int, axis: int) -> AnyArray:
    """Of each slice along an axis, as it broadcasts; one number for all stays one."""
    if values.size == 1:
        return values.reshape(())
    if values.ndim != 1:
        raise UnsupportedError("has scales per block, which is not supported")
    return values.reshape([-1 if k == axis % rank else 1 for k in range(rank)])


def _zero(parts: Parts, index: int) -> AnyArray:
    """A zero point; 0 where it was left out."""
    return parts.data(index) if parts.given(index) else np.zeros((), np.uint8)


def _rounded(parts: Parts, x: str, zero: str, kind: np.dtype[Any], to: str) -> None:
    """To the nearest whole number, ties to the even one, within what a byte holds."""
    low, high = (parts.constant(k) for k in (np.iinfo(kind).min, np.iinfo(kind).max))
    parts.add("Clip", parts.add("Add", parts.add("Round", x), zero), low, high, to=to)


def _centred(parts: Parts, index: int, zero: int, rank: int, axis: int) -> str:
    """An input minus its zero point; constant where the input is."""
    x = parts.given(index)
    if parts.known(index):
        x = parts.constant(parts.data(index))
    if not parts.given(zero):
        return x
    if not parts.known(zero):  # of what DynamicQuantizeLinear made
        return parts.add("Sub", x, parts.given(zero))
    shift = _along(parts.data(zero), rank, axis).astype(np.float32)
    if parts.known(index):
        return parts.constant(parts.data(index).astype(np.float32) - shift)
    return parts.add("Sub", x, parts.constant(shift)) if np.any(shift) else x


def quantize_linear(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """x / scale, rounded, plus the zero point."""
    kind = _zero(parts, 2).dtype
    if not parts.given(2) and attributes.get("output_dtype", 0) in (UNSIGNED, SIGNED):
        kind = BYTES[attributes["output_dtype"] == SIGNED]
    if kind not in BYTES:
        raise UnsupportedError(f"makes {kind}; int8 and uint8 are supported")
    rank, axis = len(shapes[parts.given(0)]), int(attributes.get("axis", 1))
    scale, zero = (parts.constant(_along(v, rank, axis)) for v in (parts.data(1), _zero(parts, 2)))
    _rounded(parts, parts.add("Div", parts.given(0), scale), zero, kind, outputs[0])


def dequantize_linear(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """(x - zero point) times the scale."""
    rank, axis = len(shapes[parts.given(0)]), int(attributes.get("axis", 1))
    scale = parts.constant(_along(parts.data(1), rank, axis))
    parts.add("Mul", _centred(parts, 0, 2, rank, axis), scale, to=outputs[0])


def dynamic_quantize_linear(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """To uint8, with the scale and the zero point of the numbers that are there."""
    x, none, most = parts.given(0), parts.constant(0.0), parts.constant(255.0)
    low = parts.add("Min", parts.add("ReduceMin", x, keepdims=0), none)
    high = parts.add("Max", parts.add("ReduceMax", x, keepdims=0), none)
    step = parts.add("Div", parts.add("Sub", high, low), most)
    nothing = parts.add("Equal", step, none)  # of zeros alone any scale does; onnxruntime takes 1
    scale = parts.add("Where", nothing, parts.constant(1.0), step, to=outputs[1])
    zero = parts.add("Neg", parts.add("Div", low, scale))
    _rounded(parts, zero, none, BYTES[0], outputs[2])
    _rounded(parts, parts.add("Div", x, scale), outputs[2], BYTES[0], outputs[0])


def matmul_integer(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """The product of what is left of both when their zero points are taken away."""
    left, right = (len(shapes[parts.given(k)]) for k in (0, 1))
    if parts.known(2) and parts.data(2).size > 1:
        raise UnsupportedError("has a zero point per row, which is not supported")
    x, y = _centred(parts, 0, 2, left, -2), _centred(parts, 1, 3, right, -1)
    parts.add("MatMul", x, y, to=outputs[0])


def conv_integer(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """The same as a convolution."""
    rank = len(shapes[parts.given(1)])
    parts.add("Conv", _centred(parts, 0, 2, rank, 1), _centred(parts, 1, 3, rank, 0), to=outputs[0], **attributes)


def qlinear_matmul(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """A product of bytes, scaled and rounded to a byte."""
    left, right = (len(shapes[parts.given(k)]) for k in (0, 3))
    if math.prod(parts.data(1).shape) > 1:
        raise UnsupportedError("has a scale per row, which is not supported")
    total = parts.add("MatMul", _centred(parts, 0, 2, left, -2), _centred(parts, 3, 5, right, -1))
    scale = parts.data(1).reshape(()) * parts.data(4).reshape(-1) / parts.data(6).reshape(())
    _scaled(parts, total, scale, outputs[0])


def qlinear_conv(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """The same as a convolution, with a bias in the sum's own unit."""
    rank = len(shapes[parts.given(3)])
    bias = (parts.constant(parts.data(8)),) if parts.given(8) else ()
    x, weight = _centred(parts, 0, 2, rank, 1), _centred(parts, 3, 5, rank, 0)
    scale = parts.data(1).reshape(()) * parts.data(4).reshape(-1) / parts.data(6).reshape(())
    _scaled(parts, parts.add("Conv", x, weight, *bias, **attributes), _along(scale, rank, 1), outputs[0])


def _scaled(parts: Parts, total: str, scale: AnyArray, to: str) -> None:
    zero = parts.data(7)
    number = scale.reshape(()) if scale.size == 1 else scale
    product = parts.add("Mul", total, parts.constant(number))
    _rounded(parts, product, parts.constant(zero.reshape(())), zero.dtype, to)


QUANTISED = {
    "ConvInteger": conv_integer,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "MatMulInteger": matmul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "QuantizeLinear": quantize_linear,
}
