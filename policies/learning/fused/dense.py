"""Products of a dense layer, for samples one after the other: forward, and the gradients of inputs and weights.

An array is (vectors, LANES); a sample, and what a layer makes of one input, are whole vectors that follow one another.
So all three products are the same small one: eight samples (or inputs) times two vectors stay in registers, and a
sample that is drawn at random is one piece of memory.
"""

from __future__ import annotations

import math

import numpy as np

from sim.engines.vector.activations import tanh
from sim.engines.vector.blocks import part
from sim.engines.vector.simd import ALL, LANES, repeated, select
from sim.engines.vector.simd import total as total_

NONE, TANH, RELU = range(3)  # activations
TILE = 8  # samples, or inputs, that are in registers together
ZERO, ONE = np.float32(0.0), np.float32(1.0)
EPSILON = np.float32(1e-5)  # of a variance


@part
def product(w, weight, inputs, outs, x, first, width, y, place, count):
    """y (count, outs) += x (count, inputs) times w (inputs, outs).

    Arrays of vectors, in which x begins at `first`, with `width` of them per sample, y at `place`, w at `weight`.
    `count` is a multiple of TILE.
    """
    step = width * LANES
    for s in range(0, count, TILE):
        i0 = first * LANES + s * step
        i1, i2, i3 = i0 + step, i0 + 2 * step, i0 + 3 * step
        i4, i5, i6, i7 = i0 + 4 * step, i0 + 5 * step, i0 + 6 * step, i0 + 7 * step
        o0 = place + s * outs
        o1, o2, o3 = o0 + outs, o0 + 2 * outs, o0 + 3 * outs
        o4, o5, o6, o7 = o0 + 4 * outs, o0 + 5 * outs, o0 + 6 * outs, o0 + 7 * outs
        for v in range(0, outs - 1, 2):
            a0, a1, a2, a3 = y[o0 + v, ALL], y[o1 + v, ALL], y[o2 + v, ALL], y[o3 + v, ALL]
            a4, a5, a6, a7 = y[o4 + v, ALL], y[o5 + v, ALL], y[o6 + v, ALL], y[o7 + v, ALL]
            b0, b1, b2, b3 = y[o0 + v + 1, ALL], y[o1 + v + 1, ALL], y[o2 + v + 1, ALL], y[o3 + v + 1, ALL]
            b4, b5, b6, b7 = y[o4 + v + 1, ALL], y[o5 + v + 1, ALL], y[o6 + v + 1, ALL], y[o7 + v + 1, ALL]
            at = weight + v
            for j in range(inputs):
                u, t = w[at, ALL], w[at + 1, ALL]
                at += outs
                c = repeated(x, i0 + j)
                a0 += c * u
                b0 += c * t
                c = repeated(x, i1 + j)
                a1 += c * u
                b1 += c * t
                c = repeated(x, i2 + j)
                a2 += c * u
                b2 += c * t
                c = repeated(x, i3 + j)
                a3 += c * u
                b3 += c * t
                c = repeated(x, i4 + j)
                a4 += c * u
                b4 += c * t
                c = repeated(x, i5 + j)
                a5 += c * u
                b5 += c * t
                c = repeated(x, i6 + j)
                a6 += c * u
                b6 += c * t
                c = repeated(x, i7 + j)
                a7 += c * u
                b7 += c * t
            y[o0 + v, ALL], y[o1 + v, ALL], y[o2 + v, ALL], y[o3 + v, ALL] = a0, a1, a2, a3
            y[o4 + v, ALL], y[o5 + v, ALL], y[o6 + v, ALL], y[o7 + v, ALL] = a4, a5, a6, a7
            y[o0 + v + 1, ALL], y[o1 + v + 1, ALL], y[o2 + v + 1, ALL], y[o3 + v + 1, ALL] = b0, b1, b2, b3
            y[o4 + v + 1, ALL], y[o5 + v + 1, ALL], y[o6 + v + 1, ALL], y[o7 + v + 1, ALL] = b4, b5, b6, b7
        if outs % 2:
            v = outs - 1
            a0, a1, a2, a3 = y[o0 + v, ALL], y[o1 + v, ALL], y[o2 + v, ALL], y[o3 + v, ALL]
            a4, a5, a6, a7 = y[o4 + v, ALL], y[o5 + v, ALL], y[o6 + v, ALL], y[o7 + v, ALL]
            at = weight + v
            for j in range(inputs):
                u = w[at, ALL]
                at += outs
                a0 += repeated(x, i0 + j) * u
                a1 += repeated(x, i1 + j) * u
                a2 += repeated(x, i2 + j) * u
                a3 += repeated(x, i3 + j) * u
                a4 += repeated(x, i4 + j) * u
                a5 += repeated(x, i5 + j) * u
                a6 += repeated(x, i6 + j) * u
                a7 += repeated(x, i7 + j) * u
            y[o0 + v, ALL], y[o1 + v, ALL], y[o2 + v, ALL], y[o3 + v, ALL] = a0, a1, a2, a3
            y[o4 + v, ALL], y[o5 + v, ALL], y[o6 + v, ALL], y[o7 + v, ALL] = a4, a5, a6, a7


