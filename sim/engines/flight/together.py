"""Several vehicles in one airspace, on the CPU: they blow on those below them, and it is known how close they come."""

from __future__ import annotations

import numpy as np

from sim.engines.flight import Flight, fill, step_blocks
from sim.engines.flight.airspace import blow, meet
from sim.engines.flight.rows import POSITION
from sim.randomize import Array
from sim.robots.quadrotors import Quadrotor


class FlightTogether(Flight):
    """As `Flight`, with `each` vehicles in an airspace, rows that follow one another; see `airspace.py`.

    More names to read: wash (N, the downwash on it in the last step, negative: downward) and nearest (m to the centre
    of the nearest other vehicle, at the closest moment of the last step). Vehicles that touch go through one another:
    what becomes of their propellers is not modelled, so whoever asks ends the flight.
    """

    def __init__(self, robot: Quadrotor, num: int, dt: float, device: str = "cpu", each: int = 1) -> None:
        if device != "cpu":
            raise ValueError(f"vehicles in one airspace fly on the CPU only, got device {device!r}")
        super().__init__(robot, num, dt, downwash=each)
        self.nearest = np.full(num, np.inf, np.float32)
        self.before = self.state[:, POSITION : POSITION + 3].copy()  # where all were before the last step, m

    def read(self, name: str) -> Array:
        if name in ("wash", "nearest"):
            return {"wash": self.washed, "nearest": self.nearest}[name][:, None].copy()
        return super().read(name)

    def step(self, command: Array) -> None:
        self.check(command)
        fill(np.ascontiguousarray(command, np.float32), self._command)
        self.advance(self._command)

    def advance(self, told: Array) -> None:
        """The same under (blocks, 4, LANES)."""
        self.before[:] = self.state[:, POSITION : POSITION + 3]
        blow(self.state, self.values, self.derived, self.downwash, self.washed)
        step_blocks(self.state, self.derived, told, self.substep, self.substeps)
        meet(self.before, self.state, self.downwash, self.nearest)
