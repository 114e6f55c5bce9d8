"""A computer that sleeps: CLOCK_BOOTTIME and the time of day go on, Python's monotonic clocks stand still."""

import time

import pytest


class Sleep:
    """Call it: the computer has slept for so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if not hasattr(time, "CLOCK_BOOTTIME"):
            pytest.skip("no clock of this system counts its sleep")
        self.seconds = 0.0
        true, day = time.clock_gettime, time.time_ns
        counts = {time.CLOCK_BOOTTIME, time.CLOCK_REALTIME}
        monkeypatch.setattr(time, "clock_gettime", lambda clock: true(clock) + self.seconds * (clock in counts))
        monkeypatch.setattr(time, "time_ns", lambda: day() + round(1e9 * self.seconds))

    def __call__(self, seconds: float) -> None:
        self.seconds += seconds
