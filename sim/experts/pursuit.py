"""Pure pursuit (Coulter 1992) with a speed profile: steer for a point of the centreline, and brake before bends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sim.env import Array
from sim.robots.cars import GRAVITY

if TYPE_CHECKING:
    from sim.tasks.race import CarRace

GRIP = 0.45  # share of the nominal friction that it uses in bends
BRAKING = 3.0  # m/s^2
ACCELERATING, SUDDEN = 4.0, 1.5  # m/s^2, and by which it may brake harder than it means to
NEAREST, SOON = 0.9, 0.2  # m, and s of its speed: how far the point is that it steers for
LATE = 0.1  # s by which it acts late: as far it looks ahead for its speed


def curvature(path: Array) -> Array:
    """1/m at the points (n, k, 2) of a line, those at its ends as beside them."""
    before, after = path[:, 1:-1] - path[:, :-2], path[:, 2:] - path[:, 1:-1]
    area = before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0]
    sides = [np.linalg.norm(side, axis=-1) for side in (before, after, before + after)]
    inner = 2.0 * area / np.maximum(sides[0] * sides[1] * sides[2], 1e-6)
    made: Array = np.concatenate([inner[:, :1], inner, inner[:, -1:]], axis=1)
    return made


def profile(path: Array, grip: float, braking: float, most: float) -> Array:
    """Speeds (n, k) in m/s at the points (n, k, 2) of a line with which it can be driven.

    `grip` is the lateral acceleration (m/s^2) in bends; before them it is braked.
    """
    made: Array = np.minimum(np.sqrt(grip / np.maximum(np.abs(curvature(path)), 1e-3)), most)
    steps = np.linalg.norm(np.diff(path, axis=1), axis=-1)
    for k in range(made.shape[1] - 2, -1, -1):
        made[:, k] = np.minimum(made[:, k], np.sqrt(made[:, k + 1] ** 2 + 2.0 * braking * steps[:, k]))
    return made


def pursuit(
    task: CarRace,
    signals: Mapping[str, Array],
    grip: float = GRIP,
    braking: float = BRAKING,
    most: float = math.inf,
    nearest: float = NEAREST,
    pace: float | Array = 1.0,
    limit: float | Array = math.inf,
) -> dict[str, Array]:
    """Commands for noise-free signals (n, k), `path` and `velocity` among them; at most `most` m/s.

    `pace`, of each (n,) or of all, is the share of the speed that it drives with; `limit` what it must not exceed now.
    """
    steer, speed = task.commands
    path = signals["path"].reshape(len(signals["path"]), -1, 2)
    now = np.maximum(signals["velocity"][:, 0], 0.0)
    way = np.concatenate([np.zeros((len(path), 1)), np.linalg.norm(np.diff(path, axis=1), axis=-1).cumsum(axis=1)], 1)
    share = task.robot.wheelbase / 0.33  # of a car's size
    rows, at = np.arange(len(path)), np.argmax(way >= (nearest * share + SOON * now)[:, None], axis=1)
    x, y = np.moveaxis(path[rows, at], -1, 0)
    x = x + task.robot.rear  # from the rear axle, which follows the circle
    angle = np.arctan(task.robot.wheelbase * 2.0 * y / np.maximum(x * x + y * y, 1e-6))
    speeds = profile(path, grip * task.robot.friction * GRAVITY, braking, min(most, speed.high))
    wanted = np.minimum(pace * speeds[rows, np.argmax(way >= (LATE * now)[:, None], axis=1)], limit)
    gain = task.robot.speed_gain  # tyres that push hold less aside
    wanted = np.clip(wanted, now - SUDDEN * braking / gain, now + ACCELERATING / gain)
    made = {steer.name: angle, speed.name: wanted}
    return {s.name: np.clip(made[s.name], s.low, s.high).astype(np.float32)[:, None] for s in (steer, speed)}
