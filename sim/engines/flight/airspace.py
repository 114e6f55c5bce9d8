"""What vehicles of one airspace do to one another: they blow on those below them, and meet.

Downwash is that of a round turbulent jet: below 2.5 of its diameters a quadrotor's air is one (Bauersfeld et al. 2024,
"Robotics meets Fluid Dynamics", arXiv 2403.13321). Rotors of radius a with the thrust T make a jet whose nozzle has the
area of half their discs (momentum theory), the diameter d = 2 sqrt(2) a. At z below, its speed on the axis is the share
min(1, B d / z) of that in the nozzle, and half of it at S z from the axis, B = 5.8 and S = 0.094 (Hussein, Capp and
George 1994, J. Fluid Mech. 258; Pope, "Turbulent Flows", table 5.1). It pushes as the square of the speed:

    force = -k T min(z / d, 1, (B d / z)^2) exp(-2 ln 2 (r / h)^2)   N, z downward,   h^2 = (d / 2)^2 + (S z)^2 + R^2

at the horizontal distance r, on a vehicle that reaches R from its centre. The share k = 0.25 is measured: 8 g at 0.3 m
and 4 g at 0.5 m between Crazyflies of 34 g (Shi et al. 2020, "Neural-Swarm", arXiv 2003.02992, figure 3); this formula
gives 8.5 and 4.9. The last factor's R and the share z / d near the rotors are ours. A jet goes straight down, whatever
its vehicle's tilt and speed.

Rows are as in `rows.py`; `each` vehicles of an airspace are rows that follow one another.
"""

from __future__ import annotations

import math

import numpy as np

from sim.engines.flight.rows import (
    ARM,
    CURVE,
    FORCE,
    GRAVITY,
    LIFT,
    MASS,
    POSITION,
    PUSH,
    RADIUS,
    ROTOR,
    VELOCITY,
)
from sim.engines.vector.blocks import inlined, kernel
from sim.engines.vector.simd import LANES

CORE, SPREAD, SHARE = 5.8, 0.094, 0.25  # B, S and k
NOZZLE = 2.0 * math.sqrt(2.0)  # d / a
STEEP = 2.0 * math.log(2.0)
ZERO = np.float32(0.0)
ABSENT = np.array([0.0, 0.0, -10.0], np.float32)  # m, where somebody is told of who is not there
REACH = 30.0  # m within which others are there: beyond it nobody of a swarm still flies


@inlined
def extent(values):
    """m from a vehicle's centre to the tips of its propellers."""
    furthest = 0.0
    for rotor in range(4):
        furthest = max(furthest, math.hypot(values[ARM + 2 * rotor], values[ARM + 2 * rotor + 1]))
    return furthest + values[RADIUS]