@part
def weight_product(g, place, outs, x, first, width, inputs, w, weight, count):
    """w (inputs, outs) += the sum over samples of x (count, inputs) times g (count, outs); see `product`.

    As many `inputs` as are whole multiples of TILE; x and w must have room for them.
    """
    step = width * LANES
    for j in range(0, inputs, TILE):
        o0 = weight + j * outs
        o1, o2, o3 = o0 + outs, o0 + 2 * outs, o0 + 3 * outs
        o4, o5, o6, o7 = o0 + 4 * outs, o0 + 5 * outs, o0 + 6 * outs, o0 + 7 * outs
        for v in range(0, outs - 1, 2):
            a0, a1, a2, a3 = w[o0 + v, ALL], w[o1 + v, ALL], w[o2 + v, ALL], w[o3 + v, ALL]
            a4, a5, a6, a7 = w[o4 + v, ALL], w[o5 + v, ALL], w[o6 + v, ALL], w[o7 + v, ALL]
            b0, b1, b2, b3 = w[o0 + v + 1, ALL], w[o1 + v + 1, ALL], w[o2 + v + 1, ALL], w[o3 + v + 1, ALL]
            b4, b5, b6, b7 = w[o4 + v + 1, ALL], w[o5 + v + 1, ALL], w[o6 + v + 1, ALL], w[o7 + v + 1, ALL]
            at, i = place + v, first * LANES + j
            for _ in range(count):
                u, t = g[at, ALL], g[at + 1, ALL]
                c = repeated(x, i + 0)
                a0 += c * u
                b0 += c * t
                c = repeated(x, i + 1)
                a1 += c * u
                b1 += c * t
                c = repeated(x, i + 2)
                a2 += c * u
                b2 += c * t
                c = repeated(x, i + 3)
                a3 += c * u
                b3 += c * t
                c = repeated(x, i + 4)
                a4 += c * u
                b4 += c * t
                c = repeated(x, i + 5)
                a5 += c * u
                b5 += c * t
                c = repeated(x, i + 6)
                a6 += c * u
                b6 += c * t
                c = repeated(x, i + 7)
                a7 += c * u
                b7 += c * t
                at += outs
                i += step
            w[o0 + v, ALL], w[o1 + v, ALL], w[o2 + v, ALL], w[o3 + v, ALL] = a0, a1, a2, a3
            w[o4 + v, ALL], w[o5 + v, ALL], w[o6 + v, ALL], w[o7 + v, ALL] = a4, a5, a6, a7
            w[o0 + v + 1, ALL], w[o1 + v + 1, ALL], w[o2 + v + 1, ALL], w[o3 + v + 1, ALL] = b0, b1, b2, b3
            w[o4 + v + 1, ALL], w[o5 + v + 1, ALL], w[o6 + v + 1, ALL], w[o7 + v + 1, ALL] = b4, b5, b6, b7
        if outs % 2:
            v = outs - 1
            a0, a1, a2, a3 = w[o0 + v, ALL], w[o1 + v, ALL], w[o2 + v, ALL], w[o3 + v, ALL]
            a4, a5, a6, a7 = w[o4 + v, ALL], w[o5 + v, ALL], w[o6 + v, ALL], w[o7 + v, ALL]
            at, i = place + v, first * LANES + j
            for _ in range(count):
                u = g[at, ALL]
                a0 += repeated(x, i + 0) * u
                a1 += repeated(x, i + 1) * u
                a2 += repeated(x, i + 2) * u
                a3 += repeated(x, i + 3) * u
                a4 += repeated(x, i + 4) * u
                a5 += repeated(x, i + 5) * u
                a6 += repeated(x, i + 6) * u
                a7 += repeated(x, i + 7) * u
                at += outs
                i += step
            w[o0 + v, ALL], w[o1 + v, ALL], w[o2 + v, ALL], w[o3 + v, ALL] = a0, a1, a2, a3
            w[o4 + v, ALL], w[o5 + v, ALL], w[o6 + v, ALL], w[o7 + v, ALL] = a4, a5, a6, a7


