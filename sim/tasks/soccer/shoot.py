"""A drill: the ball lies before the other goal; score, past a robot that stands there or a keeper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sim.env import Array
from sim.tasks.soccer import SightConfig, Soccer, Soccer1v1, SoccerConfig, SoccerVision1v1
from sim.tasks.soccer.recipes import PPO, PRACTICE
from sim.tasks.soccer.rules import Rules

SECONDS = 10.0
LEARNED: dict[str, Any] = {**PPO, "algorithm.league": False, "algorithm.total_steps": 6_000_000}
BALL = (0.7, 1.5)  # m from the goal line
NEAR = (0.3, 0.7)  # m from the robot to the ball
TURNED = np.radians(60.0)  # by which the robot looks past the ball at most
KEEPER = 0.15  # m in front of its goal line


@dataclass
class ShootConfig(SoccerConfig):
    """Settings of the drill: the other robot stands before its goal, or keeps it."""

    OPPONENTS: ClassVar[tuple[str, ...]] = ("still", "keeper")
    STARTS: ClassVar[tuple[str, ...]] = ("drill", *SoccerConfig.STARTS)

    opponent: str = "keeper"  # still | keeper
    start: str = "drill"  # drill: near the ball, before the goal | kickoff | anywhere | mixed
    steps: int = round(SECONDS * Soccer1v1.rate_hz)


@dataclass
class SightShootConfig(ShootConfig, SightConfig):
    """Settings of the drill with a camera."""


class NearGoal(Rules):
    """Of a match that begins with the ball before the other goal, the robot beside it."""

    patience = np.inf
    practised = "drill"

    def placed(
        self, task: Soccer, position: Array, angle: Array, ball: Array, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        line, wide = 0.5 * task.field.length, 0.5 * task.field.width - 2.0 * task.robot.radius
        goal = 0.5 * task.field.goal
        ball = np.array([line - rng.uniform(*BALL), rng.uniform(-0.7, 0.7) * wide])
        around = rng.uniform(-np.pi, np.pi)
        own = ball + rng.uniform(*NEAR) * np.array([np.cos(around), np.sin(around)])
        own[1] = np.clip(own[1], -wide, wide)
        looks = np.arctan2(*(ball - own)[::-1]) + rng.uniform(-TURNED, TURNED)
        position = np.stack([own, [line - KEEPER, rng.uniform(-goal, goal)]])
        return position, np.array([looks, rng.choice([-0.5, 0.5]) * np.pi]), ball


class Shoot(Soccer1v1):
    """Success: the ball is in the other goal."""

    Config, rules = ShootConfig, NearGoal()
    name = "soccer_shoot"
    recipes = {"ppo": {"default": LEARNED}}


class VisionShoot(SoccerVision1v1):
    """The same, seen by a camera that turns"""

    Config, rules = SightShootConfig, NearGoal()
    name = "soccer_vision_shoot"
    recipes = {"student": {"default": PRACTICE}}
    teacher = Shoot
