"""What was received for a signal or command, as float32 values of its shape, whatever it was."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.spec import Signal


def received(signal: Signal, given: Any, n: int) -> tuple[NDArray[Any], bool]:
    """The values (n, *shape), and whether that is what was given; NaN where nothing can be made of it."""
    shape = (n, *signal.shape)
    if type(given) is np.ndarray and given.dtype == np.float32 and given.shape == shape:
        return given, True
    try:
        value = np.asarray(given)
    except ValueError:  # rows of different lengths
        value = np.asarray(None)
    if value.shape != shape or value.dtype.kind not in "fiub":
        return np.full(shape, np.nan, np.float32), given is None  # then its age, which is infinite, says so
    if (value.dtype.itemsize > 4 and value.dtype.kind == "f") or value.dtype.kind == "b":
        with np.errstate(over="ignore"):  # beyond float32 it becomes infinite, as the policy would see it
            value = value.astype(np.float32)
    return value, True
