"""Weights and inputs as whole numbers of steps, however they are packed: how many, and how large a step is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
MOST, MOST_INPUT, MOST_SUM = 127, 2**15 - 1, 2**31 - 1  # of a weight, an input, a sum


def scale_of(weight: Floats) -> Floats:
    """The step of each row of W (out, in)."""
    scale: Floats = (np.abs(weight).max(axis=1).clip(1e-30) / MOST).astype(np.float32)
    return scale


def steps_of(weight: Floats) -> Floats:
    """W (out, in) in those steps, not yet rounded."""
    steps: Floats = weight / scale_of(weight)[:, None]
    return steps


def bytes_limit(inputs: int) -> int:
    """The largest whole number of 16 bits that inputs may be, so that sums fit 32 bits, whatever the weights are."""
    return min(MOST_INPUT, MOST_SUM // (MOST * inputs))
