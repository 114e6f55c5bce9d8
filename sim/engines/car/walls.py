"""Cars and walls: three circles along a car touch the signed distance of its track.

A wall takes the velocity toward it, as an impulse at the circle's edge, and rubs along it with Coulomb friction.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sim.engines.car.grids import COLUMNS, FIRST, LEFT_X, LOW_Y, PER_METRE, RIGHT, TOP, distance
from sim.engines.car.rows import (
    COS,
    IMPACT,
    INERTIA,
    MASS,
    PARAMETER_ROWS,
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
BENT = np.float32(0.05)  # m by which bent walls are nearer to a car's ends than straight ones, at most


@inlined
def depth_at(s, p, g, cells, ahead, lane):
    """Of a point so far ahead of a car: how far it is from walls, and the normal away from them."""
    track = PARAMETER_ROWS
    u = (s[X, lane] + ahead * s[COS, lane] - p[track + LEFT_X, lane]) * PER_METRE
    v = (s[Y, lane] + ahead * s[SIN, lane] - p[track + LOW_Y, lane]) * PER_METRE
    first, columns = g[FIRST, lane], g[COLUMNS, lane]
    away, nx, ny = distance(cells, first, columns, p[track + RIGHT, lane], p[track + TOP, lane], u, v)
    steep: Any = max(math.sqrt(nx * nx + ny * ny), TINY)
    return away, nx / steep, ny / steep


@inlined
def met(s, p, g, cells, ahead, shape, lane):
    """The circle so far ahead of a car meets what walls there are."""
    away, nx, ny = depth_at(s, p, g, cells, ahead, lane)
    depth = max(shape.radius - away, ZERO)
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
        met(s, p, g, cells, shape.reach, shape, lane)
        met(s, p, g, cells, -shape.reach, shape, lane)
        met(s, p, g, cells, ZERO, shape, lane)
