"""A drill: find the ball, which may lie anywhere, and touch it with the front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.tasks.soccer import SightConfig, Soccer1v1, SoccerConfig, SoccerVision1v1
from sim.tasks.soccer.recipes import PPO, PRACTICE
from sim.tasks.soccer.rules import Events, Rules

SECONDS = 15.0
WEIGHTS = {"held": 3.0, "nearer": 1.0}
LEARNED: dict[str, Any] = {**PPO, "algorithm.league": False, "algorithm.total_steps": 3_000_000}


@dataclass
class SeekConfig(SoccerConfig):
    """Settings of the drill: the other robot stands somewhere."""

    OPPONENTS: ClassVar[tuple[str, ...]] = ("still",)
    STARTS: ClassVar[tuple[str, ...]] = ("drill", *SoccerConfig.STARTS)

    opponent: str = "still"
    start: str = "drill"  # drill: anywhere | kickoff | anywhere | mixed
    steps: int = round(SECONDS * Soccer1v1.rate_hz)


@dataclass
class SightSeekConfig(SeekConfig, SightConfig):
    """Settings of the drill with a camera."""


class Found(Rules):
    """Whoever has touched the ball with its front has found it."""

    weights: Mapping[str, float] = WEIGHTS
    patience = np.inf
    practised = "drill"

    def won(self, now: Events) -> NDArray[np.bool_]:
        return now.held


class Seek(Soccer1v1):
    """Success: its front has touched the ball."""

    Config, rules = SeekConfig, Found()
    name = "soccer_seek"
    recipes = {"ppo": {"default": LEARNED}}


class VisionSeek(SoccerVision1v1):
    """The same, seen by a camera that turns"""

    Config, rules = SightSeekConfig, Found()
    name = "soccer_vision_seek"
    recipes = {"student": {"default": PRACTICE}}
    teacher = Seek
