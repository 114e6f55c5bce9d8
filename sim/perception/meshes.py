"""Surfaces as triangles, and those of simple bodies around the origin. m; seen from outside a triangle turns left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Double = NDArray[np.float64]
SEGMENTS = 64  # around a sphere: nowhere is it more than 0.25 % of the radius inside the true one
FARTHEST = 1e6  # m from the origin


@dataclass(frozen=True, eq=False)
class Mesh:
    """Vertices (n, 3) and, by their numbers, triangles (m, 3)."""

    vertices: Double
    triangles: NDArray[np.int64]

    def __post_init__(self) -> None:
        vertices, triangles = np.asarray(self.vertices, np.float64), np.asarray(self.triangles, np.int64)
        for name, value in (("vertices", vertices), ("triangles", triangles)):
            if value.ndim != 2 or value.shape[1] != 3:
                raise ValueError(f"a mesh's {name} are (count, 3), got {value.shape}")
        if not len(triangles):
            raise ValueError("a mesh has at least one triangle")
        if not (np.abs(vertices) <= FARTHEST).all():  # nor NaN
            raise ValueError(f"a mesh's vertices are numbers up to {FARTHEST:g} m")
        if triangles.min() < 0 or triangles.max() >= len(vertices):
            raise ValueError(
                f"a triangle has vertices 0 to {len(vertices) - 1}, got {triangles.min()}, {triangles.max()}"
            )
        object.__setattr__(self, "vertices", vertices)
        object.__setattr__(self, "triangles", triangles)

    def moved(self, pose: Any) -> Mesh:
        """In the world, of one given in axes with this pose (4, 4)."""
        pose = np.asarray(pose, np.float64)
        return Mesh(self.vertices @ pose[:3, :3].T + pose[:3, 3], self.triangles)


def pose_of(rotation: Any, position: Any) -> Double:
    """(..., 4, 4) from rotation matrices (..., 3, 3), to the world, and positions (..., 3), m."""
    rotation, position = np.asarray(rotation, np.float64), np.asarray(position, np.float64)
    made = np.zeros((*rotation.shape[:-2], 4, 4))
    made[..., :3, :3], made[..., :3, 3], made[..., 3, 3] = rotation, position, 1.0
    return made


def looking(eye: Any, at: Any) -> Double:
    """The pose (4, 4) of a sensor at `eye` that looks at a point, m, upright; straight up or down has no such pose."""
    eye, at = np.asarray(eye, np.float64), np.asarray(at, np.float64)
    away = float(np.linalg.norm(at - eye))
    left = np.cross((0.0, 0.0, 1.0), at - eye)
    if not np.linalg.norm(left) > 1e-9 * max(away, 1e-9):
        raise ValueError(f"from {eye} to {at} there is no upright view")
    ahead, left = (at - eye) / away, left / np.linalg.norm(left)
    return pose_of(np.stack([ahead, left, np.cross(ahead, left)], axis=1), eye)


def plane(half_length: float, half_width: float) -> Mesh:
    """A rectangle in the plane of x and y, seen from above."""
    x, y = half_length, half_width
    return Mesh(np.array([[-x, -y, 0.0], [x, -y, 0.0], [x, y, 0.0], [-x, y, 0.0]]), np.array([[0, 1, 2], [0, 2, 3]]))


def box(half: Any) -> Mesh:
    """With half sizes (3,)."""
    corners = np.array([[x, y, z] for z in (-1.0, 1.0) for y in (-1.0, 1.0) for x in (-1.0, 1.0)])
    sides = [(0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5)]
    return Mesh(
        corners * np.asarray(half, np.float64), np.array([t for a, b, c, d in sides for t in ((a, b, c), (a, c, d))])
    )


def turned(profile: Any, segments: int = SEGMENTS) -> Mesh:
    """The surface that a profile (n, 2), of distances from the z axis and heights, from below, makes as it turns."""
    profile = np.asarray(profile, np.float64)
    angle = 2.0 * math.pi * np.arange(segments) / segments
    around = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    rings = np.concatenate([profile[:, None, :1] * around, np.repeat(profile[:, None, 1:], segments, axis=1)], axis=2)
    low = segments * np.arange(len(profile) - 1)[:, None] + np.arange(segments)
    beside = low + (np.arange(segments) + 1) % segments - np.arange(segments)
    faces = np.stack([low, beside, beside + segments, low, beside + segments, low + segments], axis=-1)
    triangles, vertices = faces.reshape(-1, 3), rings.reshape(-1, 3)
    edges = vertices[triangles[:, [1, 2, 0]]] - vertices[triangles]
    area = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1)
    return Mesh(vertices, triangles[area > 1e-12 * np.abs(profile).max() ** 2])  # not those at the poles


def ellipsoid(half: Any, segments: int = SEGMENTS) -> Mesh:
    """With half axes (3,)."""
    angle = np.linspace(-math.pi / 2.0, math.pi / 2.0, segments // 2 + 1)
    profile = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    profile[[0, -1], 0] = 0.0
    unit = turned(profile, segments)
    return Mesh(unit.vertices * np.asarray(half, np.float64), unit.triangles)


def sphere(radius: float, segments: int = SEGMENTS) -> Mesh:
    """Around the origin."""
    return ellipsoid((radius, radius, radius), segments)


def cylinder(radius: float, half: float, segments: int = SEGMENTS) -> Mesh:
    """Along z, from -half to half."""
    return turned([(0.0, -half), (radius, -half), (radius, half), (0.0, half)], segments)


def capsule(radius: float, half: float, segments: int = SEGMENTS) -> Mesh:
    """A cylinder along z, from -half to half, with half a sphere at either end."""
    angle = np.linspace(0.0, math.pi / 2.0, segments // 4 + 1)
    upper = np.stack([radius * np.cos(angle), half + radius * np.sin(angle)], axis=1)
    upper[-1, 0] = 0.0
    return turned(np.concatenate([upper[::-1] * (1.0, -1.0), upper]), segments)


def height_field(heights: Any, half_length: float, half_width: float, below: float) -> Mesh:
    """Ground over x (columns) and y (rows), heights (rows, columns) in m, as a solid down to z = -below."""
    heights = np.asarray(heights, np.float64)
    rows, columns = heights.shape
    x, y = np.meshgrid(np.linspace(-half_length, half_length, columns), np.linspace(-half_width, half_width, rows))
    top = np.stack([x, y, heights], axis=-1).reshape(-1, 3)
    number = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = (n.reshape(-1) for n in (number[:-1, :-1], number[:-1, 1:], number[1:, 1:], number[1:, :-1]))
    upper = np.concatenate([np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)])
    rim = np.concatenate([number[0, :-1], number[:-1, -1], number[-1, :0:-1], number[:0:-1, 0]])
    after, count = np.roll(rim, -1), rows * columns
    bottom = np.concatenate([top[:, :2], np.full((count, 1), -below)], axis=1)
    skirt = np.concatenate(
        [np.stack([rim, rim + count, after + count], axis=1), np.stack([rim, after + count, after], axis=1)]
    )
    lower = upper[:, ::-1] + count
    return Mesh(np.concatenate([top, bottom]), np.concatenate([upper, skirt, lower]))
