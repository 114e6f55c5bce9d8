"""Axes of MAVLink and ours. Theirs: world north, east, down; body forward, right, down. Ours: z up, y left.

Our world has the same origin. Its x axis points north, or wherever the vehicle's nose pointed: a policy that turns
its vehicle to the x axis then leaves it as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.rotations import rotation_matrix

Array = NDArray[np.float64]

FLIP = np.array([1.0, -1.0, -1.0])  # (x, y, z) <-> (x, -y, -z), of both: right to left, down to up


class Axes:
    """Our world's, whose x axis points `heading` rad from north, clockwise as a compass counts."""

    def __init__(self, heading: float = 0.0) -> None:
        self.heading = heading
        c, s = math.cos(heading), math.sin(heading)
        self.turn = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])  # of north, west, up

    def world(self, ned: Any) -> Array:
        """A vector (3,) north, east, down in our world."""
        return np.asarray(self.turn @ (np.asarray(ned, np.float64) * FLIP))

    def ned(self, world: Any) -> Array:
        """The inverse of `world`."""
        found: Array = (self.turn.T @ np.asarray(world, np.float64).reshape(3)) * FLIP
        return found

    def rotation(self, quaternion: Sequence[float]) -> Array:
        """Body to world (9,), of MAVLink's quaternion w, x, y, z: forward, right, down to north, east, down."""
        w, x, y, z = quaternion
        matrix = np.array(rotation_matrix(w, x, y, z)).reshape(3, 3)
        return np.asarray(self.turn @ (FLIP[:, None] * matrix * FLIP)).reshape(9)


def body(frd: Any) -> Array:
    """A vector (3,) forward, right, down as forward, left, up; or back, which is the same."""
    turned: Array = np.asarray(frd, np.float64).reshape(3) * FLIP
    return turned


def heading_of(quaternion: Sequence[float]) -> float:
    """Where the nose points (rad from north, clockwise), of MAVLink's quaternion w, x, y, z."""
    w, x, y, z = quaternion
    return math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
