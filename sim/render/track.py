"""A race from above, as a picture for people: the track, the car, and what its lidar sees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.engines.car.grids import CELL, UNIT, grid_of
from sim.render.match import Canvas, Colour, Double, written

if TYPE_CHECKING:
    from sim.robots.cars import Car
    from sim.scenes.track import Track

BORDER = 0.4  # m around the walls
WALL, DASH = 0.05, 1.0  # m: half the width of walls; length of a dash of the centreline and its gap
GROUND, ASPHALT, LINE, EDGE = (0.36, 0.42, 0.34), (0.25, 0.26, 0.28), (0.42, 0.43, 0.45), (0.90, 0.90, 0.88)
BODY, GLASS, WHEEL, BEAM = (0.86, 0.20, 0.14), (0.12, 0.13, 0.16), (0.05, 0.05, 0.05), (0.98, 0.78, 0.20)
OTHER = (0.24, 0.47, 0.84)  # cars of others
TEXT = (0.95, 0.95, 0.95)


@functools.lru_cache(maxsize=8)
def _empty(track: Track, height: int, width: int) -> Canvas:
    """The track without a car."""
    points = np.concatenate([track.wall(1.0), track.wall(-1.0)])
    low, high = points.min(axis=0) - BORDER, points.max(axis=0) + BORDER
    pixel = max((high[0] - low[0]) / width, (high[1] - low[1]) / height)
    middle = 0.5 * (low + high)
    x = middle[0] + (np.arange(width)[None] + 0.5 - width / 2) * pixel
    y = middle[1] + (height / 2 - np.arange(height)[:, None] - 0.5) * pixel
    canvas = Canvas(np.empty((height, width, 3), np.float32), x, y, pixel)
    canvas.picture[:] = GROUND
    grid, corner = grid_of(track)
    rows, columns = grid.shape
    column = np.clip(np.round((x - corner[0]) / CELL), 0, columns - 1).astype(int)
    row = np.clip(np.round((y - corner[1]) / CELL), 0, rows - 1).astype(int)
    away: Double = grid[row, column] * UNIT
    canvas.paint(-away, ASPHALT)
    for k in range(0, len(track.centre), max(1, round(2.0 * DASH / track.spacing))):
        place, along = track.centre[k], track.heading[k]
        canvas.paint_near(place, DASH, _box(place, along, 0.5 * DASH, 0.02), LINE)
    canvas.paint(np.abs(away) - WALL, EDGE)
    return canvas


def _box(place: Double, along: Double, half: float, side: float) -> Callable[[Canvas], Double]:
    """The distance from a rectangle around a place."""

    def shape(part: Canvas) -> Double:
        x, y = part.x - place[0], part.y - place[1]
        ahead, aside = np.abs(x * along[0] + y * along[1]) - half, np.abs(y * along[0] - x * along[1]) - side
        distance: Double = np.maximum(ahead, aside)
        return distance

    return shape


def _dot(place: Double, radius: float) -> Callable[[Canvas], Double]:
    """The same of a disc."""

    def shape(part: Canvas) -> Double:
        distance: Double = np.hypot(part.x - place[0], part.y - place[1]) - radius
        return distance

    return shape


def _car(canvas: Canvas, car: Car, read: Mapping[str, NDArray[np.float32]], colour: Colour) -> None:
    """A car of which position, heading (2,) and steering_angle (1,) are read."""
    place, along = read["position"].astype(np.float64), read["heading"].astype(np.float64)
    aside = np.array([-along[1], along[0]])
    reach = 0.7 * car.length + canvas.pixel
    middle = place + 0.5 * (car.front - car.rear) * along
    turn = float(read["steering_angle"][0])
    steered = np.cos(turn) * along + np.sin(turn) * aside
    for end, ahead in ((car.front, steered), (-car.rear, along)):
        for side in (-0.5, 0.5):
            wheel = place + end * along + side * car.width * aside
            size = 0.1 * car.length, 0.07 * car.length
            canvas.paint_near(wheel, reach, _box(wheel, ahead, *size), WHEEL)
    half = 0.5 * car.length, 0.4 * car.width
    canvas.paint_near(middle, reach, _box(middle, along, *half), colour)
    glass = middle + 0.05 * car.length * along
    canvas.paint_near(glass, reach, _box(glass, along, 0.12 * car.length, 0.3 * car.width), GLASS)


def from_above(
    track: Track,
    car: Car,
    read: Mapping[str, NDArray[np.float32]],
    beams: tuple[NDArray[np.float32], NDArray[np.float32]],
    told: tuple[float, float],
    height: int,
    width: int,
    others: Sequence[Mapping[str, NDArray[np.float32]]] = (),
) -> NDArray[np.uint8]:
    """A car of which position, heading (2,) and steering_angle (1,) are read, and others, as (height, width, 3).

    Dots are where `beams`, m and rad from ahead, end. `told` are its time (s) and its speed (m/s), written below.
    """
    canvas = _empty(track, height, width)
    canvas = canvas._replace(picture=canvas.picture.copy())
    place, along = read["position"].astype(np.float64), read["heading"].astype(np.float64)
    aside = np.array([-along[1], along[0]])
    eye = place + car.lidar * along
    for far, angle in zip(*beams, strict=True):
        dot = eye + float(far) * (np.cos(angle) * along + np.sin(angle) * aside)
        canvas.paint_near(dot, 0.3, _dot(dot, 0.06), BEAM)
    for other in others:
        _car(canvas, car, other, OTHER)
    _car(canvas, car, read, BODY)
    picture, scale = np.round(255.0 * canvas.picture).astype(np.uint8), max(1, width // 120)
    for number, column in zip(told, (width // 6, width - width // 6), strict=True):
        written(picture, f"{number:.1f}", TEXT, column, height - 7 * scale, scale)
    return picture
