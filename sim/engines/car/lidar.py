"""A lidar that turns in the plane: its rays are followed over the grid of distances, sixteen at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.engines.car.grids import INDEX_ROWS, PER_METRE, PLACE_ROWS, distance, grid, in_cells
from sim.engines.car.rows import COS, PARAMETER_ROWS, SIN, STATE_ROWS, X, Y
from sim.engines.vector.blocks import block, borrowed, inlined, kernel
from sim.engines.vector.simd import ALL, LANES, flags, select
from sim.randomize import Array

ZERO, ONE = np.float32(0.0), np.float32(1.0)
# A circle whose radius is the distance to the nearest wall holds none (sphere tracing; Hart 1996). Where that is near,
# a ray goes on to where the gradient says the wall is, which is exact for straight ones, at most so much further (m).
LEAP = np.float32(0.2)
STEEPEST = np.float32(0.1)  # of the gradient along a ray that counts
CLOSE = np.float32(0.01)  # m along a ray from a wall where it has arrived
MOST = 40  # steps; three do for most rays, and ten for the slowest of sixteen


def angles(count: int, view: float) -> Array:
    """Where so many beams over `view` radians look: (count,) rad, from the right of ahead to its left."""
    return ((np.arange(count) + 0.5) / count * view - 0.5 * view).astype(np.float32)


def rays_of(angle: Array) -> Array:
    """Cosines and sines (2, vectors, LANES) of beams (count,); the last one fills up."""
    padded = np.concatenate([angle, np.repeat(angle[-1:], -len(angle) % LANES)])
    return np.stack([np.cos(padded), np.sin(padded)]).astype(np.float32).reshape(2, -1, LANES)


@inlined
def traced(cells, first, columns, right, top, u, v, across, up, longest):
    """How far rays go (m, at most `longest`) from a place in cells in these directions."""
    way, x, y = ZERO * across, PER_METRE * across, PER_METRE * up
    active = way + ONE
    for _ in range(MOST):
        away, gx, gy = distance(cells, first, columns, right, top, u + way * x, v + way * y)
        nearing = max(-(gx * across + gy * up), STEEPEST)
        active = select(abs(away) < CLOSE * nearing, ZERO, select(way < longest, active, ZERO))
        if not flags(active > ZERO):
            break
        way = way + active * min(away / nearing, away + LEAP)
    return min(max(way, ZERO), longest)


@kernel
def scan(state, parameters, index, cells, rays, count, ahead, longest, rows, first, out):
    """What the lidars of these rows (n,) see: `count` rows from `first` on of out (blocks, rows, LANES), in m.

    They are so far `ahead` of cars. `rays` (2, vectors, LANES) are cosines and sines of the beams; those beyond the
    last one are not written.
    """
    cells, across, up = borrowed((cells, rays[0], rays[1]))
    room: Any = np.empty((1, LANES), np.float32)
    for row in rows:
        place, lane = row // LANES, row % LANES
        s, p = block(state, place, STATE_ROWS), block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        g, o = block(index, place, INDEX_ROWS), block(out, place, out.shape[1])
        cos, sin = s[COS, lane], s[SIN, lane]
        u, v = in_cells(p, s[X, lane] + ahead * cos, s[Y, lane] + ahead * sin, lane)
        own = grid(p, g, lane)
        for k in range(len(across)):
            x, y = across[k, ALL], up[k, ALL]
            turned, raised = cos * x - sin * y, sin * x + cos * y
            room[0, ALL] = traced(cells, *own, u, v, turned, raised, longest)
            for beam in range(min(LANES, count - k * LANES)):
                o[first + k * LANES + beam, lane] = room[0, beam]
