"""Upright cylinders in an airspace, from the floor to above everybody: who touches them, and how far away they are.

Pillars are (worlds, m, 3): x, y and radius, m; one whose radius is 0 is not there. `each` vehicles of an airspace are
rows that follow one another, as in `airspace.py`. What is told of a pillar is where its surface is: the vector
(1 - r / d) (x, y, 0) to it from a vehicle that is d from its axis, which points away from the axis inside of it.
"""

from __future__ import annotations

import math

import numpy as np

from sim.engines.flight.airspace import ABSENT, REACH, put
from sim.engines.flight.rows import POSITION
from sim.engines.vector.blocks import inlined, kernel
from sim.engines.vector.simd import LANES

CENTRE = 1e-3  # m from its axis at least, where a direction is asked for


@inlined
def aside(state, row, pillars, world, k):
    """From a vehicle to the axis of the k-th pillar of its world, m, and how long that is."""
    s, lane = state[row // LANES], row % LANES
    x, y = pillars[world, k, 0] - s[POSITION, lane], pillars[world, k, 1] - s[POSITION + 1, lane]
    return x, y, max(math.sqrt(x * x + y * y), CENTRE)


@kernel
def graze(before, state, each, pillars, gap):
    """m (n,) between the centre of each vehicle and the nearest surface, at the closest moment of a step."""
    for row in range(len(gap)):
        gap[row], world = np.inf, row // each
        for k in range(pillars.shape[1]):
            if pillars[world, k, 2] <= 0.0:
                continue
            x = pillars[world, k, 0] - before[row // LANES, 0, row % LANES]
            y = pillars[world, k, 1] - before[row // LANES, 1, row % LANES]
            u, v, _ = aside(state, row, pillars, world, k)
            u, v = u - x, v - y
            way = u * u + v * v
            t = min(max(-(x * u + y * v) / way, 0.0), 1.0) if way > 0.0 else 0.0
            far = math.sqrt((x + t * u) ** 2 + (y + t * v) ** 2)
            gap[row] = min(gap[row], np.float32(far - pillars[world, k, 2]))


@kernel
def look_around(state, each, pillars, order, first, known, table):
    """Where the `known` nearest surfaces are, the nearest first, into columns of table from `first` on, m, world.

    `order` (n, m) says which pillars they are. Who is not there, or beyond REACH, is far below (`ABSENT`).
    """
    m = order.shape[1]
    far = np.empty(m)
    for row in range(len(order)):
        own, world = order[row], row // each
        for other in range(m):
            gap = np.inf
            if pillars[world, other, 2] > 0.0:
                _, _, long = aside(state, row, pillars, world, other)
                gap = long - pillars[world, other, 2]
            if not gap <= REACH:  # nor is what is not a number
                gap = np.inf
            k = other
            while k > 0 and far[k - 1] > gap:
                far[k], own[k] = far[k - 1], own[k - 1]
                k -= 1
            far[k], own[k] = gap, other
        for k in range(known):
            if k >= m or far[k] == np.inf:
                put(table, row, first, k, ABSENT[0], ABSENT[1], ABSENT[2])
                continue
            x, y, long = aside(state, row, pillars, world, own[k])
            share = 1.0 - pillars[world, own[k], 2] / long
            put(table, row, first, k, np.float32(share * x), np.float32(share * y), np.float32(0.0))


@kernel
def look_around_adjoint(state, each, pillars, order, slopes, g):
    """Add to g (blocks, STATE_ROWS, LANES) what follows from the gradient `slopes` (n, 3 known) of `look_around`."""
    for row in range(len(slopes)):
        own, lane, world = g[row // LANES], row % LANES, row // each
        for k in range(min(order.shape[1], slopes.shape[1] // 3)):
            radius = pillars[world, order[row, k], 2]
            if radius <= 0.0:
                continue
            x, y, long = aside(state, row, pillars, world, order[row, k])
            if not long - radius <= REACH:
                continue
            share, bent = 1.0 - radius / long, radius / (long * long * long)
            by_x, by_y = slopes[row, 3 * k], slopes[row, 3 * k + 1]
            along = bent * (x * by_x + y * by_y)
            own[POSITION, lane] -= share * by_x + along * x
            own[POSITION + 1, lane] -= share * by_y + along * y


@kernel
def too_near(state, each, pillars, margin, cost, slopes):
    """Add what it costs to be closer than `margin` m to a surface: the square of what is missing, as a share.

    Of the way from there to the axis, so that nothing is steeper inside. To cost (n,), and to slopes (blocks,
    STATE_ROWS, LANES): how the sum of all changes with each state.
    """
    for row in range(len(cost)):
        own, lane, world = slopes[row // LANES], row % LANES, row // each
        for k in range(pillars.shape[1]):
            x, y, long = aside(state, row, pillars, world, k)
            reach = pillars[world, k, 2] + margin
            missing = 1.0 - long / reach
            if pillars[world, k, 2] <= 0.0 or missing <= 0.0:
                continue
            cost[row] += missing * missing
            steep = 2.0 * missing / (reach * long)
            own[POSITION, lane] += steep * x
            own[POSITION + 1, lane] += steep * y
