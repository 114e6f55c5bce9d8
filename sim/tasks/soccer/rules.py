"""What a game on the pitch is: what is rewarded, when it is won, where it begins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.env import Array

if TYPE_CHECKING:
    from sim.tasks.soccer import Soccer

# The reward's terms: a goal, for the one and against the other; per m that the ball comes nearer to the goal to score
# in, and that the robot comes nearer to the ball.
WEIGHTS = {"scored": 3.0, "progress": 2.0, "nearer": 1.0}


@dataclass
class Events:
    """What has happened in a control step of a match, of all robots (worlds, robots)."""

    scored: Array  # 1: a goal of its team, then and since; -1: one against it; 0
    late: NDArray[np.bool_]  # whether the time is over
    who_held: Callable[[], NDArray[np.bool_]]  # asked only by rules that want to know it

    @functools.cached_property
    def held(self) -> NDArray[np.bool_]:
        """Whether it has touched the ball with its front, or kicked it."""
        return self.who_held()


class Rules:
    """Of a match: what is rewarded, when it is won, and where robots and ball are where `start` does not say it.

    A match that is not won ends with the first goal, too.
    """

    weights: Mapping[str, float] = WEIGHTS  # of the reward's terms: scored, progress, nearer, held
    patience = 2.0  # s for which the ball may stay where it is, until the referee drops it elsewhere
    practised = "mixed"  # the start for who learns against others

    def placed(
        self, task: Soccer, position: Array, angle: Array, ball: Array, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        """Robots (robots, 2), m, their headings (robots,), rad, and the ball (2,), of what was drawn anywhere."""
        return position, angle, ball

    def won(self, now: Events) -> NDArray[np.bool_]:
        """Which robots (worlds, robots) have succeeded."""
        won: NDArray[np.bool_] = now.scored > 0.0
        return won
