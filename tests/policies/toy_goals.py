"""The toy of a point and its goal, for learners that relabel goals."""

import numpy as np

from sim.spec import Signal
from tests.policies.toy_reach import Cell, ToyReach
from tests.policies.toy_sight import PIXELS, drawn


class ToyGoals(ToyReach):
    """Tells which signal is the goal, which one was achieved, and what counts as reached."""

    name = "toy_goals"
    goal, achieved = "goal", "position"

    def reached(self, achieved, goal):
        return np.linalg.norm(achieved - goal, axis=-1) < self.config.radius


class ToySpot(ToyGoals):
    """Where the point is, the policy learns from a picture alone."""

    name = "toy_spot"
    policy = (
        Signal("goal", (2,), "m", "world"),
        Signal("camera", (PIXELS, PIXELS, 3), "1", "", 0.0, 255.0, dtype="uint8"),
    )
    privileged = (Signal("position", (2,), "m", "world"),)

    def open(self, num, seed):
        return SpotCell(self, num, seed)


class SpotCell(Cell):
    def observe(self):
        return {**super().observe(), "camera": drawn(np.full_like(self.goal, 9.0), self.position)}
