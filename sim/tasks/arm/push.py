"""Push a block along the table to a point on it, with closed fingers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sim.env import Array
from sim.robots.panda import Double
from sim.scenes.tabletop import Block
from sim.tasks import Recipes
from sim.tasks.arm import CLOSE, SPEED, Settings, Tabletop
from sim.tasks.arm.reach import ArmReach

BLOCK = Block((0.025, 0.025, 0.02), 0.2, 0.4, (0.15, 0.35, 0.85))
LOW, HIGH = 0.02, 0.09  # m, the hand's height when it pushes, and when it travels
BEHIND = 0.06  # m from the block's centre, where a push begins
CLEAR = 0.052  # m from its centre, where the hand comes down beside it
ASIDE = 0.012  # m off the line from block to goal: further, it begins anew
TOUCH = 0.045  # m from its centre, where the hand touches it, which pays best
PUSHING = 0.2  # m/s at most


@dataclass
class PushConfig(Settings):
    """Settings of arm_push."""

    steps: int = 120


class ArmPush(Tabletop):
    """Success: the block's centre within 2.5 cm of the goal, sideways."""

    Config = PushConfig
    name = "arm_push"
    block = BLOCK
    recipes: ClassVar[Recipes] = {
        **Tabletop.recipes,
        "sac": {
            "default": {
                **ArmReach.recipes["sac"]["default"],
                "algorithm.total_steps": 120_000,
                "algorithm.target_entropy": -1.5,
                "algorithm.reward_scale": 1.0,
                "algorithm.success_reward": 2.0,
            }
        },
    }
    offsets = {"object_position": 0.022, "goal_position": 0.02}
    close = 0.025

    def draw(self, rng: np.random.Generator) -> tuple[Double, Double]:
        while True:
            block, goal = rng.uniform((0.4, -0.2), (0.6, 0.2), (2, 2))
            if np.linalg.norm(block - goal) > 0.1:
                start = np.array([*block, BLOCK.half_size[2], rng.uniform(-np.pi, np.pi)])
                return start, np.array([*goal, BLOCK.half_size[2]])

    def distance(self, signals: Mapping[str, Array]) -> Array:
        away = signals["object_position"] - signals["goal_position"]
        distance: Array = np.linalg.norm(away[..., :2], axis=-1)
        return distance

    def reward(self, signals: Mapping[str, Array]) -> Array:
        """More, the nearer closed fingers are to the block, opposite its goal, by a way over it; and it to its goal.

        An episode that ends with a lost block is worth 0 from there: so a start is worth about that, too. At the goal
        no side is opposite, and the hand may be anywhere.
        """
        hand, block, goal = (signals[f"{what}_position"] for what in ("hand", "object", "goal"))
        left = self.distance(signals)
        ahead = (goal - block)[..., :2] / np.maximum(left, 1e-6)[..., None]
        away = np.linalg.norm(hand[..., :2] - (block[..., :2] - TOUCH * ahead), axis=-1)
        height = LOW + np.clip(2.0 * (away - 0.01), 0.0, HIGH - LOW)
        off = away + np.abs(hand[..., 2] - height) + signals["gripper_opening"][..., 0]
        off = np.where(left < self.close, 0.0, off)
        worth: Array = 3.0 - 2.0 * np.tanh(8.0 * off) - 5.0 * np.minimum(left, 0.4)  # m, per m
        return worth.astype(np.float32)

    def plan(self, signals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        hand, block, goal = (signals[f"{what}_position"] for what in ("hand", "object", "goal"))
        way = (goal - block)[:, :2]
        left = np.linalg.norm(way, axis=1, keepdims=True)
        ahead = way / np.maximum(left, 1e-6)
        away = (hand - block)[:, :2]
        along = (away * ahead).sum(1, keepdims=True)
        aside = away - along * ahead
        down = hand[:, 2:] < LOW + 0.015
        straight = np.linalg.norm(aside, axis=1, keepdims=True) < ASIDE
        # On its way down it must not meet the block.
        placed = straight & (along > -1.5 * BEHIND) & (along < np.where(down, 0.0, -CLEAR))
        push = placed & down
        behind = block[:, :2] - BEHIND * ahead
        # Back onto the line while pushing, sooner than the block turns away.
        forth = hand[:, :2] - 2.0 * aside + np.minimum(left, 0.04) * ahead
        height = np.where(placed, LOW, HIGH)
        target = np.concatenate([np.where(push, forth, behind), height], axis=1)
        # Travelling, it is first up and only then across.
        across = push | placed | (hand[:, 2:] > HIGH - 0.03)
        target[:, :2] = np.where(across, target[:, :2], hand[:, :2])
        return target, np.full_like(left, CLOSE), np.where(push, PUSHING, SPEED)
