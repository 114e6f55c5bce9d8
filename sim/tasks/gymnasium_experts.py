"""Scripted experts for Gymnasium-Robotics: commands (n, k) by name from noise-free signals (n, k), without memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sim.workcell import Array

Expert = Callable[[Mapping[str, Array]], dict[str, Array]]

MAZE_RADIUS = 0.45  # m from the goal at which it counts as reached
FLAT, UP = np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])
GAIN = 12.5  # 1/s: half of what is missing per control step of 40 ms


def _toward(target: Array, grip: Array) -> Array:
    """Velocity of the hand (n, 3), m/s."""
    velocity: Array = GAIN * (target - grip)
    return velocity


class Reach:
    """FetchReach: straight to the goal."""

    def __init__(self, environment: Any) -> None:
        del environment

    def __call__(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        return {"hand_velocity": _toward(signals["goal_position"], signals["grip_position"])}


class Push:
    """FetchPush: over the object to its far side, down, and forward to the goal."""

    START = 0.09  # m behind the object's centre
    ALIGNED = 0.02  # m beside the line through object and goal

    def __init__(self, environment: Any) -> None:
        del environment

    def __call__(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        grip, thing, goal = (np.asarray(signals[n]) for n in ("grip_position", "object_position", "goal_position"))
        ahead = (goal - thing) * FLAT
        ahead /= np.linalg.norm(ahead, axis=1, keepdims=True) + 1e-6
        offset = grip - thing
        along = (offset * ahead).sum(axis=1, keepdims=True)
        beside = (offset - along * ahead) * FLAT
        high = offset[:, 2:] > 0.05
        behind = (along < np.where(high, -0.07, -0.03)) & (np.linalg.norm(beside, axis=1, keepdims=True) < self.ALIGNED)
        pushing, lowering = grip + 0.1 * ahead - beside, grip
        lifting, crossing = grip, thing - self.START * ahead
        target = np.where(behind, np.where(high, lowering, pushing), np.where(high, crossing, lifting)) * FLAT
        target[:, 2:] = thing[:, 2:] + np.where(behind, 0.0, 0.09)
        return {"hand_velocity": _toward(target, grip)}


class PickAndPlace:
    """FetchPickAndPlace: open above the object, down, close, to the goal."""

    OVER = 0.08  # m above the object before going down

    def __init__(self, environment: Any) -> None:
        del environment

    def __call__(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        grip, thing, goal = (np.asarray(signals[n]) for n in ("grip_position", "object_position", "goal_position"))
        offset = grip - thing
        flat = np.linalg.norm(offset[:, :2], axis=1, keepdims=True)
        above = flat < 0.02
        around = above & (np.abs(offset[:, 2:]) < 0.015)  # the object is between the fingers
        opening = np.asarray(signals["gripper_opening"]).sum(axis=1, keepdims=True)
        held = around & (opening < 0.056)  # the object is 5 cm wide
        over = thing + self.OVER * UP
        target = np.where(held, goal, np.where(above, thing, over))
        return {"hand_velocity": _toward(target, grip), "gripper_effort": np.where(around, -1.0, 1.0)}


class Maze:
    """PointMaze: from cell to cell along a shortest path, read off the maze when it is made."""

    STIFFNESS, DAMPING = 300.0, 60.0  # N/m, N s/m

    def __init__(self, environment: Any) -> None:
        maze = environment.maze
        free = [(int(i), int(j)) for i, j in np.argwhere([[cell != 1 for cell in row] for row in maze.maze_map])]
        self.middles = np.array([maze.cell_rowcol_to_xy(cell) for cell in free])
        self.following = np.stack([_paths(free, goal) for goal in free])  # goal cell, cell -> next cell

    def __call__(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        position, goal = np.asarray(signals["position"]), np.asarray(signals["goal_position"])
        here, there = self._cell(position), self._cell(goal)
        target = np.where((here == there)[:, None], goal, self.middles[self.following[there, here]])
        return {"force": self.STIFFNESS * (target - position) - self.DAMPING * np.asarray(signals["velocity"])}

    def _cell(self, position: Array) -> Array:
        """The number of the nearest free cell, (n,)."""
        distance = np.linalg.norm(position[:, None] - self.middles, axis=2)
        nearest: Array = distance.argmin(axis=1)
        return nearest


def _paths(free: list[tuple[int, int]], goal: tuple[int, int]) -> Array:
    """For every free cell the number of the next one on a shortest path to the goal; its own where there is none."""
    numbers = {cell: number for number, cell in enumerate(free)}
    after, todo = np.arange(len(free)), deque([goal])
    seen = {goal}
    while todo:
        i, j = todo.popleft()
        for cell in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            if cell in numbers and cell not in seen:
                after[numbers[cell]] = numbers[i, j]
                seen.add(cell)
                todo.append(cell)
    return after
