"""tanh as whole numbers for the product that follows: straight lines between the points of a table, as C computes it.

The lines are continuous, so that a small change of x makes a small change of the result; at most `WORST` from tanh.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

TANH = "RoundedTanh"  # the operator
ONE = "one"  # its attribute, and that of a product after it: the whole number that stands for 1
LARGEST = 8127  # of those
REACH, LINES = 8, 16  # |x| in the table; lines per unit of x
FRACTION = 12  # bits between two points
WORST = 2.5e-4
_VALUE = 127 * 2**8  # what stands for 1 in the table


@cache
def table() -> NDArray[np.uint32]:
    """Per line a word: how much a step adds (16 bits, 8 times as fine), and minus the value at its beginning."""
    x = np.arange(-REACH * LINES, REACH * LINES + 1) / LINES
    y = np.tanh(x)
    bend = -2.0 * y * (1.0 - y * y)  # the second derivative: chords lie inside, so points go half of that outside
    points = np.rint(_VALUE * (y - bend / (16.0 * LINES**2))).clip(-_VALUE, _VALUE).astype(np.int64)
    slope = 8 * np.diff(points)
    return ((-points[:-1] & 0xFFFF) << 16 | slope & 0xFFFF).astype(np.uint32)


def factor(one: int) -> int:
    """By which `policy_tanh_rounded` multiplies, so that `one` stands for 1."""
    return one * 2**32 // (_VALUE // 2)


def whole(x: NDArray[Any], one: int) -> NDArray[np.int64]:
    """`one` times tanh(x), in the steps of `policy_tanh_rounded`."""
    with np.errstate(over="ignore"):
        scaled = np.asarray(x, np.float32) * np.float32(2.0 ** (FRACTION + 4))
    most = REACH * LINES << FRACTION
    at = np.nan_to_num(np.trunc(scaled).clip(-most, most - 1), nan=0.0).astype(np.int64)
    word = table()[(at >> FRACTION) + REACH * LINES].astype(np.int64)
    value, slope = (half.astype(np.uint16).astype(np.int16).astype(np.int64) for half in (word >> 16, word & 0xFFFF))
    fine = slope * (at & (1 << FRACTION) - 1) - (value << 15)
    made: NDArray[np.int64] = (fine * factor(one) >> 32) + (1 << 15) >> 16
    return made


def rounded(x: NDArray[Any], one: int) -> NDArray[np.float32]:
    """What the product sees: those whole numbers times the scale."""
    return whole(x, one).astype(np.float32) * (np.float32(1.0) / np.float32(one))
