"""A race through gates, as a picture for people: the track from beside and above, and the vehicle on it."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sim.render.match import written
from sim.render.scene import Double, Film, turned
from sim.render.software import Artist, Camera, Picture, background, draw_path
from sim.robots.quadrotors import Quadrotor
from sim.rotations import normalised, rotation_matrices
from sim.scenes.gates import BAR, GateTrack

GATE, NEXT, SHADOW = (0.86, 0.33, 0.12), (0.12, 0.62, 0.38), (0.66, 0.69, 0.73)
TEXT = (0.15, 0.17, 0.20)
AROUND, ENLARGED = 1.0, 3.0  # m around the gates that are seen; how much larger the vehicle is drawn
FPS = 50  # of trails


def _film(
    track: GateTrack, robot: Quadrotor, height: int, width: int, position: Double, rotation: Double, due: int = 0
) -> Film:
    """The scene: all gates in view, the ground at 0. Position (m, 3) of the last moments, rotation (3, 3) now."""
    corners = track.corners.reshape(-1, 3)
    low, high = corners.min(axis=0), corners.max(axis=0)
    low[2] = 0.0
    centre = 0.5 * (low + high)
    radius = 0.5 * float(np.linalg.norm(high - low)) * max(1.0, 0.75 * height / width) + AROUND
    count = len(position)
    return Film(
        position[:, None],
        np.broadcast_to(rotation, (count, 1, 3, 3)),
        np.broadcast_to(track.centre[due], (count, 1, 3)),
        turned(None, robot, count, 1, FPS),
        np.zeros((0, 4, 3)),
        np.zeros(count, np.int64),
        np.zeros((0, 3)),
        *(robot, FPS, width, height, centre, radius, ENLARGED, 0.0),
    )


@functools.lru_cache(maxsize=4)
def _empty(track: GateTrack, robot: Quadrotor, height: int, width: int) -> tuple[Camera, Picture]:
    """The ground with the gates' shadows, without gates."""
    film = _film(track, robot, height, width, np.zeros((1, 3)), np.eye(3))
    camera = Camera(film)
    picture = background(film, camera)
    for corners in track.corners:
        flat = corners * (1.0, 1.0, 0.0)
        _frame(camera, picture, flat, SHADOW, 0.5)
    return camera, picture


def _frame(camera: Camera, picture: Picture, corners: Double, colour: tuple[float, float, float], alpha: float) -> None:
    """Bars along the edges of an opening with corners (4, 3)."""
    middle = corners.mean(axis=0)
    away = corners - middle
    outer = middle + away * (1.0 + 0.5 * BAR * np.sqrt(2.0) / np.maximum(np.linalg.norm(away, axis=1)[:, None], 1e-6))
    pixel, depth = camera.project(outer[[0, 1, 2, 3, 0]])
    draw_path(picture, pixel, 0.5 * BAR * camera.focal / float(depth.mean()), colour, alpha)


def _frames(camera: Camera, picture: Picture, track: GateTrack, due: int, which: Iterable[int]) -> None:
    for k in which:
        _frame(camera, picture, track.corners[k], NEXT if k == due else GATE, 1.0)


def beside(
    track: GateTrack,
    robot: Quadrotor,
    trail: NDArray[np.float32],
    quaternion: NDArray[np.float32],
    due: int,
    told: tuple[float, float],
    height: int,
    width: int,
) -> NDArray[np.uint8]:
    """A vehicle whose last positions are `trail` (m, 3), the newest last; gate `due` is coloured, (height, width, 3).

    `told` are its time (s) and its speed (m/s), written below.
    """
    camera, empty = _empty(track, robot, height, width)
    place = np.nan_to_num(trail.astype(np.float64))
    turn = rotation_matrices(normalised(quaternion.astype(np.float64)[None]))[0]
    artist = Artist(_film(track, robot, height, width, place, turn, due))
    depth = camera.project(np.concatenate([place[-1:], track.centre]))[1]
    order = np.argsort(-depth[1:])
    artist.background = empty.copy()
    _frames(camera, artist.background, track, due, [k for k in order if depth[1 + k] > depth[0]])
    drawn: Picture = artist.frame(len(place) - 1).astype(np.float32) / 255.0
    _frames(camera, drawn, track, due, [k for k in order if depth[1 + k] <= depth[0]])
    picture, scale = np.round(255.0 * np.clip(drawn, 0.0, 1.0)).astype(np.uint8), max(1, width // 160)
    for number, column in zip(told, (width // 6, width - width // 6), strict=True):
        written(picture, f"{number:.1f}", TEXT, column, height - 7 * scale, scale)
    return picture
