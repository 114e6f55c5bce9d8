"""Pure pursuit among other cars: behind them, or past them where there is room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sim.env import Array
from sim.experts.pursuit import BRAKING, curvature, pursuit
from sim.scenes.track import WIDTH

if TYPE_CHECKING:
    from sim.tasks.race.multi import CarRaceMulti

# Ours.
KEPT, LATE = 0.25, 0.15  # m from bumper to bumper, and s of its speed, that it keeps behind another car
CLEAR = 0.1  # m between the sides of cars, and beside walls, from which on they are not in its way
SEEN, PAST = 4.0, 0.3  # m along the track within which a car ahead is passed, and until its tail is so far ahead of it
FASTER = 1.0  # m/s more than that car drives, meanwhile
BENT, BEYOND = 0.4, 10  # 1/m: it begins only where no bend is tighter, at so many points of the path ahead


def _along(path: Array) -> tuple[Array, Array]:
    """Of lines (n, k, 2): unit vectors along them (n, k, 2), and m until each point (n, k)."""
    steps = np.diff(path, axis=1)
    length = np.linalg.norm(steps, axis=-1)
    heading = steps / np.maximum(length, 1e-6)[..., None]
    until = np.concatenate([np.zeros((len(path), 1)), length.cumsum(axis=1)], axis=1)
    return np.concatenate([heading, heading[:, -1:]], axis=1), until


def _others(task: CarRaceMulti, signals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Other cars (n, others): m along the centreline ahead, m to the left of it, and m/s along it."""
    n = len(signals["path"])
    path = signals["path"].reshape(n, -1, 2)
    place, moves = (signals[name].reshape(n, -1, 2) for name in ("others", "others_velocity"))
    heading, until = _along(path)
    nearest = np.linalg.norm(place[:, :, None] - path[:, None], axis=-1).argmin(axis=2)
    rows = np.arange(n)[:, None]
    ahead, off = heading[rows, nearest], place - path[rows, nearest]
    own = -(path[:, 0] * heading[:, 0]).sum(axis=-1, keepdims=True)
    along = until[rows, nearest] + (off * ahead).sum(axis=-1) - own
    aside = ahead[..., 0] * off[..., 1] - ahead[..., 1] * off[..., 0]
    return along, aside, ((moves + signals["velocity"][:, None]) * ahead).sum(axis=-1)


def _limit(task: CarRaceMulti, signals: Mapping[str, Array], line: Array, others: tuple[Array, Array, Array]) -> Array:
    """The speed (n,) with which it stays behind cars between it and the line (n,), m to the left of the centreline."""
    along, aside, speed = others
    reach = task.robot.width + CLEAR
    own, to = signals["offset"], line[:, None]
    way = (along > 0.5 * task.robot.length) & (aside > np.minimum(own, to) - reach)
    way &= aside < np.maximum(own, to) + reach
    room = along - task.robot.length - KEPT - LATE * np.maximum(signals["velocity"][:, :1], 0.0)
    held = np.maximum(speed, 0.0)
    allowed = np.where(room > 0.0, np.sqrt(held**2 + 2.0 * BRAKING * np.maximum(room, 0.0)), held + 2.0 * room)
    slowest: Array = np.where(way, np.maximum(allowed, 0.0), np.inf).min(axis=1)
    return slowest


def following(task: CarRaceMulti, signals: Mapping[str, Array], pace: float | Array = 1.0) -> dict[str, Array]:
    """It stays behind whoever is in its way; noise-free signals (n, k)."""
    middle = np.zeros(len(signals["path"]))
    return pursuit(task, signals, pace=pace, limit=_limit(task, signals, middle, _others(task, signals)))


def paced(task: CarRaceMulti, signals: Mapping[str, Array]) -> dict[str, Array]:
    """The same with its own pace, which is drawn for each car and episode."""
    return following(task, signals, signals["pace"][:, 0])


def passing(task: CarRaceMulti, signals: Mapping[str, Array]) -> dict[str, Array]:
    """It drives past the next car, between it and the wall, on the side on which it is or that has more room."""
    along, aside, speed = others = _others(task, signals)
    n, width, edge = len(along), task.robot.width, 0.5 * WIDTH
    rows, offset = np.arange(n), signals["offset"][:, 0]
    near = (along > -task.robot.length - PAST) & (along < SEEN)
    which = np.where(near, np.abs(along), np.inf).argmin(axis=1)
    meant, at = near[rows, which], aside[rows, which]
    beside = np.abs(offset - at) > width
    left = np.where(beside & (along[rows, which] < task.robot.length), offset > at, at < 0.0)
    side = np.where(left, 1.0, -1.0)
    room = edge - side * at - 0.5 * width  # between that car and the wall
    path = signals["path"].reshape(n, -1, 2)
    easy = np.abs(curvature(path)[:, :BEYOND]).max(axis=1) < BENT
    fits = meant & (room > width + 2.0 * CLEAR) & (easy | beside)
    line = np.where(fits, at + side * 0.5 * (width + room), 0.0)
    heading, _ = _along(path)
    normal = np.stack([-heading[..., 1], heading[..., 0]], axis=-1)
    moved = (path + line[:, None, None] * normal).reshape(n, -1)
    limit = np.minimum(_limit(task, signals, line, others), np.where(fits, speed[rows, which] + FASTER, np.inf))
    return pursuit(task, {**signals, "path": moved}, limit=limit)
