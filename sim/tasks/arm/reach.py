"""Bring the hand to a point above the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sim.env import Array
from sim.robots.panda import Double
from sim.tasks import Recipes
from sim.tasks.arm import SPEED, Settings, Tabletop


@dataclass
class ReachConfig(Settings):
    """Settings of arm_reach."""

    steps: int = 50


class ArmReach(Tabletop):
    """Success: the hand within 2 cm of the goal."""

    Config = ReachConfig
    name = "arm_reach"
    block = None
    achieved = "hand_position"
    recipes: ClassVar[Recipes] = {  # an episode of 7 steps needs no far sight
        **Tabletop.recipes,
        "ppo": {
            "default": {
                **Tabletop.recipes["ppo"]["default"],
                "algorithm.total_steps": 131_072,
                "algorithm.minibatches": 16,
                "algorithm.gamma": 0.95,
                "algorithm.initial_std": 0.3,
            }
        },
        # The last centimetres are worth little, so success brings more.
        "sac": {
            "default": {
                "algorithm.total_steps": 32_000,
                "algorithm.num_envs": 8,
                "algorithm.warmup_steps": 2000,
                "algorithm.updates_per_step": 4,
                "algorithm.batch_size": 128,
                "algorithm.hidden": [128, 128],
                "algorithm.critic_hidden": [128, 128],
                "algorithm.gamma": 0.95,
                "algorithm.target_entropy": -1.0,
                "algorithm.initial_std": 0.5,
                "algorithm.linger": 15,
                "algorithm.success_reward": 10.0,
                "algorithm.report_every": 400,
                "algorithm.evaluation_episodes": 50,
            }
        },
    }
    offsets = {"goal_position": 0.02}
    close = 0.02

    def draw(self, rng: np.random.Generator) -> tuple[Double, Double]:
        return np.zeros(4), rng.uniform((0.35, -0.25, 0.05), (0.65, 0.25, 0.35))

    def distance(self, signals: Mapping[str, Array]) -> Array:
        distance: Array = np.linalg.norm(signals["hand_position"] - signals["goal_position"], axis=-1)
        return distance

    def sensed_reward(self, signals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """See `sim.tasks.abilities.HasSensedReward`."""
        distance = self.distance(signals)
        return self.reward(signals), distance < self.close, np.zeros(len(distance), bool)

    def plan(self, signals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        opening = signals["gripper_opening"]
        return signals["goal_position"], np.full_like(opening, self.robot.gripper.opening), np.full_like(opening, SPEED)
