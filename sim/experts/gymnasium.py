"""Scripted experts for Gymnasium-Robotics: commands (n, k) by name from noise-free signals (n, k), without memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sim.env import Array

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


class Door:
    """AdroitHandDoor: fingers over the handle from above, turn it, pull, and open the hand when the door swings.

    The hand is where the turned handle should be a moment later: `LEAD` ahead of latch and door. In the last third of
    its way the bar would meet the palm: fingers open and the wrist bends back.
    """

    BASE = np.array([0.0, -0.7, 0.2])  # m: the forearm, which slides along y and rolls about it
    REACH = np.array([0.007, -0.05, 0.5])  # m from there to the palm: left, up, ahead
    BAR = np.array([0.13, -0.15, 0.0])  # m from the latch's axis: where the handle is gripped
    HANDLE = np.array([0.15, -0.15, 0.0])  # m, the handle's site
    LATCH = np.array([-0.46, 0.0, -0.025])  # m from the door's hinge
    HOVER = np.array([0.0, 0.0, 0.09])  # m above the bar
    LEAD, PRESS, PULL = 0.5, 0.6, 0.4  # rad ahead: of the latch before and after it opens, of the door
    OPEN, RELEASE = 1.2, 0.7  # rad: the latch lets go; the fingers let go
    HASTE = np.array([3.0, 1.5, 1.5, 1.5])  # joint targets of the arm go this far beyond, so that it is quick
    MIDDLE, TIPS = [7, 11, 15, 20], [8, 9, 12, 13, 16, 17, 21, 22]  # finger joints that bend
    WRIST, THUMB = 5, [23, 24, 27]

    def __init__(self, environment: Any) -> None:
        model = environment.model
        low, high = model.actuator_ctrlrange.T
        self.middle, self.span = 0.5 * (low + high), 0.5 * (high - low)
        self.stiffness = -model.actuator_biasprm[:, 1] / model.actuator_gainprm[:, 0]  # control per angle held

    def __call__(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        latch, door = (np.asarray(signals[n], np.float64)[:, 0] for n in ("latch_position", "door_position"))
        palm, joints = (np.asarray(signals[n], np.float64) for n in ("palm_position", "joint_position"))
        turned, swung = _turned(door, latch), _turned(door, 0.0 * latch)
        axis = np.asarray(signals["handle_position"], np.float64) - turned @ self.HANDLE
        hinge = axis - swung @ self.LATCH
        off = np.einsum("nji,nj->ni", turned, palm - axis) - self.BAR  # of the bar, in its own axes
        over = (np.abs(off[:, :2]) < [0.05, 0.035]).all(axis=1)
        held = over & (np.abs(off[:, 2]) < 0.045)
        pulled = held & (latch > self.OPEN)
        latch_next = latch + np.where(pulled, self.PRESS, np.where(held, self.LEAD, 0.0))
        door_next = door + np.where(pulled, self.PULL, 0.0)
        spot = self.BAR + np.where(over[:, None], 0.0, self.HOVER)
        spot = np.einsum("nij,nj->ni", _turned(door_next, latch_next), spot)
        target = hinge + _turned(door_next, 0.0 * latch) @ self.LATCH + spot
        now = np.column_stack([self._arm(palm, joints[:, 2])[:, 0], joints[:, :3]])
        arm = now + self.HASTE * (self._arm(target, np.clip(latch_next, -1.0, 2.0)) - now)
        return {"joint_target": self._action(arm, held, door > self.RELEASE)}

    def _arm(self, palm: Array, roll: Array) -> Array:
        """Slide (m) and the forearm's three angles (rad) that put the palm (n, 3) there, (n, 4)."""
        left, up, ahead = (palm - self.BASE)[:, [0, 2, 1]].T * [[-1.0], [1.0], [1.0]]
        x = np.cos(roll) * self.REACH[0] - np.sin(roll) * self.REACH[1]
        y = np.sin(roll) * self.REACH[0] + np.cos(roll) * self.REACH[1]
        yaw = np.arcsin(np.clip(left / np.hypot(x, self.REACH[2]), -1.0, 1.0)) - np.arctan2(x, self.REACH[2])
        z = np.cos(yaw) * self.REACH[2] - np.sin(yaw) * x
        pitch = np.arctan2(y, z) - np.arcsin(np.clip(up / np.hypot(y, z), -1.0, 1.0))
        return np.column_stack([ahead - np.sin(pitch) * y - np.cos(pitch) * z, pitch, yaw, roll])

    def _action(self, arm: Array, held: Array, released: Array) -> Array:
        joints = np.zeros((len(arm), len(self.middle)))
        joints[:, :4] = arm
        joints[:, self.MIDDLE] = np.where(released, 0.0, np.where(held, 1.6, 0.9))[:, None]
        joints[:, self.TIPS] = np.where(released, 0.0, np.where(held, 1.6, 0.4))[:, None]
        joints[:, self.WRIST] = np.where(released, -0.79, 0.0)
        joints[:, self.THUMB] = np.column_stack([np.ones(len(arm)), 1.3 * held, np.full(len(arm), -0.8)])
        action: Array = (joints * self.stiffness - self.middle) / self.span
        return action


def _turned(door: Array, latch: Array) -> Array:
    """Rotations (n, 3, 3) of the handle: the door about z, then the latch about y."""
    (c, s), (k, t), zero = (np.cos(door), np.sin(door)), (np.cos(latch), np.sin(latch)), 0.0 * door
    rows = [[c * k, -s, c * t], [s * k, c, s * t], [-t, zero, k]]
    matrix: Array = np.array(rows).transpose(2, 0, 1)
    return matrix
