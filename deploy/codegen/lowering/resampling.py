"""Convolutions in groups and backwards, and other sizes of an image, as plain convolutions, moves and sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from deploy.codegen.lowering.parts import AnyArray, Parts, Shapes, UnsupportedError


def grouped(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
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


def transposed(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """ConvTranspose: a plain convolution with turned kernels over the image with zeros between its pixels."""
    for name in ("auto_pad", "output_shape"):
        if attributes.get(name, b"NOTSET") != b"NOTSET":
            raise UnsupportedError(f"has {name}, which is not supported")
    x, weight = shapes[parts.given(0)], parts.data(1)  # (C, M / groups, *kernel)
    rank, groups = len(x) - 2, int(attributes.get("group", 1))
    ones = [1] * rank
    strides, dilations = (list(attributes.get(name, ones)) for name in ("strides", "dilations"))
    pads, more = attributes.get("pads", [0] * 2 * rank), attributes.get("output_padding", [0] * rank)
    reach = [(k - 1) * d for k, d in zip(weight.shape[2:], dilations, strict=True)]
    spread = _spread(parts, parts.given(0), x, strides)
    # Between pixels there are now stride - 1 zeros, and as many after the last one.
    first = [reach[k] - pads[k] for k in range(rank)]
    last = [reach[k] - pads[k + rank] + more[k] - (strides[k] - 1) for k in range(rank)]
    padded = parts.add("Pad", spread, parts.constant([0, 0, *first, 0, 0, *last], np.int64))
    per = weight.shape[1]
    kernels = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(groups * per, -1, *weight.shape[2:])
    turned = kernels[(slice(None), slice(None), *[slice(None, None, -1)] * rank)]
    bias = [parts.given(2)] if parts.given(2) else []
    parts.add("Conv", padded, parts.constant(turned), *bias, group=groups, dilations=dilations, to=outputs[0])


def _spread(parts: Parts, x: str, shape: tuple[int, ...], strides: list[int]) -> str:
    """With stride - 1 zeros after every pixel."""
    if set(strides) == {1}:
        return x
    apart = parts.reshape(x, *shape[:2], *(k for size in shape[2:] for k in (size, 1)))
    more = [0, 0, *(k for stride in strides for k in (0, stride - 1))]
    wide = parts.add("Pad", apart, parts.constant([0] * len(more) + more, np.int64))
    return parts.reshape(wide, *shape[:2], *(size * s for size, s in zip(shape[2:], strides, strict=True)))


def resize(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Axis by axis: nearest pixels are moved, between pixels each is a sum of a few with constant weights."""
    shape, x = shapes[parts.given(0)], parts.given(0)
    only = {name: value for name, value in attributes.items() if name not in ("axes", "keep_aspect_ratio_policy")}
    if attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        raise UnsupportedError("crops, which is not supported")
    axes = [int(axis) % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    sizes = parts.data(3).tolist() if parts.given(3) else []
    scales = [] if sizes else parts.data(2).tolist()
    made = list(shape)
    for k, axis in enumerate(axes):
        size = int(sizes[k]) if sizes else math.floor(shape[axis] * scales[k])
        if size != shape[axis]:
            weights = _weights(shape[axis], size, scales[k] if scales else None, only)
            x = _sampled(parts, x, axis, weights, len(shape))
            made[axis] = size
    parts.reshape(x, *made, to=outputs[0])


def _weights(given: int, size: int, scale: float | None, attributes: Mapping[str, Any]) -> AnyArray:
    """(size, given): what each new pixel takes of the old ones, by ONNX's reference implementation."""
    from deploy.codegen.onnx_graph import applied  # which imports this module's table

    pixels = np.eye(given, dtype=np.float32)[:, None]
    scales = None if scale is None else np.array([1.0, 1.0, scale], np.float32)
    sizes = np.array([given, 1, size]) if scale is None else None
    return applied("Resize", [pixels, None, scales, sizes], attributes).reshape(given, size).T


def _sampled(parts: Parts, x: str, axis: int, weights: AnyArray, rank: int) -> str:
    """sum of w_t times the pixels i_t, for t = 0 .. the most that one needs."""
    taps = int((weights != 0.0).sum(axis=1).max(initial=1))
    order = np.argsort(weights == 0.0, axis=1, kind="stable")[:, :taps]
    total = ""
    for k in range(taps):
        taken = parts.add("Gather", x, parts.constant(order[:, k], np.int64), axis=axis)
        factor = np.take_along_axis(weights, order[:, k : k + 1], 1)
        if (factor != 1.0).any():
            taken = parts.add("Mul", taken, parts.constant(factor.reshape([-1] + [1] * (rank - 1 - axis))))
        total = parts.add("Add", total, taken) if total else taken
    return total
