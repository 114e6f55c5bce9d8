"""The time of a simulation that runs in a thread beside who flies in it, on machines too slow for real time."""

import math
import time
from typing import Any

PATIENT = {"missed_in_a_row": None, "missed_of_100": None, "longest_pause": None}  # an envelope's: with a busy machine
GONE = 120.0  # s without a step, after which the simulation has ended


class Clock:
    """s, monotonic, for both of them: between two steps of the simulation not more passes than one step simulates.

    Where the machine keeps up, that is real time. Where it stands still, or is slow, no deadline passes meanwhile that
    a vehicle in real time would have kept: its watchdogs, the driver's and the loop's count the same time.
    """

    def __init__(self, simulation: Any, period: float) -> None:
        """`simulation.tick` advances it by `period` s."""
        tick, self.most = simulation.tick, math.inf  # s, until the next step; the first may be a while off
        self._last = time.perf_counter(), time.perf_counter()  # s: of this clock, and of the machine's, at a step

        def ticked() -> None:
            tick()
            self._last = self(), time.perf_counter()
            self.most = 1.001 * period  # more than due, or rounding might keep it from ever being

        simulation.tick = ticked

    def __call__(self) -> float:
        now, then = self._last
        passed = time.perf_counter() - then
        assert passed < GONE, "the simulation has ended"
        return now + min(passed, self.most)

    def sleep(self, seconds: float) -> None:
        """Until so much has passed here."""
        end = self() + seconds
        while (left := end - self()) > 0.0:
            time.sleep(left)
