"""How long signals take to become commands on ROS 2, and how late control steps begin."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np


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
