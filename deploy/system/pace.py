"""When the control steps of a loop begin."""

from __future__ import annotations

from collections.abc import Callable

SPIN = 300e-6  # s before a deadline at which sleeping gives way to polling the clock: sleep overshoots by about 100 us


class Pace:
    """Absolute deadlines, one per control step, without drift. A step that overran is not caught up in a burst."""

    def __init__(self, period: float, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        self.period, self.clock, self.sleep = period, clock, sleep
        self.deadline = clock()

    def wait(self) -> tuple[float, float]:
        """Wait for the next deadline. By how much it was missed (s; 0: it was met), and how late it is now (s)."""
        self.deadline += self.period
        late = self.clock() - self.deadline
        if late > 0.0:
            if late > self.period:
                self.deadline += late
            return late, late
        if -late > self.period:  # the clock went back: nobody should wait until it is where it was
            self.deadline = self.clock() + self.period
            late = -self.period
        if -late > SPIN:
            self.sleep(-late - SPIN)
        while (now := self.clock()) < self.deadline:
            pass
        return 0.0, now - self.deadline
