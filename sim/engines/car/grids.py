"""Tracks as grids of the signed distance to the nearest wall: positive where cars drive, negative behind walls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.car.rows import PARAMETER_ROWS
from sim.engines.vector.blocks import inlined, kernel
from sim.engines.vector.simd import looked_up_pair, number, whole
from sim.randomize import Array
from sim.scenes.track import Track

CELL = 0.1  # m; between its corners distances are interpolated
UNIT = 1e-4  # m of a whole number: tracks are to stay in the cache, which costs a lidar more than arithmetic
REACH = 1.6  # m: what is further from all walls is said to be as far
MARGIN = 0.8  # m around a track
ZERO, ONE = np.float32(0.0), np.float32(1.0)
PER_METRE = np.float32(1.0 / CELL)
FINE = np.float32(UNIT)
# Rows of where a car's track is: in cells, the largest coordinates that count; in the array, its first one, its width.
RIGHT, TOP = range(2)
LEFT_X, LOW_Y, PLACE_ROWS = 2, 3, 4
FIRST, COLUMNS, INDEX_ROWS = 0, 1, 2


class Grids(NamedTuple):
    """Tracks' grids, one after the other, row by row."""

    cells: NDArray[np.int16]  # (total,) of UNIT
    place: Array  # (tracks, PLACE_ROWS)
    places: NDArray[np.int32]  # (tracks, INDEX_ROWS)


@kernel
def measure(walls, out):
    """Distances out (rows, columns), in cells, to walls (n, 4): segments from x, y to x, y in cells.

    They are full of the distance that is looked for at most.
    """
    rows, columns = out.shape
    far = out[0, 0]
    reach = np.int64(far) + 1
    for k in range(len(walls)):
        x0, y0, x1, y1 = walls[k]
        dx, dy = x1 - x0, y1 - y0
        length = max(dx * dx + dy * dy, 1e-12)
        low: Any = max(int(min(y0, y1)) - reach, 0)
        left: Any = max(int(min(x0, x1)) - reach, 0)
        for row in range(low, min(int(max(y0, y1)) + reach + 2, rows)):
            for column in range(left, min(int(max(x0, x1)) + reach + 2, columns)):
                u, v = column - x0, row - y0
                along = min(max((u * dx + v * dy) / length, 0.0), 1.0)
                u, v = u - along * dx, v - along * dy
                out[row, column] = min(out[row, column], np.sqrt(u * u + v * v))


@kernel
def _enclose(walls, inside):
    """Even and odd: how many walls (n, 4) are to the left of a corner of inside (rows, columns)."""
    rows, columns = inside.shape
    for k in range(len(walls)):
        x0, y0, x1, y1 = walls[k]
        if y1 < y0:
            x0, y0, x1, y1 = x1, y1, x0, y0
        for row in range(max(int(np.ceil(y0)), 0), min(int(np.ceil(y1)), rows)):
            crossing = x0 + (row - y0) / (y1 - y0) * (x1 - x0)
            for column in range(max(int(np.ceil(crossing)), 0), columns):
                inside[row, column] ^= 1


def segments(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of a closed line's points (n, 2): from x, y to x, y (n, 4)."""
    return np.concatenate([line, np.roll(line, -1, axis=0)], axis=1)


def grid_of(track: Track) -> tuple[NDArray[np.int16], tuple[float, float]]:
    """Of one track: distances (rows, columns) in UNIT, and where its first corner is."""
    lines = track.wall(1.0), track.wall(-1.0)
    points = np.concatenate(lines)
    low = points.min(axis=0) - MARGIN
    columns, rows = np.ceil((points.max(axis=0) + MARGIN - low) / CELL).astype(int) + 1
    walls = np.concatenate([segments((line - low) / CELL) for line in lines])
    made, inside = np.full((rows, columns), REACH / CELL), np.zeros((rows, columns), np.uint8)
    measure(walls, made)
    _enclose(walls, inside)
    signed = np.where(inside == 1, made, -made) * CELL / UNIT
    return np.round(signed).astype(np.int16), (float(low[0]), float(low[1]))


def grids_of(tracks: Sequence[Track]) -> Grids:
    """Of several."""
    cells, place, index, first = [], [], [], 0
    for track in tracks:
        grid, (x, y) = grid_of(track)
        rows, columns = grid.shape
        place.append((columns - 1.001, rows - 1.001, x, y))
        index.append((first, columns))
        cells.append(grid.ravel())
        first += grid.size
    return Grids(np.concatenate(cells), np.array(place, np.float32), np.array(index, np.int32))


@inlined
def grid(p, g, lane):
    """A car's own grid, as `distance` takes it: its first cell, its width, and the largest coordinates that count."""
    return g[FIRST, lane], g[COLUMNS, lane], p[PARAMETER_ROWS + RIGHT, lane], p[PARAMETER_ROWS + TOP, lane]


@inlined
def in_cells(p, x, y, lane):
    """A place (m) in cells of a car's grid."""
    u = (x - p[PARAMETER_ROWS + LEFT_X, lane]) * PER_METRE
    return u, (y - p[PARAMETER_ROWS + LOW_Y, lane]) * PER_METRE


@inlined
def distance(cells, first, columns, right, top, u, v):
    """Distance (m) to the nearest wall and its gradient at a place in cells, or a vector of them; also of no number."""
    u, v = min(right, max(ZERO, u)), min(top, max(ZERO, v))  # NaN becomes zero in this order only
    column, row = whole(u), whole(v)
    x, y = u - number(column), v - number(row)
    at = first + row * columns + column
    near, far = looked_up_pair(cells, at), looked_up_pair(cells, at + columns)
    low, low_right, high, high_right = number(near[0]), number(near[1]), number(far[0]), number(far[1])
    below, above = low + x * (low_right - low), high + x * (high_right - high)
    slope = (low_right - low) + y * ((high_right - high) - (low_right - low))
    return FINE * (below + y * (above - below)), FINE * PER_METRE * slope, FINE * PER_METRE * (above - below)
