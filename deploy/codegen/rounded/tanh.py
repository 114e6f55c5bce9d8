"""tanh as whole numbers for the product that follows: straight lines between the points of a table, as C computes it.

The lines are continuous, so that a small change of x makes a small change of 16 bits; at most `WORST` from tanh.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS8, BITS16 = "Tanh8", "Tanh16"  # the operators
LARGEST = {BITS8: 127, BITS16: 16256}  # the whole number that stands for 1
SHIFT = {BITS8: 23, BITS16: 16}  # from those of `_whole`
LIMIT, LINES = 8, 16  # |x| in the table; lines per unit of x
FRACTION = 12  # bits between two points
VALUE = 127 * 256  # what stands for 1 in the table
WORST = 2.5e-4


@cache
def table() -> NDArray[np.uint32]:
    """Per line a word: how much a step adds (16 bits, 8 times as fine), and minus the value at its beginning."""
    x = np.arange(-LIMIT * LINES, LIMIT * LINES + 1) / LINES
    y = np.tanh(x)
    bend = -2.0 * y * (1.0 - y * y)  # the second derivative: chords lie inside, so points go half of that outside
    points = np.rint(VALUE * (y - bend / (16.0 * LINES**2))).clip(-VALUE, VALUE).astype(np.int64)
    slope = 8 * np.diff(points)
    return ((-points[:-1] & 0xFFFF) << 16 | slope & 0xFFFF).astype(np.uint32)


def _whole(x: NDArray[Any]) -> NDArray[np.int64]:
    """127 * 2^23 tanh(x)."""
    scaled = np.asarray(x, np.float32) * np.float32(2.0 ** (FRACTION + 4))
    most = LIMIT * LINES << FRACTION
    at = np.nan_to_num(np.trunc(scaled).clip(-most, most - 1), nan=0.0).astype(np.int64)
    word = table()[(at >> FRACTION) + LIMIT * LINES].astype(np.int64)
    value, slope = (half.astype(np.uint16).astype(np.int16).astype(np.int64) for half in (word >> 16, word & 0xFFFF))
    return slope * (at & (1 << FRACTION) - 1) - (value << 15)


def rounded(operator: str, x: NDArray[Any]) -> NDArray[np.float32]:
    """What the product sees: whole numbers times 1 / LARGEST."""
    shift = SHIFT[operator]
    whole = _whole(x) + (1 << shift - 1) >> shift
    return whole.astype(np.float32) * (np.float32(1.0) / np.float32(LARGEST[operator]))
