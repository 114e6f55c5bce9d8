"""Where cars are along their tracks, and what of these lies ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.car.rows import COS, SIN, X, Y
from sim.engines.vector.blocks import kernel
from sim.engines.vector.simd import LANES
from sim.randomize import Array
from sim.scenes.track import Track

BACK, ON = 6, 14  # points before and behind the nearest one of a step ago among which the nearest one is looked for


class Courses(NamedTuple):
    """Tracks' centrelines, one after the other."""

    centre: Array  # (total, 2) m
    heading: Array  # (total, 2)
    first: NDArray[np.int64]  # (tracks,)
    points: NDArray[np.int64]  # (tracks,) how many
    spacing: Array  # (tracks,) m


def courses_of(tracks: Sequence[Track]) -> Courses:
    """Of several."""
    count = np.array([len(t.centre) for t in tracks], np.int64)
    centre, heading = (
        np.concatenate([getattr(t, n) for t in tracks]).astype(np.float32) for n in ("centre", "heading")
    )
    length = np.array([t.length for t in tracks])
    return Courses(centre, heading, np.cumsum(count) - count, count, (length / count).astype(np.float32))


@kernel
def follow(state, courses, track, rows, nearest, place, ahead, first, out):
    """Look where these rows (count,) are: `nearest` (n,) points, `place` (n, 3), and what lies ahead.

    A place is the way (m) along the centreline since point 0, the distance to its left, and the way since before. The
    points so many behind the nearest one, `ahead` (k,), are rows from `first` on of out (blocks, rows, LANES): x and y
    of each, in m in the axes of the car. Where `nearest` is negative it is looked for along the whole track.
    """
    for row in rows:
        block, lane, which = row // LANES, row % LANES, track[row]
        s, begin, count = state[block], courses.first[which], courses.points[which]
        x, y, cos, sin = s[X, lane], s[Y, lane], s[COS, lane], s[SIN, lane]
        old, fresh = nearest[row], nearest[row] < 0
        low, high = (0, count) if fresh else (old - BACK, old + ON)
        best, found = np.float32(np.inf), max(old, 0)
        for k in range(low, high):
            point = begin + k % count
            dx, dy = x - courses.centre[point, 0], y - courses.centre[point, 1]
            if dx * dx + dy * dy < best:
                best, found = dx * dx + dy * dy, k % count
        point = begin + found
        dx, dy = x - courses.centre[point, 0], y - courses.centre[point, 1]
        hx, hy = courses.heading[point, 0], courses.heading[point, 1]
        length = count * courses.spacing[which]
        way = found * courses.spacing[which] + dx * hx + dy * hy
        moved = np.float32(0.0) if fresh else way - place[row, 0]
        moved -= length * math.floor(moved / length + 0.5)
        nearest[row], place[row, 0], place[row, 1], place[row, 2] = found, way, hx * dy - hy * dx, moved
        for k in range(len(ahead)):
            point = begin + (found + ahead[k]) % count
            dx, dy = courses.centre[point, 0] - x, courses.centre[point, 1] - y
            out[block, first + 2 * k, lane] = dx * cos + dy * sin
            out[block, first + 2 * k + 1, lane] = dy * cos - dx * sin