@part
def fill(w, bias, outs, y, place, count):
    """y (count, outs) = the vectors of w from `bias` on."""
    at = place
    for _ in range(count):
        for v in range(outs):
            y[at, ALL] = w[bias + v, ALL]
            at += 1


@part
def clear(y, first, count):
    """Vectors of zeros."""
    for k in range(first, first + count):
        y[k, ALL] = ZERO


@part
def total(g, place, outs, w, bias, count):
    """The vectors of w from `bias` on += the sum over samples of g (count, outs)."""
    for v in range(outs):
        at, a = place + v, w[bias + v, ALL]
        for _ in range(count):
            a += g[at, ALL]
            at += outs
        w[bias + v, ALL] = a


@part
def activate(kind, y, first, count):
    """The activation of so many vectors, in place."""
    if kind == TANH:
        for k in range(first, first + count):
            y[k, ALL] = tanh(y[k, ALL])
    if kind == RELU:
        for k in range(first, first + count):
            y[k, ALL] = max(y[k, ALL], ZERO)


@part
def slope(kind, y, first, g, place, count):
    """g times the derivative of the activation that gave y, in place."""
    if kind == TANH:
        for k in range(count):
            z = y[first + k, ALL]
            g[place + k, ALL] = g[place + k, ALL] * (ONE - z * z)
    if kind == RELU:
        for k in range(count):
            g[place + k, ALL] = select(y[first + k, ALL] > ZERO, g[place + k, ALL], ZERO)


@part
def normalise(y, first, outs, outputs, count, normal, factor, place):
    """Let the outputs of each sample have mean 0 and variance 1, in place and in `normal`; by which factor."""
    share = ONE / np.float32(outputs)
    flat = y.reshape(-1)
    for s in range(count):
        at = first + s * outs
        sum_ = y[at, ALL]
        for v in range(1, outs):
            sum_ += y[at + v, ALL]
        mean = total_(sum_) * share
        square = sum_ * ZERO
        for v in range(outs):
            z = y[at + v, ALL] - mean
            square += z * z
        more = np.float32(outs * LANES - outputs)  # lanes that hold nothing
        f = ONE / np.float32(math.sqrt((total_(square) - more * mean * mean) * share + EPSILON))
        factor[place + s] = f
        for v in range(outs):
            y[at + v, ALL] = (y[at + v, ALL] - mean) * f
        for k in range(at * LANES + outputs, (at + outs) * LANES):
            flat[k] = ZERO
        for v in range(outs):
            normal[at + v, ALL] = y[at + v, ALL]


@part
def normal_slope(normal, factor, place, first, outs, outputs, count, g):
    """The gradient of what was normalised from that of what became of it, in place."""
    share = ONE / np.float32(outputs)
    flat = g.reshape(-1)
    for s in range(count):
        at, f = first + s * outs, factor[place + s]
        one, along = g[at, ALL], g[at, ALL] * normal[at, ALL]
        for v in range(1, outs):
            one += g[at + v, ALL]
            along += g[at + v, ALL] * normal[at + v, ALL]
        mean, tilt = total_(one) * share, total_(along) * share
        for v in range(outs):
            g[at + v, ALL] = f * (g[at + v, ALL] - mean - normal[at + v, ALL] * tilt)
        for k in range(at * LANES + outputs, (at + outs) * LANES):
            flat[k] = ZERO
