"""The air that simulated vehicles share: physics from the engine `flight`, with a floor and downwash."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.crazyflie.simulator.sensed import Sensed

DT = 0.002  # s, of the on-board controllers; the physics takes two steps in it
SUBSTEPS = 2
# s; a machine that is slower than this lets the simulated time slip instead of rushing after it. By so much at most
# what comes from a busy machine looks older than it is.
MOST_BEHIND = 0.02
LIE = math.cos(math.radians(60.0))  # a vehicle that leans further when it meets the floor stays as it is
State = NDArray[np.float32]


class World:
    """`n` vehicles on a floor at z = 0. They push air at each other but pass through each other."""

    def __init__(self, robot: str, starts: Sequence[tuple[float, float]]) -> None:
        """`robot` names an airframe of `sim.robots`; `starts` are the places (x, y) in m, heading along x."""
        from sim.engines.flight import Flight
        from sim.robots import robot as airframe

        self.robot = airframe(robot)
        self.num = len(starts)
        self.engine: Any = Flight(self.robot, self.num, DT, substeps=SUBSTEPS, downwash=self.num if self.num > 1 else 0)
        position = np.array([(x, y, 0.0) for x, y in starts], np.float32)
        self.engine.reset(None, {"position": position})
        self.ticks = 0
        self._acceleration = np.zeros((self.num, 3), np.float32)

    @property
    def time(self) -> float:
        """Seconds since the beginning."""
        return self.ticks * DT

    def step(self, ratios: Sequence[tuple[float, float, float, float]]) -> None:
        """Advance by DT under rotor speed commands, fractions 0..1 per vehicle."""
        before = self.engine.read("linear_velocity")
        self.engine.step(np.array(ratios, np.float32))
        self._meet_floor()
        self._acceleration = (self.engine.read("linear_velocity") - before) / np.float32(DT)
        self.ticks += 1

    def _meet_floor(self) -> None:
        position = self.engine.read("position")
        low = position[:, 2] <= 0.0
        if not low.any():
            return
        velocity = self.engine.read("linear_velocity")
        low &= velocity[:, 2] <= 0.0
        if not low.any():
            return
        quaternion = self.engine.read("quaternion")[low]
        upright = self.engine.read("rotation")[low, 8] > LIE
        heading = quaternion[:, [0, 3]] / np.linalg.norm(quaternion[:, [0, 3]] + 1e-12, axis=1, keepdims=True)
        level = np.stack([heading[:, 0], np.zeros(len(heading)), np.zeros(len(heading)), heading[:, 1]], axis=1)
        position = position[low]
        position[:, 2] = 0.0
        rotor = self.engine.read("rotor_speed")[low]
        quaternion = np.where(upright[:, None], level, quaternion)
        self.engine.reset(low, {"position": position, "quaternion": quaternion, "rotor_speed": rotor})

    def sense(self) -> list[Sensed]:
        """What every vehicle senses now."""
        read = self.engine.read
        columns = [
            read("position"),
            read("linear_velocity"),
            self._acceleration,
            read("rotation"),
            read("quaternion"),
            read("angular_velocity"),
            read("rotor_speed"),
        ]
        return [Sensed(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def place(self, index: int, **state: Sequence[float]) -> None:
        """Put one vehicle into a state by name; what is not given is at rest."""
        mask = np.arange(self.num) == index
        self.engine.reset(mask, {name: np.array([value], np.float32) for name, value in state.items()})
