"""What cars cost along a window of control steps, and how that changes with what they were told.

Cars are rewarded for their way along the centreline, and pay for being close to walls, the closer the more. In here
walls are no obstacles: whoever is behind one pays for how far, so that a gradient tells the way back.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sim.engines.car import dynamics
from sim.engines.car.adjoint import advance_adjoint
from sim.engines.car.grids import INDEX_ROWS, PLACE_ROWS
from sim.engines.car.rows import COMMAND_ROWS, COS, PARAMETER_ROWS, SIN, STATE_ROWS, X, Y
from sim.engines.car.walls import depth_at
from sim.engines.vector.blocks import block, kernel
from sim.engines.vector.simd import ALL, LANES

CIRCLES = (1.0, 0.0, -1.0)  # times their reach, where those that touch walls are along the car
BEND = np.float32(0.3)  # of the way along the centreline that is left, at least, inside a bend


class Prices(NamedTuple):
    """Of a wall: nothing at `margin` (m) and beyond, `touch` (m of way, per control step and circle) where one touches.

    The square of what is missing of the margin, and behind the wall its tangent.
    """

    margin: np.float32
    touch: np.float32


@kernel
def judge(state, parameters, index, cells, shape, prices, courses, track, nearest, place, cost, near, by_way, by_wall):
    """What each car (n,) pays for walls now, how near they are (m), and the slopes over its state.

    Written are cost and near (n,), and by_way and by_wall (blocks, STATE_ROWS, LANES): of the way along the centreline,
    and of the cost. `nearest` and `place` are those of `course.follow`.
    """
    by_way[:], by_wall[:] = 0.0, 0.0
    margin, touch = prices.margin, prices.touch
    for row in range(len(cost)):
        at, lane, which = row // LANES, row % LANES, track[row]
        s, p = block(state, at, STATE_ROWS), block(parameters, at, PARAMETER_ROWS + PLACE_ROWS)
        g, w = block(index, at, INDEX_ROWS), block(by_wall, at, STATE_ROWS)
        count, first = courses.points[which], courses.first[which]
        found = nearest[row]
        heading, before = courses.heading[first + found], courses.heading[first + (found + count - 1) % count]
        after = courses.heading[first + (found + 1) % count]
        turned = (before[0] * after[1] - before[1] * after[0]) / (np.float32(2.0) * courses.spacing[which])
        longer = np.float32(1.0) / max(np.float32(1.0) - turned * place[row, 1], BEND)
        by_way[at, X, lane], by_way[at, Y, lane] = longer * heading[0], longer * heading[1]
        cost[row], near[row] = 0.0, np.inf
        for circle in CIRCLES:
            ahead = np.float32(circle) * shape.reach
            away, nx, ny = depth_at(s, p, g, cells, ahead, lane)
            clear = away - shape.radius
            near[row] = min(near[row], clear)
            missing = max(np.float32(1.0) - clear / margin, np.float32(0.0))
            steep = -np.float32(2.0) * touch / margin * min(missing, np.float32(1.0))
            cost[row] += touch * (missing * missing if clear > 0.0 else np.float32(2.0) * missing - np.float32(1.0))
            w[X, lane] += steep * nx
            w[Y, lane] += steep * ny
            w[COS, lane] += steep * ahead * nx
            w[SIN, lane] += steep * ahead * ny


@kernel
def pull(states, told, parameters, weights, slopes, shape, h, n, limit, out):
    """The gradient of a window's cost by what was sent: out (T, blocks, COMMAND_ROWS, LANES), zero at first.

    `states` (T, blocks, STATE_ROWS, LANES) are those before each control step, of n steps of h seconds; `told` what
    arrived then, blended from what was sent by `weights` (blocks, taps * COMMAND_ROWS, LANES); `slopes` (T + 1, blocks,
    STATE_ROWS, LANES) those of the cost over the state before each step and after the last one. `limit` bounds the norm
    of each car's gradient.
    """
    q: Any = np.empty((dynamics.DERIVED_ROWS, LANES), np.float32)
    stages = np.empty((n, STATE_ROWS, LANES), np.float32)
    g, arrived = np.empty((STATE_ROWS, LANES), np.float32), np.empty((COMMAND_ROWS, LANES), np.float32)
    steps, taps = states.shape[0], weights.shape[1] // COMMAND_ROWS
    for place in range(states.shape[1]):
        p = block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        g[:] = 0.0
        for t in range(steps - 1, -1, -1):
            s, c = block(states[t], place, STATE_ROWS), block(told[t], place, COMMAND_ROWS)
            for lane in range(LANES):
                size = 0.0
                for row in range(STATE_ROWS):
                    g[row, lane] += slopes[t + 1, place, row, lane]
                    size += g[row, lane] * g[row, lane]
                if size > limit * limit:
                    shrunk = np.float32(limit / math.sqrt(size))
                    for row in range(STATE_ROWS):
                        g[row, lane] *= shrunk
            arrived[:] = 0.0
            advance_adjoint(s, p, q, c, shape, h, n, g, arrived, stages, ALL)
            for row in range(COMMAND_ROWS):
                for lane in range(LANES):
                    if taps == 0:
                        out[t, place, row, lane] += arrived[row, lane]
                    for tap in range(min(taps, t + 1)):
                        share = weights[place, tap * COMMAND_ROWS + row, lane]
                        out[t - tap, place, row, lane] += share * arrived[row, lane]

