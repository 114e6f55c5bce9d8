"""A task whose policy is told what an estimator tells of its picture, in the picture's place: numbers alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from policies.learning.state_estimation.learner import StateEstimator
from policies.models.networks import Array
from sim.env import Env, Step
from sim.spec import Signal, numbers, pictures
from sim.tasks import OwnWorld, features_of
from sim.terms import Feature

ESTIMATES = "estimates"  # name of that signal


def told(task: OwnWorld, estimator: StateEstimator) -> OwnWorld:
    """The same task, told by `estimator` as it is whenever it is asked."""
    made = copy.copy(task)
    made.policy = (*numbers(task.policy), Signal(ESTIMATES, (estimator.size,)))
    made.features = (*features_of(task), Feature(ESTIMATES))  # type: ignore[attr-defined]  # see `features_of`
    made.open = lambda num, seed: ToldWorld(task.open(num, seed), task, estimator)  # type: ignore[method-assign]
    return made


class ToldWorld:
    """The worlds of such a task."""

    def __init__(self, env: Env, task: OwnWorld, estimator: StateEstimator) -> None:
        self.env, self.num, self.estimator = env, env.num, estimator
        (self.camera,) = (s.name for s in pictures(task.policy))

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        """Begin these episodes in these rows."""
        self.env.reset(rows, episodes)

    def observe(self) -> dict[str, Array]:
        """What can be sensed, and the estimates; no picture."""
        return self._estimated(self.env.observe())

    def truth(self) -> dict[str, Array]:
        """The same noise-free; estimates are what they are."""
        return self._estimated(self.env.truth())

    def _estimated(self, now: dict[str, Array]) -> dict[str, Array]:
        shown = torch.from_numpy(np.ascontiguousarray(now[self.camera]))
        estimates = self.estimator.look({self.camera: shown}).numpy()
        return {**{name: value for name, value in now.items() if name != self.camera}, ESTIMATES: estimates}

    def step(self, command: Mapping[str, Array]) -> Step:
        """Advance every row one control step."""
        return self.env.step(command)

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """A picture for people."""
        return self.env.render(row, height, width)

    def close(self) -> None:
        """Free what it holds."""
        self.env.close()
