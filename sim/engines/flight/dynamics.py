"""The equations of a quadrotor and their adjoint, written once for a vector of vehicles (CPU) or one (a CUDA thread).

Rigid body with four rotors: first-order rotor lag (exact within a step), thrust c0 + c1 u + c2 u^2 at rotor speed
fraction u, linear drag in body axes against the wind, ground effect, gyroscopic moments. Runge-Kutta 4 on attitude,
velocity and body rate. Equations as in "Learning to Fly in Seconds" (Eschmann et al. 2024, arXiv 2311.13081) with
drag and ground effect added. The adjoint was derived by hand; tests compare it with finite differences in float64.

Every argument array is (rows, LANES); `lane` is `simd.ALL` or the number of one lane. Constants are float32 so that
float32 arithmetic stays float32 (and float64 stays float64).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sim.engines.flight.rows import (
    BODY_RATE,
    COMMAND_ROWS,
    CURVE,
    DECAY_DOWN,
    DECAY_UP,
    DRAG,
    GROUND,
    GYRO,
    LIFT,
    LOWEST,
    PARAMETER_ROWS,
    PITCH,
    POSITION,
    PUSH,
    QUATERNION,
    REST,
    ROLL,
    ROTOR,
    SIGNAL_ROWS,
    SIGNALS,
    STATE,
    STATE_ROWS,
    TWIST,
    VELOCITY,
    WIND,
    YAW,
    agility,
    derive,
)
from sim.engines.vector.blocks import inlined
from sim.engines.vector.simd import select

# With the equations, what their users need of the layout.
__all__ = [
    "COMMAND_ROWS",
    "PARAMETER_ROWS",
    "REST",
    "SIGNALS",
    "SIGNAL_ROWS",
    "STATE",
    "STATE_ROWS",
    "agility",
    "derive",
]

HALF, ONE, TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)
ZERO, THREE = np.float32(0.0), np.float32(3.0)


@inlined
def rotation(a, b, c, d):
    """The nine entries, row by row, of the rotation matrix (body to world) of the unit quaternion a + bi + cj + dk."""
    return (
        ONE - TWO * (c * c + d * d),
        TWO * (b * c - a * d),
        TWO * (b * d + a * c),
        TWO * (b * c + a * d),
        ONE - TWO * (b * b + d * d),
        TWO * (c * d - a * b),
        TWO * (b * d - a * c),
        TWO * (c * d + a * b),
        ONE - TWO * (b * b + c * c),
    )


@inlined
def rotation_adjoint(a, b, c, d, g00, g01, g02, g10, g11, g12, g20, g21, g22):
    """The gradient with respect to the quaternion, given that with respect to the matrix entries."""
    return (
        TWO * (d * (g10 - g01) + c * (g02 - g20) + b * (g21 - g12)),
        TWO * (c * (g01 + g10) + d * (g02 + g20) + a * (g21 - g12) - TWO * b * (g11 + g22)),
        TWO * (b * (g01 + g10) + d * (g12 + g21) + a * (g02 - g20) - TWO * c * (g00 + g22)),
        TWO * (b * (g02 + g20) + c * (g12 + g21) + a * (g10 - g01) - TWO * d * (g00 + g11)),
    )


@inlined
def derivative(a, b, c, d, ux, uy, uz, wx, wy, wz, lift, tx, ty, tz, p, lane):
    """Rates of quaternion (4), velocity (3) and body rate (3).

    `u` is the velocity relative to the air, `lift` the thrust over mass, `t` the torque over inertia.
    """
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation(a, b, c, d)
    sx = -p[DRAG, lane] * (r00 * ux + r10 * uy + r20 * uz)
    sy = -p[DRAG + 1, lane] * (r01 * ux + r11 * uy + r21 * uz)
    sz = lift - p[DRAG + 2, lane] * (r02 * ux + r12 * uy + r22 * uz)
    return (
        HALF * (-b * wx - c * wy - d * wz),
        HALF * (a * wx + c * wz - d * wy),
        HALF * (a * wy - b * wz + d * wx),
        HALF * (a * wz + b * wy - c * wx),
        r00 * sx + r01 * sy + r02 * sz + p[PUSH, lane],
        r10 * sx + r11 * sy + r12 * sz + p[PUSH + 1, lane],
        r20 * sx + r21 * sy + r22 * sz + p[PUSH + 2, lane],
        tx + p[GYRO, lane] * wy * wz,
        ty + p[GYRO + 1, lane] * wz * wx,
        tz + p[GYRO + 2, lane] * wx * wy,
    )


@inlined
def derivative_adjoint(a, b, c, d, ux, uy, uz, wx, wy, wz, lift, g, p, lane):
    """Gradients of quaternion (4), velocity (3), body rate (3) and lift, given `g` with respect to the ten rates.

    The gradient of the torque over inertia is that of the body-rate rates, g[7:10].
    """
    g0, g1, g2, g3 = HALF * g[0], HALF * g[1], HALF * g[2], HALF * g[3]
    hx, hy, hz = g[4], g[5], g[6]
    gwx, gwy, gwz = g[7], g[8], g[9]
    r00, r01, r02, r10, r11, r12, r20, r21, r22 = rotation(a, b, c, d)
    dx, dy, dz = p[DRAG, lane], p[DRAG + 1, lane], p[DRAG + 2, lane]
    sx = -dx * (r00 * ux + r10 * uy + r20 * uz)
    sy = -dy * (r01 * ux + r11 * uy + r21 * uz)
    sz = lift - dz * (r02 * ux + r12 * uy + r22 * uz)
    # Through the specific force s (body axes), then through the air velocity in body axes.
    gsx = r00 * hx + r10 * hy + r20 * hz
    gsy = r01 * hx + r11 * hy + r21 * hz
    gsz = r02 * hx + r12 * hy + r22 * hz
    ex, ey, ez = -dx * gsx, -dy * gsy, -dz * gsz
    qa, qb, qc, qd = rotation_adjoint(
        a, b, c, d,
        hx * sx + ux * ex, hx * sy + ux * ey, hx * sz + ux * ez,
        hy * sx + uy * ex, hy * sy + uy * ey, hy * sz + uy * ez,
        hz * sx + uz * ex, hz * sy + uz * ey, hz * sz + uz * ez,
    )  # fmt: skip
    kx, ky, kz = p[GYRO, lane], p[GYRO + 1, lane], p[GYRO + 2, lane]
    return (
        qa + wx * g1 + wy * g2 + wz * g3,
        qb - wx * g0 - wz * g2 + wy * g3,
        qc - wy * g0 + wz * g1 - wx * g3,
        qd - wz * g0 - wy * g1 + wx * g2,
        r00 * ex + r01 * ey + r02 * ez,
        r10 * ex + r11 * ey + r12 * ez,
        r20 * ex + r21 * ey + r22 * ez,
        -b * g0 + a * g1 + d * g2 - c * g3 + ky * wz * gwy + kz * wy * gwz,
        -c * g0 - d * g1 + a * g2 + b * g3 + kx * wz * gwx + kz * wx * gwz,
        -d * g0 + c * g1 - b * g2 + a * g3 + kx * wy * gwx + ky * wx * gwy,
        gsz,
    )


@inlined
def wrench(r0, r1, r2, r3, ground, p, lane):
    """Lift over mass and torque over inertia (3) at the rotor speed fractions r."""
    c0, c1, c2 = p[CURVE, lane], p[CURVE + 1, lane], p[CURVE + 2, lane]
    f0 = ground * (c0 + r0 * (c1 + r0 * c2))
    f1 = ground * (c0 + r1 * (c1 + r1 * c2))
    f2 = ground * (c0 + r2 * (c1 + r2 * c2))
    f3 = ground * (c0 + r3 * (c1 + r3 * c2))
    return (
        p[LIFT, lane] * f0 + p[LIFT + 1, lane] * f1 + p[LIFT + 2, lane] * f2 + p[LIFT + 3, lane] * f3,
        p[ROLL, lane] * f0 + p[ROLL + 1, lane] * f1 + p[ROLL + 2, lane] * f2 + p[ROLL + 3, lane] * f3 + p[TWIST, lane],
        p[PITCH, lane] * f0
        + p[PITCH + 1, lane] * f1
        + p[PITCH + 2, lane] * f2
        + p[PITCH + 3, lane] * f3
        + p[TWIST + 1, lane],
        p[YAW, lane] * f0 + p[YAW + 1, lane] * f1 + p[YAW + 2, lane] * f2 + p[YAW + 3, lane] * f3 + p[TWIST + 2, lane],
    )


@inlined
def ground_factor(z, p, lane):
    """The gain on the thrust at height z: 1 + k (radius / 4 z)^2 (Shi et al. 2019, as in gym-pybullet-drones)."""
    height = max(z, p[LOWEST, lane])
    return ONE + p[GROUND, lane] / (height * height)


@inlined
def decay(command, speed, up, down):
    """exp(-half substep / tau) of one rotor: it rises and falls with different time constants."""
    return select(command > speed, up, down)


@inlined
def advance(s, p, command, out, lane, h):
    """One substep of h seconds: out (STATE_ROWS, LANES) from s, under `command` (4, LANES). `out` may be `s`."""
    ground = ground_factor(s[POSITION + 2, lane], p, lane)
    u0, u1, u2, u3 = command[0, lane], command[1, lane], command[2, lane], command[3, lane]
    u0, u1, u2, u3 = (
        min(max(u0, ZERO), ONE),
        min(max(u1, ZERO), ONE),
        min(max(u2, ZERO), ONE),
        min(max(u3, ZERO), ONE),
    )
    r0, r1, r2, r3 = s[ROTOR, lane], s[ROTOR + 1, lane], s[ROTOR + 2, lane], s[ROTOR + 3, lane]
    l1, x1, y1, z1 = wrench(r0, r1, r2, r3, ground, p, lane)
    up, down = p[DECAY_UP, lane], p[DECAY_DOWN, lane]
    e0, e1, e2, e3 = decay(u0, r0, up, down), decay(u1, r1, up, down), decay(u2, r2, up, down), decay(u3, r3, up, down)
    r0, r1, r2, r3 = u0 + (r0 - u0) * e0, u1 + (r1 - u1) * e1, u2 + (r2 - u2) * e2, u3 + (r3 - u3) * e3
    l2, x2, y2, z2 = wrench(r0, r1, r2, r3, ground, p, lane)
    r0, r1, r2, r3 = u0 + (r0 - u0) * e0, u1 + (r1 - u1) * e1, u2 + (r2 - u2) * e2, u3 + (r3 - u3) * e3
    l4, x4, y4, z4 = wrench(r0, r1, r2, r3, ground, p, lane)

    a, b, c, d = s[QUATERNION, lane], s[QUATERNION + 1, lane], s[QUATERNION + 2, lane], s[QUATERNION + 3, lane]
    vx, vy, vz = s[VELOCITY, lane], s[VELOCITY + 1, lane], s[VELOCITY + 2, lane]
    wx, wy, wz = s[BODY_RATE, lane], s[BODY_RATE + 1, lane], s[BODY_RATE + 2, lane]
    ax, ay, az = vx - p[WIND, lane], vy - p[WIND + 1, lane], vz - p[WIND + 2, lane]
    m = HALF * h
    k = derivative(a, b, c, d, ax, ay, az, wx, wy, wz, l1, x1, y1, z1, p, lane)
    j = derivative(
        a + m * k[0], b + m * k[1], c + m * k[2], d + m * k[3],
        ax + m * k[4], ay + m * k[5], az + m * k[6],
        wx + m * k[7], wy + m * k[8], wz + m * k[9],
        l2, x2, y2, z2, p, lane,
    )  # fmt: skip
    i = derivative(
        a + m * j[0], b + m * j[1], c + m * j[2], d + m * j[3],
        ax + m * j[4], ay + m * j[5], az + m * j[6],
        wx + m * j[7], wy + m * j[8], wz + m * j[9],
        l2, x2, y2, z2, p, lane,
    )  # fmt: skip
    n = derivative(
        a + h * i[0], b + h * i[1], c + h * i[2], d + h * i[3],
        ax + h * i[4], ay + h * i[5], az + h * i[6],
        wx + h * i[7], wy + h * i[8], wz + h * i[9],
        l4, x4, y4, z4, p, lane,
    )  # fmt: skip
    t = h / (THREE * TWO)
    # The position integrates the velocity of the same stages: v, v + m k, v + m j, v + h i.
    out[POSITION, lane] = s[POSITION, lane] + h * (vx + t * (k[4] + j[4] + i[4]))
    out[POSITION + 1, lane] = s[POSITION + 1, lane] + h * (vy + t * (k[5] + j[5] + i[5]))
    out[POSITION + 2, lane] = s[POSITION + 2, lane] + h * (vz + t * (k[6] + j[6] + i[6]))
    a += t * (k[0] + TWO * (j[0] + i[0]) + n[0])
    b += t * (k[1] + TWO * (j[1] + i[1]) + n[1])
    c += t * (k[2] + TWO * (j[2] + i[2]) + n[2])
    d += t * (k[3] + TWO * (j[3] + i[3]) + n[3])
    scale = ONE / math.sqrt(a * a + b * b + c * c + d * d)
    out[QUATERNION, lane] = a * scale
    out[QUATERNION + 1, lane] = b * scale
    out[QUATERNION + 2, lane] = c * scale
    out[QUATERNION + 3, lane] = d * scale
    out[VELOCITY, lane] = vx + t * (k[4] + TWO * (j[4] + i[4]) + n[4])
    out[VELOCITY + 1, lane] = vy + t * (k[5] + TWO * (j[5] + i[5]) + n[5])
    out[VELOCITY + 2, lane] = vz + t * (k[6] + TWO * (j[6] + i[6]) + n[6])
    out[BODY_RATE, lane] = wx + t * (k[7] + TWO * (j[7] + i[7]) + n[7])
    out[BODY_RATE + 1, lane] = wy + t * (k[8] + TWO * (j[8] + i[8]) + n[8])
    out[BODY_RATE + 2, lane] = wz + t * (k[9] + TWO * (j[9] + i[9]) + n[9])
    out[ROTOR, lane], out[ROTOR + 1, lane], out[ROTOR + 2, lane], out[ROTOR + 3, lane] = r0, r1, r2, r3


@inlined
def sense(s, out, lane):
    """out (SIGNAL_ROWS, LANES): position, rotation matrix, velocity, body rate."""
    r = rotation(s[QUATERNION, lane], s[QUATERNION + 1, lane], s[QUATERNION + 2, lane], s[QUATERNION + 3, lane])
    out[0, lane], out[1, lane], out[2, lane] = s[POSITION, lane], s[POSITION + 1, lane], s[POSITION + 2, lane]
    out[3, lane], out[4, lane], out[5, lane] = r[0], r[1], r[2]
    out[6, lane], out[7, lane], out[8, lane] = r[3], r[4], r[5]
    out[9, lane], out[10, lane], out[11, lane] = r[6], r[7], r[8]
    out[12, lane], out[13, lane], out[14, lane] = s[VELOCITY, lane], s[VELOCITY + 1, lane], s[VELOCITY + 2, lane]
    out[15, lane], out[16, lane], out[17, lane] = s[BODY_RATE, lane], s[BODY_RATE + 1, lane], s[BODY_RATE + 2, lane]


@inlined
def sense_adjoint(s, g, gs, lane):
    """Add to gs (STATE_ROWS, LANES) the gradient through `sense`, given g (SIGNAL_ROWS, LANES)."""
    qa, qb, qc, qd = rotation_adjoint(
        s[QUATERNION, lane], s[QUATERNION + 1, lane], s[QUATERNION + 2, lane], s[QUATERNION + 3, lane],
        g[3, lane], g[4, lane], g[5, lane], g[6, lane], g[7, lane], g[8, lane], g[9, lane], g[10, lane], g[11, lane],
    )  # fmt: skip
    gs[QUATERNION, lane] += qa
    gs[QUATERNION + 1, lane] += qb
    gs[QUATERNION + 2, lane] += qc
    gs[QUATERNION + 3, lane] += qd
    gs[POSITION, lane] += g[0, lane]
    gs[POSITION + 1, lane] += g[1, lane]
    gs[POSITION + 2, lane] += g[2, lane]
    gs[VELOCITY, lane] += g[12, lane]
    gs[VELOCITY + 1, lane] += g[13, lane]
    gs[VELOCITY + 2, lane] += g[14, lane]
    gs[BODY_RATE, lane] += g[15, lane]
    gs[BODY_RATE + 1, lane] += g[16, lane]
    gs[BODY_RATE + 2, lane] += g[17, lane]


@inlined
def _rotor_adjoint(index, g_end, u, speed, e, ground, g1, g2, g4, p, lane):
    """Gradients (speed, command, ground) of one rotor; g1, g2, g4: of the wrench at start, middle and end."""
    lift, roll, pitch, yaw = p[LIFT + index, lane], p[ROLL + index, lane], p[PITCH + index, lane], p[YAW + index, lane]
    f1 = lift * g1[0] + roll * g1[1] + pitch * g1[2] + yaw * g1[3]
    f2 = lift * g2[0] + roll * g2[1] + pitch * g2[2] + yaw * g2[3]
    f4 = lift * g4[0] + roll * g4[1] + pitch * g4[2] + yaw * g4[3]
    c0, c1, c2 = p[CURVE, lane], p[CURVE + 1, lane], p[CURVE + 2, lane]
    middle = u + (speed - u) * e
    end = u + (middle - u) * e
    g_middle = ground * f2 * (c1 + TWO * c2 * middle)
    g_end += ground * f4 * (c1 + TWO * c2 * end)
    square = e * e
    g_speed = ground * f1 * (c1 + TWO * c2 * speed) + e * g_middle + square * g_end
    g_command = (ONE - e) * g_middle + (ONE - square) * g_end
    g_ground = (
        f1 * (c0 + speed * (c1 + speed * c2))
        + f2 * (c0 + middle * (c1 + middle * c2))
        + f4 * (c0 + end * (c1 + end * c2))
    )
    return g_speed, g_command, g_ground


@inlined
def advance_adjoint(s, p, command, g, g_command, lane, h):
    """The adjoint of `advance`: g (STATE_ROWS, LANES) holds the gradient of the new state and receives that of `s`;
    g_command (4, LANES) is added to. The stages are computed again from `s`.
    """
    ground = ground_factor(s[POSITION + 2, lane], p, lane)
    u0, u1, u2, u3 = command[0, lane], command[1, lane], command[2, lane], command[3, lane]
    r0, r1, r2, r3 = s[ROTOR, lane], s[ROTOR + 1, lane], s[ROTOR + 2, lane], s[ROTOR + 3, lane]
    up, down = p[DECAY_UP, lane], p[DECAY_DOWN, lane]
    e0, e1, e2, e3 = decay(u0, r0, up, down), decay(u1, r1, up, down), decay(u2, r2, up, down), decay(u3, r3, up, down)
    l1, x1, y1, z1 = wrench(r0, r1, r2, r3, ground, p, lane)
    m0, m1, m2, m3 = u0 + (r0 - u0) * e0, u1 + (r1 - u1) * e1, u2 + (r2 - u2) * e2, u3 + (r3 - u3) * e3
    l2, x2, y2, z2 = wrench(m0, m1, m2, m3, ground, p, lane)
    m0, m1, m2, m3 = u0 + (m0 - u0) * e0, u1 + (m1 - u1) * e1, u2 + (m2 - u2) * e2, u3 + (m3 - u3) * e3
    l4, x4, y4, z4 = wrench(m0, m1, m2, m3, ground, p, lane)

    a, b, c, d = s[QUATERNION, lane], s[QUATERNION + 1, lane], s[QUATERNION + 2, lane], s[QUATERNION + 3, lane]
    wx, wy, wz = s[BODY_RATE, lane], s[BODY_RATE + 1, lane], s[BODY_RATE + 2, lane]
    ax, ay, az = (
        s[VELOCITY, lane] - p[WIND, lane],
        s[VELOCITY + 1, lane] - p[WIND + 1, lane],
        s[VELOCITY + 2, lane] - p[WIND + 2, lane],
    )
    m = HALF * h
    k = derivative(a, b, c, d, ax, ay, az, wx, wy, wz, l1, x1, y1, z1, p, lane)
    y2_ = (
        a + m * k[0], b + m * k[1], c + m * k[2], d + m * k[3], ax + m * k[4], ay + m * k[5], az + m * k[6],
        wx + m * k[7], wy + m * k[8], wz + m * k[9],
    )  # fmt: skip
    j = derivative(
        y2_[0], y2_[1], y2_[2], y2_[3], y2_[4], y2_[5], y2_[6], y2_[7], y2_[8], y2_[9], l2, x2, y2, z2, p, lane
    )
    y3_ = (
        a + m * j[0], b + m * j[1], c + m * j[2], d + m * j[3], ax + m * j[4], ay + m * j[5], az + m * j[6],
        wx + m * j[7], wy + m * j[8], wz + m * j[9],
    )  # fmt: skip
    i = derivative(
        y3_[0], y3_[1], y3_[2], y3_[3], y3_[4], y3_[5], y3_[6], y3_[7], y3_[8], y3_[9], l2, x2, y2, z2, p, lane
    )
    y4_ = (
        a + h * i[0], b + h * i[1], c + h * i[2], d + h * i[3], ax + h * i[4], ay + h * i[5], az + h * i[6],
        wx + h * i[7], wy + h * i[8], wz + h * i[9],
    )  # fmt: skip
    n = derivative(
        y4_[0], y4_[1], y4_[2], y4_[3], y4_[4], y4_[5], y4_[6], y4_[7], y4_[8], y4_[9], l4, x4, y4, z4, p, lane
    )

    # Through the normalisation of the quaternion.
    t = h / (THREE * TWO)
    na = a + t * (k[0] + TWO * (j[0] + i[0]) + n[0])
    nb = b + t * (k[1] + TWO * (j[1] + i[1]) + n[1])
    nc = c + t * (k[2] + TWO * (j[2] + i[2]) + n[2])
    nd = d + t * (k[3] + TWO * (j[3] + i[3]) + n[3])
    scale = ONE / math.sqrt(na * na + nb * nb + nc * nc + nd * nd)
    na, nb, nc, nd = na * scale, nb * scale, nc * scale, nd * scale
    ga, gb, gc, gd = g[QUATERNION, lane], g[QUATERNION + 1, lane], g[QUATERNION + 2, lane], g[QUATERNION + 3, lane]
    along = na * ga + nb * gb + nc * gc + nd * gd
    ga, gb, gc, gd = (
        (ga - na * along) * scale,
        (gb - nb * along) * scale,
        (gc - nc * along) * scale,
        (gd - nd * along) * scale,
    )

    gpx, gpy, gpz = g[POSITION, lane], g[POSITION + 1, lane], g[POSITION + 2, lane]
    gvx, gvy, gvz = g[VELOCITY, lane], g[VELOCITY + 1, lane], g[VELOCITY + 2, lane]
    gwx, gwy, gwz = g[BODY_RATE, lane], g[BODY_RATE + 1, lane], g[BODY_RATE + 2, lane]
    q = h * t
    # The four stages, last to first; each adds its own gradient with respect to the state it was taken at.
    b4 = derivative_adjoint(
        y4_[0], y4_[1], y4_[2], y4_[3], y4_[4], y4_[5], y4_[6], y4_[7], y4_[8], y4_[9], l4,
        (t * ga, t * gb, t * gc, t * gd, t * gvx, t * gvy, t * gvz, t * gwx, t * gwy, t * gwz), p, lane,
    )  # fmt: skip
    w = TWO * t
    w4x, w4y, w4z = t * gwx, t * gwy, t * gwz
    w3x, w3y, w3z = w * gwx + h * b4[7], w * gwy + h * b4[8], w * gwz + h * b4[9]
    b3 = derivative_adjoint(
        y3_[0], y3_[1], y3_[2], y3_[3], y3_[4], y3_[5], y3_[6], y3_[7], y3_[8], y3_[9], l2,
        (
            w * ga + h * b4[0], w * gb + h * b4[1], w * gc + h * b4[2], w * gd + h * b4[3],
            w * gvx + h * b4[4] + q * gpx, w * gvy + h * b4[5] + q * gpy, w * gvz + h * b4[6] + q * gpz,
            w3x, w3y, w3z,
        ), p, lane,
    )  # fmt: skip
    w2x, w2y, w2z = w * gwx + m * b3[7], w * gwy + m * b3[8], w * gwz + m * b3[9]
    b2 = derivative_adjoint(
        y2_[0], y2_[1], y2_[2], y2_[3], y2_[4], y2_[5], y2_[6], y2_[7], y2_[8], y2_[9], l2,
        (
            w * ga + m * b3[0], w * gb + m * b3[1], w * gc + m * b3[2], w * gd + m * b3[3],
            w * gvx + m * b3[4] + q * gpx, w * gvy + m * b3[5] + q * gpy, w * gvz + m * b3[6] + q * gpz,
            w2x, w2y, w2z,
        ), p, lane,
    )  # fmt: skip
    w1x, w1y, w1z = t * gwx + m * b2[7], t * gwy + m * b2[8], t * gwz + m * b2[9]
    b1 = derivative_adjoint(
        a, b, c, d, ax, ay, az, wx, wy, wz, l1,
        (
            t * ga + m * b2[0], t * gb + m * b2[1], t * gc + m * b2[2], t * gd + m * b2[3],
            t * gvx + m * b2[4] + q * gpx, t * gvy + m * b2[5] + q * gpy, t * gvz + m * b2[6] + q * gpz,
            w1x, w1y, w1z,
        ), p, lane,
    )  # fmt: skip
    g[QUATERNION, lane] = ga + b1[0] + b2[0] + b3[0] + b4[0]
    g[QUATERNION + 1, lane] = gb + b1[1] + b2[1] + b3[1] + b4[1]
    g[QUATERNION + 2, lane] = gc + b1[2] + b2[2] + b3[2] + b4[2]
    g[QUATERNION + 3, lane] = gd + b1[3] + b2[3] + b3[3] + b4[3]
    g[VELOCITY, lane] = gvx + h * gpx + b1[4] + b2[4] + b3[4] + b4[4]
    g[VELOCITY + 1, lane] = gvy + h * gpy + b1[5] + b2[5] + b3[5] + b4[5]
    g[VELOCITY + 2, lane] = gvz + h * gpz + b1[6] + b2[6] + b3[6] + b4[6]
    g[BODY_RATE, lane] = gwx + b1[7] + b2[7] + b3[7] + b4[7]
    g[BODY_RATE + 1, lane] = gwy + b1[8] + b2[8] + b3[8] + b4[8]
    g[BODY_RATE + 2, lane] = gwz + b1[9] + b2[9] + b3[9] + b4[9]

    g1 = (b1[10], w1x, w1y, w1z)
    g2 = (b2[10] + b3[10], w2x + w3x, w2y + w3y, w2z + w3z)
    g4 = (b4[10], w4x, w4y, w4z)
    s0, c0, f0 = _rotor_adjoint(0, g[ROTOR, lane], u0, r0, e0, ground, g1, g2, g4, p, lane)
    s1, c1, f1 = _rotor_adjoint(1, g[ROTOR + 1, lane], u1, r1, e1, ground, g1, g2, g4, p, lane)
    s2, c2, f2 = _rotor_adjoint(2, g[ROTOR + 2, lane], u2, r2, e2, ground, g1, g2, g4, p, lane)
    s3, c3, f3 = _rotor_adjoint(3, g[ROTOR + 3, lane], u3, r3, e3, ground, g1, g2, g4, p, lane)
    g[ROTOR, lane], g[ROTOR + 1, lane], g[ROTOR + 2, lane], g[ROTOR + 3, lane] = s0, s1, s2, s3
    g_command[0, lane] += c0
    g_command[1, lane] += c1
    g_command[2, lane] += c2
    g_command[3, lane] += c3
    height = s[POSITION + 2, lane]
    steep = -TWO * p[GROUND, lane] / (height * height * height)
    slope = select(height > p[LOWEST, lane], steep, ZERO)
    g[POSITION + 2, lane] = gpz + slope * (f0 + f1 + f2 + f3)


def signals_of(state: Any) -> dict[str, Any]:
    """The signals by name, (n, k), of states (n, STATE_ROWS); numpy."""
    a, b, c, d = state[:, QUATERNION : QUATERNION + 4].T
    matrix = rotation.py_func(a, b, c, d)
    return {
        "position": state[:, STATE["position"]],
        "rotation": np.stack(matrix, axis=1),
        "linear_velocity": state[:, STATE["linear_velocity"]],
        "angular_velocity": state[:, STATE["angular_velocity"]],
    }
