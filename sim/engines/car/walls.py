"""Cars and walls: three circles along a car touch the signed distance of its track.

A wall takes the velocity toward it, as an impulse at the circle's edge, and rubs along it with Coulomb friction.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sim.engines.car import dynamics
from sim.engines.car.grids import distance, grid, in_cells
from sim.engines.car.rows import (
    COS,
    IMPACT,
    INERTIA,
    MASS,
    SIN,
    TOUCHED,
    TURNING,
    VX,
    VY,
    X,
    Y,
)
from sim.engines.vector.blocks import inlined
from sim.engines.vector.simd import flags, select

ZERO, ONE = np.float32(0.0), np.float32(1.0)
TINY = np.float32(1e-6)
SLOPE = np.float32(1.45)  # of distances between cells' corners, at most: each of two slopes is 1, and rounded
BENT = np.float32(0.05)  # m by which bent walls are nearer to a car's ends than straight ones, at most


@inlined
def depth_at(s, p, g, cells, ahead, lane):
    """Of a point so far ahead of a car: how far it is from walls, and the normal away from them."""
    u, v = in_cells(p, s[X, lane] + ahead * s[COS, lane], s[Y, lane] + ahead * s[SIN, lane], lane)
    away, nx, ny = distance(cells, *grid(p, g, lane), u, v)
    steep: Any = max(math.sqrt(nx * nx + ny * ny), TINY)
    return away, nx / steep, ny / steep


@inlined
def met(s, p, g, cells, ahead, shape, lane):
    """The circle so far ahead of a car meets what walls there are: how deep it was in them."""
    away, nx, ny = depth_at(s, p, g, cells, ahead, lane)
    depth = max(shape.radius - away, ZERO)
    if flags(depth > ZERO):
        pushed_back(s, p, depth, nx, ny, ahead, shape, lane)
    return depth


@inlined
def pushed_back(s, p, depth, nx, ny, ahead, shape, lane):
    """What walls with this normal do to circles that are so deep in them, or 0, and so far ahead of cars."""
    contact = depth > ZERO
    s[X, lane] += depth * nx
    s[Y, lane] += depth * ny
    cos, sin = s[COS, lane], s[SIN, lane]
    forward, left = nx * cos + ny * sin, ny * cos - nx * sin  # the normal, in the car's axes
    px, py = ahead - shape.radius * forward, ZERO - shape.radius * left
    vx, vy, turning = s[VX, lane], s[VY, lane], s[TURNING, lane]
    ux, uy = vx - turning * py, vy + turning * px
    nearing = select(contact, max(-(ux * forward + uy * left), ZERO), ZERO)
    inverse, spin = ONE / p[MASS, lane], ONE / p[INERTIA, lane]
    arm = px * left - py * forward
    direct = inverse + spin * arm * arm
    lever = px * forward + py * left  # of the tangent (-left, forward)
    rub = (ux * left - uy * forward) / (inverse + spin * lever * lever)
    most = shape.wall_friction * nearing / direct
    rub = min(max(rub, -most), most)
    push = max(nearing - rub * spin * lever * arm, ZERO) / direct  # rubbing turns it, too
    gx, gy = push * forward - rub * left, push * left + rub * forward
    s[VX, lane] = vx + inverse * gx
    s[VY, lane] = vy + inverse * gy
    s[TURNING, lane] = turning + spin * (px * gy - py * gx)
    s[TOUCHED, lane] = select(contact, ONE, s[TOUCHED, lane])
    s[IMPACT, lane] = max(s[IMPACT, lane], nearing)


@inlined
def kept_in(s, p, g, cells, shape, lane):
    """Cars stay on their tracks."""
    away, nx, ny = depth_at(s, p, g, cells, ZERO, lane)
    nearer = shape.reach * abs(nx * s[COS, lane] + ny * s[SIN, lane])  # that its ends are, at straight walls
    if flags(away - nearer < shape.radius + BENT):
        moved = met(s, p, g, cells, shape.reach, shape, lane)
        moved = moved + met(s, p, g, cells, -shape.reach, shape, lane)
        if flags(away - SLOPE * moved < shape.radius):
            met(s, p, g, cells, ZERO, shape, lane)


@inlined
def advance(s, p, q, g, c, cells, shape, h, n, lane):
    """Drive for n steps of h seconds, within walls where there are any. q: room for what is `derived`."""
    s[TOUCHED, lane], s[IMPACT, lane] = ZERO, ZERO
    dynamics.derived(p, q, shape, lane)
    for _ in range(n):
        dynamics.driven(s, q, c, shape, h, lane)
        if len(cells):
            kept_in(s, p, g, cells, shape, lane)
