"""A drill: keep the own goal for ten seconds, while the other robot attacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.env import Array
from sim.experts.soccer import keeper
from sim.tasks.soccer import SightConfig, Soccer, Soccer1v1, SoccerConfig, SoccerVision1v1
from sim.tasks.soccer.recipes import PPO, PRACTICE
from sim.tasks.soccer.rules import Events, Rules

SECONDS = 10.0
LEARNED: dict[str, Any] = {**PPO, "algorithm.league": False, "algorithm.total_steps": 6_000_000}
KEEPER = (0.15, 0.8)  # m in front of its goal line
BALL = (1.5, 2.8)  # m from that line
BEHIND = (0.3, 0.7)  # m from the ball, in which the other robot is
TURNED = np.radians(60.0)  # by which robots look past the ball at most


@dataclass
class KeepConfig(SoccerConfig):
    """Settings of the drill."""

    OPPONENTS: ClassVar[tuple[str, ...]] = ("slow", "slower", "chaser")
    STARTS: ClassVar[tuple[str, ...]] = ("drill", *SoccerConfig.STARTS)

    opponent: str = "chaser"  # slow | slower | chaser
    start: str = "drill"  # drill: before the own goal, the other robot behind the ball | kickoff | anywhere | mixed
    steps: int = round(SECONDS * Soccer1v1.rate_hz)  # for which there must be no goal


@dataclass
class SightKeepConfig(KeepConfig, SightConfig):
    """Settings of the drill with a camera."""


class Kept(Rules):
    """Without a goal against it until the time is over, or a goal of its own, it is won."""

    practised = "drill"

    def placed(
        self, task: Soccer, position: Array, angle: Array, ball: Array, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        line, wide = 0.5 * task.field.length, 0.5 * task.field.width - 2.0 * task.robot.radius
        goal = 0.5 * task.field.goal
        own = np.array([rng.uniform(*KEEPER) - line, rng.uniform(-goal, goal)])
        ball = np.array([rng.uniform(*BALL) - line, rng.uniform(-0.7, 0.7) * wide])
        other = ball + np.array([rng.uniform(*BEHIND), rng.uniform(-0.2, 0.2)])
        position = np.stack([own, other])
        to_ball = ball - position
        return position, np.arctan2(*to_ball.T[::-1]) + rng.uniform(-TURNED, TURNED, 2), ball

    def won(self, now: Events) -> NDArray[np.bool_]:
        won: NDArray[np.bool_] = (now.scored > 0.0) | (now.late & (now.scored == 0.0))
        return won


class Keep(Soccer1v1):
    """Success: no goal against it."""

    Config, rules = KeepConfig, Kept()
    name = "soccer_keep"
    recipes = {"ppo": {"default": LEARNED}}

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        return keeper(self, signals)


class VisionKeep(SoccerVision1v1):
    """The same, seen by a camera that turns"""

    Config, rules = SightKeepConfig, Kept()
    name = "soccer_vision_keep"
    recipes = {"student": {"default": PRACTICE}}
    teacher = Keep

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        return keeper(self, signals)
