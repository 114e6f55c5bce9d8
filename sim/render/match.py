"""A football match from above, as a picture for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sim.tasks.soccer import Soccer

Double = NDArray[np.float64]

BORDER = 0.15  # m around the boards and goals
LINE = 0.025  # m, half the width of a line
GRASS, STRIPE, BOARD, WHITE = (0.16, 0.47, 0.22), (0.18, 0.51, 0.25), (0.28, 0.30, 0.33), (0.93, 0.94, 0.93)
BALL, FRONT, SEEING = (0.96, 0.52, 0.10), (0.12, 0.12, 0.14), (1.0, 1.0, 1.0)
TEAMS = ((0.16, 0.36, 0.85), (0.93, 0.80, 0.16))  # blue and yellow


def from_above(
    task: Soccer, read: Mapping[str, NDArray[np.float32]], robot: int, height: int, width: int
) -> NDArray[np.uint8]:
    """Position and heading (robots, 2) and ball_position (2,) as (height, width, 3); a ring marks this robot."""
    field, body = task.field, task.robot
    half = np.array([field.length / 2 + field.depth, field.width / 2]) + BORDER
    pixel = max(2.0 * half[0] / width, 2.0 * half[1] / height)  # m
    x = (np.arange(width) + 0.5 - width / 2) * pixel
    y = (height / 2 - np.arange(height) - 0.5)[:, None] * pixel

    picture = np.empty((height, width, 3))
    picture[:] = BOARD

    def paint(distance: Double, colour: tuple[float, float, float]) -> None:
        """Where the distance (m) from a shape is negative, with edges one pixel wide."""
        share = np.clip(0.5 - distance / pixel, 0.0, 1.0)[..., None]
        picture[:] += share * (np.array(colour) - picture)

    length, side = field.length / 2, field.width / 2
    inside = np.maximum(np.abs(x) - length, np.abs(y) - side)
    goals = np.maximum(np.abs(np.abs(x) - length - field.depth / 2) - field.depth / 2, np.abs(y) - field.goal / 2)
    paint(inside, GRASS)
    paint(np.maximum(inside, np.abs(np.mod(x, 1.0) - 0.5) - 0.25), STRIPE)
    paint(goals, WHITE)
    around = np.hypot(x, y)
    for lines in (np.abs(inside), np.maximum(np.abs(x) + 0.0 * y, inside), np.abs(around - field.circle)):
        paint(np.maximum(lines - LINE, inside), WHITE)
    for k, (place, heading) in enumerate(zip(read["position"], read["heading"], strict=True)):
        ahead = (x - place[0]) * heading[0] + (y - place[1]) * heading[1]
        away = np.hypot(x - place[0], y - place[1])
        shape = np.maximum(away - body.radius, ahead - body.front)
        if k == robot:
            paint(np.abs(away - 1.3 * body.radius) - 0.5 * LINE, SEEING)
        paint(shape, TEAMS[k // task.players])
        paint(np.maximum(shape, body.front - 0.02 - ahead), FRONT)
    paint(np.hypot(x - read["ball_position"][0], y - read["ball_position"][1]) - task.ball.radius, BALL)
    return np.round(255.0 * picture).astype(np.uint8)
