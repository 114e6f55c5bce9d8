"""Quaternions of engines and of the world outside, and the rotation matrices of policies: 9 numbers, row-major, body
to world.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Double = NDArray[np.float64]
Number = TypeVar("Number", float, Double)

SIGNS = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])


def _entries(w: Number, x: Number, y: Number, z: Number, s: float) -> list[Number]:
    """Of the matrix of a quaternion, numbers or arrays; `s` is 2 over the square of its length."""
    return [
        1.0 - s * (y * y + z * z), s * (x * y - w * z), s * (x * z + w * y),
        s * (x * y + w * z), 1.0 - s * (x * x + z * z), s * (y * z - w * x),
        s * (x * z - w * y), s * (y * z + w * x), 1.0 - s * (x * x + y * y),
    ]  # fmt: skip


def rotation_matrix(w: float, x: float, y: float, z: float) -> list[float]:
    """Of a quaternion that need not be exactly of unit length."""
    return _entries(w, x, y, z, 2.0 / max(w * w + x * x + y * y + z * z, 1e-12))


def rotation_matrices(quaternion: Double) -> Double:
    """(..., 3, 3), of unit quaternions (..., 4), w x y z."""
    w, x, y, z = np.moveaxis(quaternion, -1, 0)
    return np.stack(_entries(w, x, y, z, 2.0), axis=-1).reshape(*quaternion.shape[:-1], 3, 3)


def normalised(quaternion: Double) -> Double:
    """Quaternions (..., 4) made of unit length."""
    length: Double = np.linalg.norm(quaternion, axis=-1, keepdims=True)
    return quaternion / length


def quaternion(rotation: Any) -> tuple[float, float, float, float]:
    """(x, y, z, w) of a rotation matrix (9,), of unit length; NaN where that is not finite."""
    r = np.asarray(rotation, np.float64).reshape(3, 3)
    products = np.zeros((4, 4))  # four times (w, x, y, z) times itself; any row but zeros is the quaternion, scaled
    np.fill_diagonal(products, 1.0 + SIGNS @ np.diag(r))
    products[0, 1:] = products[1:, 0] = r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]
    products[1:, 1:] += np.where(np.eye(3, dtype=bool), 0.0, r + r.T)
    row = products[int(np.argmax(np.diag(products)))]
    w, x, y, z = (float(v) for v in row / np.linalg.norm(row))
    return x, y, z, w


def roll_pitch_yaw(rotation: Any) -> Any:
    """(..., 3) in degrees, of rotation matrices (..., 9): turns about x, then y, then z; NaN where not finite."""
    r = np.asarray(rotation, np.float64)
    with np.errstate(all="ignore"):
        roll = np.arctan2(r[..., 7], r[..., 8])
        pitch = np.arcsin(np.clip(-r[..., 6], -1.0, 1.0))
        yaw = np.arctan2(r[..., 3], r[..., 0])
        return np.degrees(np.stack([roll, pitch, yaw], axis=-1))


def seen_from(start: Double, now: Double) -> Double:
    """A pose in the plane (4,), x, y and the heading's cosine and sine, in the axes of another."""
    (x, y), cos, sin = now[:2] - start[:2], *start[2:]
    turned = np.array([[cos, sin], [-sin, cos]])
    return np.concatenate([turned @ (x, y), turned @ now[2:]])
