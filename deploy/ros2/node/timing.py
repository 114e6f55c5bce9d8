"""How long signals take to become commands on ROS 2, and how late control steps begin."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deploy.system.clock import boottime

MARGIN, SLEW = 0.1, 0.02  # periods: how long before a measurement a step begins; the clock's largest shift per step


class PacedClock:
    """A clock by which steps of `period` (s) begin when a measurement is about to come."""

    def __init__(self, period: float) -> None:
        self.period, self._shift = period, 0.0  # s

    def now(self) -> float:
        """In s, monotonic."""
        return boottime() + self._shift

    def align(self, age: float, between: float) -> None:
        """Shift it a little, given how old the newest measurement is as a step begins, and the time between two."""
        early = (age + MARGIN * self.period) % between  # by how much the step should have begun earlier
        if early > 0.5 * between:
            early -= between
        self._shift += min(max(early, -SLEW * self.period), SLEW * self.period)


@dataclass
class Timing:
    """The last control steps, in s: from a signal's arrival to the command, and between two steps beyond the period."""

    latency: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    lateness: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    steps: int = 0
    missed: int = 0  # steps that began more than a period late

    def began(self, pause: float, period: float) -> None:
        """A step began so many s after the one before."""
        if self.steps and math.isfinite(pause):
            self.lateness.append(max(pause - period, 0.0))
            self.missed += pause > 2.0 * period

    def values(self) -> dict[str, Any]:
        """For the diagnostics."""
        values: dict[str, Any] = {"steps": self.steps, "missed": self.missed}
        for name, seconds in (("latency", self.latency), ("lateness", self.lateness)):
            if seconds:
                p50, p99 = 1e3 * np.percentile(list(seconds), (50, 99))
                values |= {f"{name}_p50_ms": float(p50), f"{name}_p99_ms": float(p99)}
        return values

    def report(self) -> list[str]:
        """For the end of a flight."""
        if not self.latency:
            return []
        p50, p99 = 1e3 * np.percentile(list(self.latency), (50, 99))
        return [f"latency          {p50:.2f} ms from signal to command, 99 % within {p99:.2f} ms"]
