"""Angles for vectors, without branches: short odd polynomials, fitted by reweighted least squares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.extending import overload

from sim.engines.vector.blocks import inlined
from sim.engines.vector.simd import Vector, bits_of, from_bits, select

ZERO, ONE = np.float32(0.0), np.float32(1.0)
PI, QUARTER = np.float32(math.pi), np.float32(0.5 * math.pi)
SIGN = np.uint32(0x80000000)
# Of the sine within a quarter of a turn, and of the arc tangent within 1.
S1, S3, S5, S7 = map(np.float32, (9.99996616e-01, -1.66648284e-01, 8.30632524e-03, -1.83636542e-04))
T1, T3, T5 = map(np.float32, (0.99997722, -0.33262283, 0.19354038))
T7, T9, T11 = map(np.float32, (-0.11642648, 0.05264735, -0.01171914))


def signed(size: Any, x: Any) -> Any:
    """A positive number with the sign of x."""
    return -size if x < ZERO else size


@overload(signed)
def _overload_signed(size, x):
    if isinstance(x, Vector):
        return lambda size, x: from_bits(bits_of(size) | (bits_of(x) & SIGN))
    return lambda size, x: -size if x < ZERO else size


@inlined
def quarter_sine(x):
    """The sine of -pi / 2 to pi / 2 within 8e-7."""
    s = x * x
    return x * (S1 + s * (S3 + s * (S5 + s * S7)))


@inlined
def upper_sine(x):
    """The sine of 0 to pi within 1e-6."""
    return quarter_sine(min(x, PI - x))


@inlined
def sine(x):
    """The sine of -pi to pi within 1e-6."""
    return signed(upper_sine(abs(x)), x)


@inlined
def cosine(x):
    """The cosine of -pi to pi within 1e-6."""
    return quarter_sine(QUARTER - abs(x))


@inlined
def _unfolded(y, x):
    """The arc tangent of x >= 0, of which y is the number or its inverse, whichever is at most 1."""
    s = y * y
    y = y * (T1 + s * (T3 + s * (T5 + s * (T7 + s * (T9 + s * T11)))))
    return select(x > ONE, QUARTER - y, y)


@inlined
def upper_arctans(x, y):
    """The arc tangents of two numbers that are not negative, within 2e-6, in one division."""
    a, b = max(x, ONE), max(y, ONE)
    inverse = ONE / (a * b)
    return _unfolded(min(x, inverse * b), x), _unfolded(min(y, inverse * a), y)


@inlined
def arctan(x):
    """The arc tangent within 2e-6, of any number."""
    size = abs(x)
    return signed(_unfolded(min(size, ONE / max(size, ONE)), size), x)
