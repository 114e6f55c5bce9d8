"""Depth pictures from known poses become one surface: a truncated signed distance field (Curless and Levoy 1996)."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.perception import open3d
from sim.perception.meshes import Mesh
from sim.perception.sensors import DepthCamera, checked

# From a camera's axes to Open3D's: x to the right, y down, z ahead.
OPTICAL = np.array([[0.0, -1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
BLOCK = 8  # cubes along a side of a block, which is what memory is asked for by
BLOCKS = 2000  # at first
MARGIN = 4.0  # cubes: farther than that from what was seen nothing is known


class Fusion:
    """A field of cubes of `size` m around what was seen."""

    def __init__(self, camera: DepthCamera, size: float) -> None:
        if not 0.0 < size < np.inf:
            raise ValueError(f"size must be above 0 m, got {size}")
        self.camera, self._library, self._seen = camera, open3d(), False
        core = self._library.core
        kinds, shapes = (core.float32, core.float32), ((1), (1))
        self._field = self._library.t.geometry.VoxelBlockGrid(
            ("tsdf", "weight"), kinds, shapes, size, BLOCK, BLOCKS, core.Device("CPU:0")
        )
        focal, across, down = camera.focal, 0.5 * (camera.width - 1), 0.5 * (camera.height - 1)
        self._lens = core.Tensor(np.array([[focal, 0.0, across], [0.0, focal, down], [0.0, 0.0, 1.0]]))

    def add(self, depth: Any, poses: Any, farthest: float = 10.0) -> None:
        """Depth (n, height, width), m; infinite, or beyond `farthest`: nothing was seen. Poses (n, 4, 4)."""
        made, depth = checked(poses), np.asarray(depth, np.float32)
        shape = (len(made), self.camera.height, self.camera.width)
        if depth.shape != shape:
            raise ValueError(f"{len(made)} poses of this camera: depth is {shape}, got {depth.shape}")
        known = np.where(np.isfinite(depth) & (depth > 0.0), depth, np.float32(0.0))
        core, image = self._library.core, self._library.t.geometry.Image
        for picture, pose in zip(known, made, strict=True):
            if not ((picture > 0.0) & (picture < farthest)).any():
                continue
            self._seen = True
            seen, to_camera = image(core.Tensor(picture)), core.Tensor(OPTICAL @ np.linalg.inv(pose))
            blocks = self._field.compute_unique_block_coordinates(seen, self._lens, to_camera, 1.0, farthest, MARGIN)
            self._field.integrate(blocks, seen, self._lens, to_camera, 1.0, farthest, MARGIN)

    def surface(self, views: int = 1) -> Mesh:
        """What was seen, in the world, in at least so many pictures. ValueError where that is nothing."""
        if not self._seen:
            raise ValueError("no depth picture has shown anything yet")
        found = self._field.extract_triangle_mesh(weight_threshold=views - 0.5)
        return Mesh(found.vertex.positions.numpy(), found.triangle.indices.numpy())
