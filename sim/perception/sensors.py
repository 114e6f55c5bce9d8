"""Depth cameras and lidars: the rays of many at once, what they measure in a scene, and the points that they saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.perception.casting import NOTHING, Array, Hits, MeshScene
from sim.perception.meshes import Double


def checked(poses: Any) -> Double:
    """As (n, 4, 4); ValueError unless they are poses."""
    made = np.asarray(poses, np.float64)
    made = made[None] if made.ndim == 2 else made
    if made.ndim != 3 or made.shape[1:] != (4, 4) or not np.isfinite(made).all():
        raise ValueError(f"poses are 4 x 4 finite numbers, one or many, got {np.shape(poses)}")
    turn = made[:, :3, :3]
    if not np.allclose(turn @ turn.transpose(0, 2, 1), np.eye(3), atol=1e-4) or (np.linalg.det(turn) < 0.0).any():
        raise ValueError("the first three rows and columns of a pose are a rotation")
    return made


def _rays(directions: Double, poses: Any) -> Array:
    """(n, rows, columns, 6) from directions (rows, columns, 3) in each sensor's axes."""
    made = checked(poses)
    turned = np.einsum("nij,rcj->nrci", made[:, :3, :3], directions)
    origins = np.broadcast_to(made[:, None, None, :3, 3], turned.shape)
    return np.concatenate([origins, turned], axis=-1).astype(np.float32)


def _limited(hits: Hits, nearest: float, farthest: float) -> Hits:
    """Without what is too near or too far to be measured."""
    lost = (hits.distance < nearest) | (hits.distance > farthest)
    distance = np.where(lost, np.float32(np.inf), hits.distance)
    return Hits(distance, np.where(lost, NOTHING, hits.part), np.where(lost[..., None], np.float32(0.0), hits.normal))


def _points(directions: Double, distance: Any, poses: Any) -> Double:
    """The points (count, 3) in the world at these distances (n, rows, columns), where those are finite."""
    made, distance = checked(poses), np.asarray(distance, np.float64)
    if distance.shape != (len(made), *directions.shape[:2]):
        raise ValueError(f"{len(made)} poses with {directions.shape[:2]} rays each: got {distance.shape} distances")
    there = np.isfinite(distance)
    sensor = np.nonzero(there)[0]
    away = distance[there][:, None] * np.broadcast_to(directions, (*distance.shape, 3))[there]
    points: Double = np.einsum("kij,kj->ki", made[sensor, :3, :3], away) + made[sensor, :3, 3]
    return points


def _limits(nearest: float, farthest: float) -> None:
    if not 0.0 <= nearest < farthest:
        raise ValueError(f"nearest and farthest need 0 <= nearest < farthest, got {nearest:g} and {farthest:g} m")


@dataclass(frozen=True)
class DepthCamera:
    """A pinhole camera that measures depth: m along its axis, from its middle."""

    height: int = 120  # pixels
    width: int = 160
    view: float = 90.0  # degrees, across
    nearest: float = 0.0  # m of depth: what is nearer or farther is not measured
    farthest: float = math.inf

    def __post_init__(self) -> None:
        if not (1 <= self.height <= 4096 and 1 <= self.width <= 4096):
            raise ValueError(f"a picture has 1 to 4096 rows and columns, got {self.height} x {self.width}")
        if not 1.0 <= self.view <= 170.0:
            raise ValueError(f"a camera sees 1 to 170 degrees, got {self.view}")
        _limits(self.nearest, self.farthest)

    @property
    def focal(self) -> float:
        """In pixels."""
        return 0.5 * self.width / math.tan(math.radians(self.view) / 2.0)

    @property
    def directions(self) -> Double:
        """Of its rays in its axes, (height, width, 3), of depth 1: through the middle of each pixel."""
        made = np.ones((self.height, self.width, 3))
        made[..., 1] = (self.width / 2.0 - np.arange(self.width) - 0.5) / self.focal
        made[..., 2] = ((self.height / 2.0 - np.arange(self.height) - 0.5) / self.focal)[:, None]
        return made

    def rays(self, poses: Any) -> Array:
        """(n, height, width, 6) of cameras with poses (n, 4, 4)."""
        return _rays(self.directions, poses)

    def see(self, scene: MeshScene, poses: Any) -> Hits:
        """Depth (n, height, width), infinite where nothing is; which part; its normal."""
        return _limited(scene.cast(self.rays(poses)), self.nearest, self.farthest)

    def points(self, depth: Any, poses: Any) -> Double:
        """(count, 3) in the world, of all cameras, where depth (n, height, width) is finite."""
        return _points(self.directions, depth, poses)


@dataclass(frozen=True)
class Lidar:
    """A lidar that turns: beams in `channels` elevations and `columns` azimuths, degrees; the first row is the highest.

    Azimuths go from the left to the right, as columns of pictures do; 360 degrees end a column before they begin.
    """

    channels: int = 16
    columns: int = 360
    lowest: float = -15.0  # degrees of elevation
    highest: float = 15.0
    around: float = 360.0  # degrees, half of it to either side
    nearest: float = 0.1  # m: what is nearer or farther is not measured
    farthest: float = 100.0
    noise: float = 0.0  # m, one standard deviation of a measured range

    def __post_init__(self) -> None:
        if not (1 <= self.channels <= 4096 and 1 <= self.columns <= 100_000):
            raise ValueError(f"a lidar has 1 to 4096 channels and 1 to 100000 columns: {self.channels}, {self.columns}")
        if not (-90.0 <= self.lowest <= self.highest <= 90.0 and 0.0 < self.around <= 360.0):
            raise ValueError("a lidar needs -90 <= lowest <= highest <= 90 and 0 < around <= 360 degrees")
        if not 0.0 <= self.noise < math.inf:
            raise ValueError(f"noise must be a standard deviation in m, got {self.noise}")
        _limits(self.nearest, self.farthest)

    @property
    def elevations(self) -> Double:
        """Of the rows, rad."""
        return np.radians(np.linspace(self.highest, self.lowest, self.channels))

    @property
    def azimuths(self) -> Double:
        """Of the columns, rad from ahead to the left."""
        step = self.around / self.columns
        angles: Double = np.radians(self.around / 2.0 - step * (np.arange(self.columns) + 0.5))
        return angles

    @property
    def directions(self) -> Double:
        """Of its beams in its axes, (channels, columns, 3), of length 1."""
        up, around = self.elevations[:, None], self.azimuths
        flat = np.cos(up)
        return np.stack([flat * np.cos(around), flat * np.sin(around), np.sin(up) + 0.0 * around], axis=-1)

    def rays(self, poses: Any) -> Array:
        """(n, channels, columns, 6) of lidars with poses (n, 4, 4)."""
        return _rays(self.directions, poses)

    def scan(self, scene: MeshScene, poses: Any, rng: np.random.Generator | None = None) -> Hits:
        """Ranges (n, channels, columns) in m, infinite where nothing is; which part; its normal. `rng` makes noise."""
        hits = _limited(scene.cast(self.rays(poses)), self.nearest, self.farthest)
        if not self.noise:
            return hits
        if rng is None:
            raise ValueError("a lidar with noise needs a generator: scan(scene, poses, np.random.default_rng(seed))")
        off = rng.normal(0.0, self.noise, hits.distance.shape)
        return Hits(np.maximum(hits.distance + off, 0.0).astype(np.float32), hits.part, hits.normal)

    def points(self, distance: Any, poses: Any) -> Double:
        """(count, 3) in the world, of all lidars, where ranges (n, channels, columns) are finite."""
        return _points(self.directions, distance, poses)
