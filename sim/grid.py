"""The conditions under which a task's policies have to hold: declared on the task, as data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

Cell = dict[str, float]  # fields of deploy.drivers.simulated.Conditions -> value


@dataclass(frozen=True)
class Grid:
    """Every latency with every rotor lag with every pair of mass and thrust: what real robots of one name show."""

    delay: tuple[float, ...]  # s between command and rotor
    rotor_lag: tuple[float, ...]  # factors on the rotors' time constants
    mass_and_thrust: tuple[tuple[float, float], ...]  # factors

    def cells(self) -> list[Cell]:
        """All combinations, the delay changing slowest."""
        combined = itertools.product(self.delay, self.rotor_lag, self.mass_and_thrust)
        return [{"delay": delay, "rotor_lag": lag, "mass": m, "thrust": t} for delay, lag, (m, t) in combined]
