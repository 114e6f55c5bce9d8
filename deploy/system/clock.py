"""The one clock by which data age and deadlines pass in real time."""

from __future__ import annotations

import time


def boottime() -> float:
    """s, monotonic, of which a computer's sleep is a part where its system says so (Linux).

    Python's own monotonic clocks stand still meanwhile: after it wakes up all that it knows would look fresh.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
