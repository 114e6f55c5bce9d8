"""Push a block along the table to a point on it, with closed fingers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.env import Array
from sim.robots.panda import Double
from sim.scenes.tabletop import Block
from sim.tasks.arm import CLOSE, SPEED, Settings, Tabletop

BLOCK = Block((0.025, 0.025, 0.02), 0.2, 0.4, (0.15, 0.35, 0.85))
LOW, HIGH = 0.02, 0.09  # m, the hand's height when it pushes, and when it travels
BEHIND = 0.06  # m from the block's centre, where a push begins
CLEAR = 0.052  # m from its centre, where the hand comes down beside it
ASIDE = 0.012  # m off the line from block to goal: further, it begins anew
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
        hand: Array = np.linalg.norm(signals["object_position"] - signals["hand_position"], axis=-1)
        return -self.distance(signals) - hand

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
