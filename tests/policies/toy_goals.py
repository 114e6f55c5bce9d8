"""The toy of a point and its goal, for learners that relabel goals."""

import numpy as np

from tests.policies.toy_workcell import ToyReach


class ToyGoals(ToyReach):
    """Tells which signal is the goal, which one was achieved, and what counts as reached."""

    name = "toy_goals"
    goal, achieved = "goal", "position"

    def reached(self, achieved, goal):
        return np.linalg.norm(achieved - goal, axis=-1) < self.config.radius
