"""The closed corridor of an occupancy map as a track, with the map's own walls.

The centreline is where the inner wall is as far as the outer one: the medial ridge of a ring. From each point nearer to
one wall a straight line leads to that wall through points that are nearer to it still, so both sides are in one piece,
and what lies between them is one closed line without branches: nothing needs to be thinned, ordered or pruned.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import cast

import numpy as np
from contourpy import FillType, LineType, contour_generator
from numpy.typing import NDArray

from sim.engines.car.grids import measure, segments
from sim.scenes.occupancy import Occupancy, read_occupancy
from sim.scenes.track import Double, Track, area, spread

SPECK = 0.02  # m^2: what is not free and smaller is noise of a mapping robot, not something in the way
SIZE = 400.0  # m of a track at most, along x and along y
EDGES, LONGEST = 300_000, 20_000.0  # edges of what is free at most, of pixels and in m: what has more is noise
NARROWEST, WIDEST = 0.2, 12.0  # m from wall to wall, at the narrowest place: no car of ours fits through less
CELL = 0.1  # m, of the grid in which the ridge is looked for
ROUGH = 4  # pixels along a wall over which its stairs are smoothed
BENT = 0.6  # m along the centreline over which it is smoothed: a ridge has corners


def _smoothed(line: Double, over: float) -> Double:
    """A closed line (n, 2), each of whose points becomes the mean of those within `over` m along it."""
    step = float(np.linalg.norm(np.roll(line, -1, axis=0) - line, axis=1).mean())
    half = min(round(0.5 * over / step), (len(line) - 1) // 2)
    around = np.concatenate([line[len(line) - half :], line, line[:half]])
    total = np.cumsum(np.concatenate([np.zeros((1, 2)), around]), axis=0)
    made: Double = (total[2 * half + 1 :] - total[: len(line)]) / (2 * half + 1)
    return made


def _regions(free: NDArray[np.bool_]) -> list[list[Double]]:
    """What is free in one piece: its outer edge and its holes, closed lines (n, 2) in pixels from the first one."""
    rim = np.pad(free, 1).astype(np.float32)
    found = contour_generator(z=rim, fill_type=FillType.OuterOffset).filled(0.5, 2.0)
    return [
        [points[a : b - 1] - 1.0 for a, b in itertools.pairwise(cuts)]  # the last point is the first
        for points, cuts in zip(*found, strict=True)
    ]


def _ring(occupancy: Occupancy) -> tuple[Double, Double]:
    """The inner and the outer wall of the largest ring, closed lines (n, 2) in pixels."""
    name, free = occupancy.name, occupancy.free
    edges = sum(int(np.count_nonzero(a != b)) for a, b in ((free[1:], free[:-1]), (free[:, 1:], free[:, :-1])))
    if edges > (most := min(EDGES, int(LONGEST / occupancy.resolution))):
        raise ValueError(f"{name}: is noise, no map: what is free has {edges} edges of pixels, at most {most}")
    speck, found, rows, columns = SPECK / occupancy.resolution**2, [], *free.shape
    for outer, *holes in _regions(free):
        # What is free up to the picture's edge is not closed.
        closed = outer.min() >= 0.0 and outer[:, 0].max() <= columns - 1.0 and outer[:, 1].max() <= rows - 1.0
        large = sorted((hole for hole in holes if abs(area(hole)) > speck), key=lambda hole: -abs(area(hole)))
        if closed and large:
            found.append((abs(area(outer)) - abs(area(large[0])), outer, large))
    if not found:
        raise ValueError(f"{name}: has no closed corridor: nothing that is free runs around something that is not")
    _, outer, (island, *others) = max(found, key=lambda ring: ring[0])
    if others:
        x, y = _placed(others[0].mean(axis=0, keepdims=True), occupancy)[0]
        raise ValueError(f"{name}: its corridor forks around something near x {x:.2f} m, y {y:.2f} m")
    return island, outer


def _placed(pixels: Double, occupancy: Occupancy) -> Double:
    """Points (n, 2) m in the map's frame, of ones in pixels."""
    x, y, yaw = occupancy.origin
    own = (pixels * [1.0, -1.0] + [0.5, occupancy.free.shape[0] - 0.5]) * occupancy.resolution
    turned = np.array([[math.cos(yaw), math.sin(yaw)], [-math.sin(yaw), math.cos(yaw)]])
    made: Double = own @ turned + [x, y]
    return made


def _at(grid: Double, line: Double) -> Double:
    """What a grid (rows, columns) says at points (n, 2) in cells."""
    column, row = np.minimum(np.floor(line).astype(int), [grid.shape[1] - 2, grid.shape[0] - 2]).T
    u, v = (line - np.stack([column, row], axis=1)).T
    below = (1.0 - u) * grid[row, column] + u * grid[row, column + 1]
    above = (1.0 - u) * grid[row + 1, column] + u * grid[row + 1, column + 1]
    made: Double = (1.0 - v) * below + v * above
    return made


def _ridge(name: str, inner: Double, outer: Double) -> tuple[Double, Double, Double]:
    """The line (n, 2) m that is as far from both, to the left around the inner one, and how far (n,) both are."""
    low = outer.min(axis=0) - CELL
    columns, rows = np.ceil((outer.max(axis=0) - low) / CELL).astype(int) + 2
    near, far = (np.full((rows, columns), 0.5 * WIDEST / CELL) for _ in range(2))
    for line, away in ((inner, near), (outer, far)):
        measure(segments((line - low) / CELL), away)
    lines = cast("list[Double]", contour_generator(z=near - far, line_type=LineType.Separate).lines(0.0))
    found = max(lines, key=len)[:-1]
    (line,) = spread(low + CELL * (found if area(found) > 0.0 else found[::-1]))
    (line,) = spread(_smoothed(line, BENT))
    left, right = (CELL * _at(grid, (line - low) / CELL) for grid in (near, far))
    width = left + right
    for k, wrong, what in (
        (width.argmin(), width.min() < NARROWEST, f"narrower than {NARROWEST}"),
        (width.argmax(), width.max() > WIDEST - 4.0 * CELL, f"wider than {WIDEST}"),
    ):
        if wrong:
            raise ValueError(f"{name}: its corridor is {what} m near x {line[k, 0]:.2f} m, y {line[k, 1]:.2f} m")
    return line, left, right


def track_in(occupancy: Occupancy) -> Track:
    """The track in a map, driven to the left. ValueError that begins with its name where it has no closed corridor."""
    walls = []
    for line in _ring(occupancy):
        (even,) = spread(_placed(line, occupancy), step=0.5 * occupancy.resolution)
        walls.append(spread(_smoothed(even, ROUGH * occupancy.resolution))[0])
    inner, outer = walls
    if max(size := np.ptp(outer, axis=0)) > SIZE:
        raise ValueError(f"{occupancy.name}: its corridor is {size[0]:.0f} x {size[1]:.0f} m, at most {SIZE:g}")
    return Track(occupancy.name, *_ridge(occupancy.name, inner, outer), (inner, outer))


def read_map(path: str | Path) -> Track:
    """The track in a map of map_server's: see `track_in` and `read_occupancy`."""
    return track_in(read_occupancy(path))
