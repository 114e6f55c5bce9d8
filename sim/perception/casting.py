"""Rays cast at surfaces of triangles (Open3D's RaycastingScene, on Embree): what each meets first, and how far away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.perception import open3d
from sim.perception.meshes import Mesh

Array = NDArray[np.float32]
NOTHING = -1


@dataclass(frozen=True, eq=False)
class Hits:
    """What rays (..., 6) meet first, from either side of its surface."""

    distance: Array  # (...) in lengths of the ray's direction; infinite where it meets nothing
    part: NDArray[np.int64]  # (...) number in the scene's `names`; NOTHING
    normal: Array  # (..., 3) of the triangle, in the world, of length 1; zeros where it meets nothing


class MeshScene:
    """Parts by name, each a surface in axes of its own, that can be moved."""

    def __init__(self, parts: Mapping[str, Mesh], poses: Mapping[str, Any] | None = None, threads: int = 0) -> None:
        """`poses` (4, 4) by name: left out, the axes are the world's. `threads`: 0 takes all cores."""
        if not parts:
            raise ValueError("a scene has at least one part")
        self.names, self._threads = tuple(parts), threads
        self._parts, self._library = dict(parts), open3d()
        self._poses: dict[str, Any] = dict.fromkeys(self.names, np.eye(4))
        self.move(poses or {})

    def move(self, poses: Mapping[str, Any]) -> None:
        """Put parts elsewhere (4, 4); the others stay. All are built again."""
        for name, pose in poses.items():
            if name not in self._parts:
                raise KeyError(f"the scene has no part {name!r}; it has: {', '.join(self.names)[:2000]}")
            if np.shape(pose) != (4, 4) or not np.isfinite(pose).all():
                raise ValueError(f"the pose of {name} must be 4 x 4 finite numbers, got {np.shape(pose)}")
            self._poses[name] = np.asarray(pose, np.float64)
        core, scene = self._library.core, self._library.t.geometry.RaycastingScene(self._threads)
        for name, part in self._parts.items():
            mesh = part.moved(self._poses[name])
            vertices, triangles = mesh.vertices.astype(np.float32), mesh.triangles.astype(np.uint32)
            scene.add_triangles(core.Tensor(vertices), core.Tensor(triangles))
        self._scene = scene

    def cast(self, rays: Any) -> Hits:
        """Of rays (..., 6): origin in m, direction of any length but 0."""
        rays = np.ascontiguousarray(rays, np.float32)
        if rays.ndim < 1 or rays.shape[-1] != 6 or not np.isfinite(rays).all() or not rays[..., 3:].any(axis=-1).all():
            raise ValueError(f"rays are (..., 6), an origin and a direction, finite and not 0; got {rays.shape}")
        found = self._scene.cast_rays(self._library.core.Tensor(rays.reshape(-1, 6)))
        part = found["geometry_ids"].numpy().astype(np.int64)
        part[part == self._scene.INVALID_ID] = NOTHING
        shape = rays.shape[:-1]
        normal = found["primitive_normals"].numpy().reshape(*shape, 3)
        return Hits(found["t_hit"].numpy().reshape(shape), part.reshape(shape), normal)

    def distance(self, points: Any) -> Array:
        """How far points (..., 3) are from the nearest surface, m."""
        points = np.ascontiguousarray(points, np.float32)
        found = self._scene.compute_distance(self._library.core.Tensor(points.reshape(-1, 3)))
        nearest: Array = found.numpy().reshape(points.shape[:-1])
        return nearest
