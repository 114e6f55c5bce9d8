"""Walk five metres ahead, in a rhythm: any legged robot, from its MJCF or URDF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sim.env import Array, outcome_scores
from sim.rotations import rotation_matrices
from sim.spec import Signal
from sim.tasks import PLACE, Recipes
from sim.tasks.legs.legged import SETTINGS, Legged, LeggedConfig
from sim.tasks.legs.velocity import SCORES, walked
from sim.tasks.legs.walking import Walking

if TYPE_CHECKING:
    from sim.robots.mjcf import Double

HOMING = 1.0  # rad/s per rad off: how it is told to turn back to where it should go


@dataclass
class WalkConfig(LeggedConfig):
    """Settings of walk."""

    robot: str = field(default="simple_humanoid", metadata={PLACE: True})
    steps: int = 1000
    forward: list[float] = field(default_factory=lambda: [0.35, 0.65])  # m/s: what is told
    sideways: float = 0.1
    standing: float = 0.0
    reach: float = 0.7
    lowest: float = 0.7
    tilt: float = 45.0
    near: float = 0.03
    thrown: float = 0.2
    push: float = 0.2
    gait: bool = True
    distance: float = 5.0  # m: success is to get so far ahead

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.distance <= 1000.0:
            raise ValueError(f"distance must be above 0 and at most 1000 m, got {self.distance:g}")


class Walk(Legged):
    """The same, five metres ahead in a rhythm.

    Success: to be there, without a fall.
    """

    Config = WalkConfig
    name = "walk"
    recipes: Recipes = {"ppo": {"default": {**SETTINGS, "algorithm.total_steps": 8_000_000}}}
    scores = SCORES
    config: WalkConfig

    def __init__(self, config: WalkConfig | None = None) -> None:
        super().__init__(config)
        self.privileged += (
            Signal("position", (2,), "m", "world"),  # ahead, and to the left, from where it began
            Signal("heading", (1,), "rad", "world"),
        )
        self.reflect({"position": (range(2), (1.0, -1.0)), "heading": (range(1), (-1.0,))})

    def open(self, num: int, seed: int) -> Walking:
        return Ahead(self, num, seed)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        return outcome_scores(flight, self.rate_hz) | walked(flight, self.rate_hz)


class Ahead(Walking):
    """Worlds of `Walk`: it is told to turn back whenever it goes elsewhere than ahead."""

    task: Walk

    def heading(self) -> Double:
        """(num,) rad, to the left of ahead."""
        place = self._place
        axes = rotation_matrices(self.scene.qpos[:, place + 3 : place + 7]) @ self._first.T
        found: Double = np.arctan2(axes[:, 1, 0], axes[:, 0, 0])
        return found

    def order(self) -> Double:
        told, most = super().order().copy(), self.task.config.turn
        told[:, 2] = np.clip(-HOMING * self.heading(), -most, most)
        return told

    def signals(self) -> dict[str, Array]:
        place = self._place
        away = self.scene.qpos[:, place : place + 2] - self.robot.start[place : place + 2]
        return {**super().signals(), "position": away, "heading": self.heading()[:, None]}

    def judge(self, seen: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        reward, _, fallen = super().judge(seen)
        return reward, ~fallen & (seen["position"][:, 0] >= self.task.config.distance), fallen