@inlined
def apart(state, a, b, first):
    """Three rows from `first` on of vehicle b, less those of vehicle a."""
    s, t, here, there = state[a // LANES], state[b // LANES], a % LANES, b % LANES
    return (
        t[first, there] - s[first, here],
        t[first + 1, there] - s[first + 1, here],
        t[first + 2, there] - s[first + 2, here],
    )


@inlined
def thrust(state, values, derived, row):
    """N, of a vehicle's rotors at their present speeds."""
    s, p, lane, total = state[row // LANES], derived[row // LANES], row % LANES, 0.0
    for rotor in range(4):
        u = s[ROTOR + rotor, lane]
        total += p[LIFT + rotor, lane] * (p[CURVE, lane] + u * (p[CURVE + 1, lane] + u * p[CURVE + 2, lane]))
    return total * values[row, MASS]


@inlined
def wash(x, y, z, nozzle, reach):
    """The force per k T on a vehicle from one that is (x, y, z) m from it: and its slopes over x, y and z."""
    if z <= 0.0:
        return 0.0, 0.0, 0.0, 0.0
    share, slope = 1.0, 0.0
    if z < nozzle:
        share, slope = z / nozzle, 1.0 / nozzle
    elif z > CORE * nozzle:
        share = (CORE * nozzle / z) ** 2
        slope = -2.0 * share / z
    wide = 0.25 * nozzle * nozzle + SPREAD * SPREAD * z * z + reach * reach
    square = x * x + y * y
    spread = math.exp(-STEEP * square / wide)
    push = -share * spread
    out = -2.0 * STEEP / wide
    wider = STEEP * square * 2.0 * SPREAD * SPREAD * z / (wide * wide)
    return push, push * out * x, push * out * y, push * wider - slope * spread


@kernel
def blow(state, values, derived, each, washed):
    """Downwash, held over the step: washed (n,) N on each vehicle, and in its derived parameters."""
    for first in range(0, len(washed), each):
        for row in range(first, first + each):
            total, reach = 0.0, extent(values[row])
            for other in range(first, first + each):
                if other != row:
                    x, y, z = apart(state, row, other, POSITION)
                    push, _, _, _ = wash(x, y, z, NOZZLE * values[other, RADIUS], reach)
                    if push != 0.0:
                        total += SHARE * thrust(state, values, derived, other) * push
            washed[row] = total
            force, mass = np.float64(values[row, FORCE + 2]) + total, np.float64(values[row, MASS])
            derived[row // LANES, PUSH + 2, row % LANES] = force / mass - GRAVITY


@kernel
def blow_adjoint(state, values, derived, each, h, after, g):
    """Add to g (blocks, STATE_ROWS, LANES) what follows from `blow`, given the gradient `after` a step of h seconds.

    Thrust counts as given, and drag during the step is left out.
    """
    for first in range(0, len(values), each):
        for row in range(first, first + each):
            a, here, reach = after[row // LANES], row % LANES, extent(values[row])
            by_force = h * (a[VELOCITY + 2, here] + 0.5 * h * a[POSITION + 2, here]) / values[row, MASS]
            own = g[row // LANES]
            for other in range(first, first + each):
                if other == row:
                    continue
                x, y, z = apart(state, row, other, POSITION)
                push, gx, gy, gz = wash(x, y, z, NOZZLE * values[other, RADIUS], reach)
                if push != 0.0:
                    scale = by_force * SHARE * thrust(state, values, derived, other)
                    theirs, there = g[other // LANES], other % LANES
                    for k, slope in ((0, gx), (1, gy), (2, gz)):
                        theirs[POSITION + k, there] += scale * slope
                        own[POSITION + k, here] -= scale * slope


@kernel
def meet(before, state, each, nearest):
    """m (n,) between the centre of each vehicle and the nearest other one, at the closest moment of a step."""
    for row in range(len(nearest)):
        nearest[row] = np.inf
    for first in range(0, len(nearest), each):
        for row in range(first, first + each):
            for other in range(row + 1, first + each):
                x, y, z = apart(before, row, other, 0)
                u, v, w = apart(state, row, other, POSITION)
                u, v, w = u - x, v - y, w - z
                way = u * u + v * v + w * w
                t = min(max(-(x * u + y * v + z * w) / way, 0.0), 1.0) if way > 0.0 else 0.0
                far = math.sqrt((x + t * u) ** 2 + (y + t * v) ** 2 + (z + t * w) ** 2)
                nearest[row], nearest[other] = min(nearest[row], far), min(nearest[other], far)


@kernel
def crowd(state, each, margin, cost, slopes):
    """Who is closer than `margin` m to others pays for each of them: the square of what is missing of it, as a share.

    Into cost (n,), and slopes (blocks, STATE_ROWS, LANES): how the sum of all changes with each state.
    """
    cost[:], slopes[:] = 0.0, 0.0
    for first in range(0, len(cost), each):
        for row in range(first, first + each):
            for other in range(row + 1, first + each):
                x, y, z = apart(state, row, other, POSITION)
                far = math.sqrt(x * x + y * y + z * z)
                if not 0.0 < far < margin:
                    continue
                missing = 1.0 - far / margin
                cost[row] += missing * missing
                cost[other] += missing * missing
                steep = 4.0 * missing / (margin * far)  # of both their costs, toward each other
                own, theirs = slopes[row // LANES], slopes[other // LANES]
                for k, way in ((0, x), (1, y), (2, z)):
                    own[POSITION + k, row % LANES] += steep * way
                    theirs[POSITION + k, other % LANES] -= steep * way


@inlined
def put(table, row, first, k, x, y, z):
    """The k-th vector from column `first` on of a row of table (blocks, columns, LANES)."""
    t, lane = table[row // LANES], row % LANES
    t[first + 3 * k, lane], t[first + 3 * k + 1, lane], t[first + 3 * k + 2, lane] = x, y, z


@kernel
def view(state, each, order, others, moving, near, nearing, known, table):
    """Where others are from each vehicle, m, and how fast they move relative to it, m/s, world; the nearest first.

    Into columns of table: all from `others` and `moving` on, the first `known` from `near` and `nearing` on, too. Who
    is not there, or beyond REACH, is far below (`ABSENT`), at rest. `order` (n, each - 1) says which rows they are, -1
    for nobody.
    """
    far = np.empty(each - 1)
    for row in range(len(order)):
        first, own, count = row - row % each, order[row], 0
        for other in range(first, first + each):
            if other == row:
                continue
            x, y, z = apart(state, row, other, POSITION)
            square, k = x * x + y * y + z * z, count
            if not square <= REACH * REACH:  # nor is there who is nowhere
                square = np.inf
            while k > 0 and far[k - 1] > square:  # insertion: few, and mostly in order
                far[k], own[k] = far[k - 1], own[k - 1]
                k -= 1
            far[k], own[k] = square, other
            count += 1
        for k in range(each - 1):
            x, y, z = apart(state, row, own[k], POSITION)
            u, v, w = apart(state, row, own[k], VELOCITY)
            if far[k] > REACH * REACH:
                own[k] = -1
                x, y, z, u, v, w = ABSENT[0], ABSENT[1], ABSENT[2], ZERO, ZERO, ZERO
            put(table, row, others, k, x, y, z)
            put(table, row, moving, k, u, v, w)
            if k < known:
                put(table, row, near, k, x, y, z)
                put(table, row, nearing, k, u, v, w)
        for k in range(each - 1, known):
            put(table, row, near, k, ABSENT[0], ABSENT[1], ABSENT[2])
            put(table, row, nearing, k, ZERO, ZERO, ZERO)


@kernel
def view_adjoint(order, near, nearing, g):
    """Add to g (blocks, STATE_ROWS, LANES) what follows from the gradients near and nearing (n, 3 known) of `view`."""
    for row in range(len(near)):
        own, here = g[row // LANES], row % LANES
        for k in range(min(order.shape[1], near.shape[1] // 3)):
            if order[row, k] < 0:
                continue
            theirs, there = g[order[row, k] // LANES], order[row, k] % LANES
            for axis in range(3):
                for first, slope in ((POSITION, near[row, 3 * k + axis]), (VELOCITY, nearing[row, 3 * k + axis])):
                    theirs[first + axis, there] += slope
                    own[first + axis, here] -= slope
