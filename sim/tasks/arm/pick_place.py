"""Grasp a cube on the table and bring it to a point on or above the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.env import Array
from sim.robots.panda import Double
from sim.tasks.arm import CLOSE, CUBE, SPEED, Settings, Tabletop

TURN = 0.3  # rad, the cube's largest yaw: the hand keeps its own
ABOVE = 0.08  # m over the cube, before going down
ALIGNED = 0.015  # m, sideways, before going down and before closing
GRASPED = 0.05  # m: fingers that are closer hold something, or are about to
CLEAR = 0.04  # m over the way to the goal
LIFTED = 0.03  # m: a cube whose centre is higher is held
GENTLE = 0.06  # m/s until then
UP = np.array([0.0, 0.0, 1.0], np.float32)


@dataclass
class PickPlaceConfig(Settings):
    """Settings of arm_pick_place."""

    steps: int = 120


class ArmPickPlace(Tabletop):
    """Success: the cube within 2.5 cm of the goal."""

    Config = PickPlaceConfig
    name = "arm_pick_place"
    offsets = {"object_position": 0.01, "goal_position": 0.02}
    close = 0.025
    clear = CLEAR
    slope = 0.5  # of the way down to the goal: height per distance

    def draw(self, rng: np.random.Generator) -> tuple[Double, Double]:
        while True:
            x, y = rng.uniform((0.4, -0.2), (0.6, 0.2))
            goal = rng.uniform((0.38, -0.22, CUBE.half_size[2]), (0.62, 0.22, 0.25))
            if np.hypot(x - goal[0], y - goal[1]) > 0.1:
                return np.array([x, y, CUBE.half_size[2], rng.uniform(-TURN, TURN)]), goal

    def distance(self, signals: Mapping[str, Array]) -> Array:
        distance: Array = np.linalg.norm(signals["object_position"] - signals["goal_position"], axis=-1)
        return distance

    def reward(self, signals: Mapping[str, Array]) -> Array:
        hand: Array = np.linalg.norm(signals["object_position"] - signals["hand_position"], axis=-1)
        return -self.distance(signals) - hand

    def plan(self, signals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        hand, cube, goal = (signals[f"{what}_position"] for what in ("hand", "object", "goal"))
        away = hand - cube
        aligned = np.hypot(away[:, 0], away[:, 1]) < ALIGNED
        around = aligned & (np.abs(away[:, 2]) < ALIGNED)
        held = around & (signals["gripper_opening"][:, 0] < GRASPED)
        target = cube + np.where(aligned, 0.0, ABOVE)[:, None] * UP
        # Straight up until it is lifted; then over the table, not along it.
        lying = cube[:, 2] < LIFTED
        over = np.where(lying, self.clear, np.minimum(self.slope * np.hypot(*(goal - cube)[:, :2].T), self.clear))
        carry = np.where(lying[:, None], hand, goal + away) + over[:, None] * UP
        target = np.where(held[:, None], carry, target)
        speed = np.where(held & lying, GENTLE, SPEED)
        return target, np.where(around, CLOSE, self.robot.gripper.opening)[:, None], speed[:, None]
