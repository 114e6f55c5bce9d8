"""The one clock by which data age and deadlines pass in real time."""

from __future__ import annotations

import time

CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """s, monotonic, of which a computer's sleep is a part (on Linux; elsewhere as its CLOCK_MONOTONIC says).

    Python's own monotonic clocks stand still meanwhile: after it wakes up all that it knows would look fresh.
    """
    return time.clock_gettime(CLOCK)
