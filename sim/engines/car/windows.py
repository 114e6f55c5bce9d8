"""What cars cost along a window of control steps, and how that changes with what they were told.

Cars are rewarded for their way along the centreline, and pay for being close to walls, the closer the more, for tyres
that slide beyond their best, and for looking across the track: no gradient of the way tells who has spun to go on. In
here walls are no obstacles: whoever is behind one pays for how far, so that a gradient tells the way back.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sim.engines.car import dynamics
from sim.engines.car.adjoint import advance_adjoint
from sim.engines.car.grids import INDEX_ROWS, PLACE_ROWS, distance, grid, in_cells
from sim.engines.car.rows import COMMAND_ROWS, COS, PARAMETER_ROWS, SIN, STATE_ROWS, TURNING, VX, VY, X, Y
from sim.engines.car.walls import depth_at
from sim.engines.vector.blocks import block, kernel
from sim.engines.vector.simd import ALL, LANES

CIRCLES = (1.0, 0.0, -1.0)  # times their reach, where those that touch walls are along the car
BEND = np.float32(0.3)  # of the way along the centreline that is left, at least, inside a bend
ZERO, ONE, TINY = np.float32(0.0), np.float32(1.0), np.float32(1e-6)
GRAZING = np.float32(0.2)  # sine of the angle between a wall and a ray, at least, as far as slopes are concerned


class Prices(NamedTuple):
    """Of a wall: nothing at `margin` (m) and beyond, `touch` (m of way, per control step and circle) where one touches.

    The square of what is missing of the margin, and behind the wall its tangent. Of looking elsewhere than along the
    track: nothing as long as the cosine of that angle is `along`, `aside` times the square of what is missing of it.
    Of sliding: nothing as long as the sine of the rear tyres' slip angle is `steady`, `slide` times the square of what
    is beyond; where a car is slower than 1 m/s that angle means less.
    """

    margin: np.float32
    touch: np.float32
    along: np.float32
    aside: np.float32
    steady: np.float32
    slide: np.float32


@kernel
def judge(state, parameters, index, cells, shape, prices, courses, track, nearest, place, cost, near, by_way, by_wall):
    """What each car (n,) pays for walls and its direction now, how near they are (m), and the slopes over its state.

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
        askew = max(prices.along - heading[0] * s[COS, lane] - heading[1] * s[SIN, lane], np.float32(0.0))
        cost[row], near[row] = prices.aside * askew * askew, np.inf
        w[COS, lane] -= np.float32(2.0) * prices.aside * askew * heading[0]
        w[SIN, lane] -= np.float32(2.0) * prices.aside * askew * heading[1]
        ahead, slip = s[VX, lane], s[VY, lane] - shape.rear * s[TURNING, lane]
        square = ahead * ahead + slip * slip + ONE
        speed = math.sqrt(square)
        beyond = max(abs(slip) / speed - prices.steady, ZERO)
        cost[row] += prices.slide * beyond * beyond
        pulls = np.float32(2.0) * prices.slide * beyond / (square * speed) * (ONE if slip > ZERO else -ONE)
        w[VX, lane] -= pulls * slip * ahead
        w[VY, lane] += pulls * (ahead * ahead + ONE)
        w[TURNING, lane] -= pulls * (ahead * ahead + ONE) * shape.rear
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
def pull(before, told, parameters, weights, shape, h, n, limit, g, sent):
    """One control step of n steps of h seconds back: g (blocks, STATE_ROWS, LANES) is after it, then `before` it.

    `told` (blocks, COMMAND_ROWS, LANES) is what arrived, blended from what was sent by `weights` (blocks, taps *
    COMMAND_ROWS, LANES); its gradient is added to sent (taps, blocks, COMMAND_ROWS, LANES), the newest first. The norm
    of each car's gradient is at most `limit`, at first.
    """
    q: Any = np.empty((dynamics.DERIVED_ROWS, LANES), np.float32)
    stages, arrived = np.empty((n, STATE_ROWS, LANES), np.float32), np.empty((COMMAND_ROWS, LANES), np.float32)
    taps = weights.shape[1] // COMMAND_ROWS
    for place in range(len(before)):
        s, p = block(before, place, STATE_ROWS), block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        c, own = block(told, place, COMMAND_ROWS), block(g, place, STATE_ROWS)
        for lane in range(LANES):
            size = 0.0
            for row in range(STATE_ROWS):
                size += own[row, lane] * own[row, lane]
            if size > limit * limit:
                shrunk = np.float32(limit / math.sqrt(size))
                for row in range(STATE_ROWS):
                    own[row, lane] *= shrunk
        arrived[:] = 0.0
        advance_adjoint(s, p, q, c, shape, h, n, own, arrived, stages, ALL)
        for row in range(COMMAND_ROWS):
            for lane in range(LANES):
                if taps == 0:
                    sent[0, place, row, lane] += arrived[row, lane]
                for tap in range(taps):
                    sent[tap, place, row, lane] += weights[place, tap * COMMAND_ROWS + row, lane] * arrived[row, lane]


@kernel
def scan_adjoint(state, parameters, index, cells, rays, ahead, longest, seen, slopes, g):
    """What lidars say changes with where cars are: adds to g (blocks, STATE_ROWS, LANES).

    `seen` (blocks, beams, LANES) is what they saw, in m, and `slopes` (n, beams) the gradient by that. A ray's length
    changes with the distance of the wall at its end, along the wall's normal; rays that graze it change less than that.
    """
    for row in range(len(slopes)):
        place, lane = row // LANES, row % LANES
        s, p = block(state, place, STATE_ROWS), block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        own, out = block(index, place, INDEX_ROWS), block(g, place, STATE_ROWS)
        cos, sin = s[COS, lane], s[SIN, lane]
        x, y = s[X, lane] + ahead * cos, s[Y, lane] + ahead * sin
        for beam in range(slopes.shape[1]):
            way, bx, by = seen[place, beam, lane], rays[0, beam], rays[1, beam]
            if way >= longest or way <= ZERO:
                continue
            ux, uy = cos * bx - sin * by, sin * bx + cos * by
            u, v = in_cells(p, x + way * ux, y + way * uy, lane)
            _, nx, ny = distance(cells, *grid(p, own, lane), u, v)
            steep = max(math.sqrt(nx * nx + ny * ny), TINY)
            nx, ny = nx / steep, ny / steep
            share = slopes[row, beam] / max(-(nx * ux + ny * uy), GRAZING)
            out[X, lane] += share * nx
            out[Y, lane] += share * ny
            out[COS, lane] += share * (ahead * nx + way * (nx * bx + ny * by))
            out[SIN, lane] += share * (ahead * ny + way * (ny * bx - nx * by))
