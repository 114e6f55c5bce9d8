"""The equations of a small car, written once for cars side by side.

A single track (Riekert and Schunck 1940) with Pacejka's tyres: the lateral force of an axle is D sin(C atan(k - E (k -
atan k))) with k = B tan(slip angle) and D = friction x load, and shrinks with the driving force on the friction circle.
Where it is slow, slip angles mean nothing: the equations blend into those of wheels that do not slip (Kabzan et al.
2019, "AMZ Driverless", section 4.3). Servo and motor follow what they are told with a lag. Steps are of the classical
Runge-Kutta method of fourth order.

Every array argument is (rows, LANES); `lane` is `simd.ALL`.
"""

from __future__ import annotations

import math

import numpy as np

from sim.engines.car.rows import (
    COS,
    CURVATURE,
    FRICTION,
    FRONT_STIFFNESS,
    INERTIA,
    MASS,
    MOTOR_LAG,
    POWER,
    PUSH,
    REAR_STIFFNESS,
    SHAPE,
    SIN,
    SPEED,
    STEER,
    STEERING,
    STEERING_LAG,
    TRIM,
    TURNING,
    VX,
    VY,
    WEIGHT,
    X,
    Y,
)
from sim.engines.vector.blocks import inlined
from sim.engines.vector.trigonometry import cosine, quarter_sine, signed, upper_arctans, upper_sine

ZERO, HALF, ONE, TWO, SIXTH = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0, 1.0 / 6.0))
SLOW, FAST = np.float32(1.0), np.float32(2.0)  # m/s between which slip angles begin to count
SLOWEST, SPAN = SLOW * SLOW, np.float32(1.0) / (FAST * FAST - SLOW * SLOW)
# Rows of what is derived from parameters.
HOLD, PER_HOLD, FRONT_B, REAR_B, C, E, SPIN, SERVO, MOTOR, MOST, STRAIGHT = range(11)
DERIVED_ROWS = 11
ROLLS = np.float32(40.0)  # 1/s at which slipping dies where it is slow


@inlined
def within(value, limit):
    """Clipped to either side."""
    return min(max(value, -limit), limit)


@inlined
def gripped(front, rear, q, lane):
    """The lateral forces of both axles over what each could do, for the tangents of their slip angles."""
    shape, curvature = q[C, lane], q[E, lane]
    f, r = q[FRONT_B, lane] * abs(front), q[REAR_B, lane] * abs(rear)
    a, b = upper_arctans(f, r)
    a, b = upper_arctans(f - curvature * (f - a), r - curvature * (r - b))
    return signed(upper_sine(shape * a), front), signed(upper_sine(shape * b), rear)


@inlined
def derived(p, q, shape, lane):
    """What follows from parameters p, once for all steps: q (DERIVED_ROWS, LANES)."""
    hold = p[FRICTION, lane] * WEIGHT
    q[HOLD, lane], q[PER_HOLD, lane] = hold, ONE / hold
    q[FRONT_B, lane] = p[FRONT_STIFFNESS, lane] / p[SHAPE, lane]
    q[REAR_B, lane] = p[REAR_STIFFNESS, lane] / p[SHAPE, lane]
    q[C, lane], q[E, lane] = p[SHAPE, lane], p[CURVATURE, lane]
    q[SPIN, lane] = p[MASS, lane] / p[INERTIA, lane]
    q[SERVO, lane], q[MOTOR, lane] = ONE / p[STEERING_LAG, lane], ONE / p[MOTOR_LAG, lane]
    q[MOST, lane], q[STRAIGHT, lane] = p[POWER, lane], p[TRIM, lane]


@inlined
def rates(q, c, shape, lane, cos, sin, state):
    """Derivatives of (x, y, the angle since the step began, vx, vy, turning, steering, push)."""
    _, _, angle, vx, vy, turning, steering, push = state
    by_cos, by_sin = cosine(angle), quarter_sine(angle)
    ahead, up = cos * by_cos - sin * by_sin, sin * by_cos + cos * by_sin
    cs, ss = cosine(steering), quarter_sine(steering)
    hold = q[HOLD, lane]  # m/s^2 that tyres can do in all
    drive = within(push, hold)
    moved = shape.lever * drive  # of the weight, from the front axle to the rear one
    front = min(max(shape.share - moved, ZERO), ONE)
    rear = ONE - front
    used = drive * q[PER_HOLD, lane]
    left = hold * math.sqrt(max(ONE - used * used, ZERO))
    aside, power = vy + shape.front * turning, q[MOST, lane]
    one, other = max(abs(vx * cs + aside * ss), SLOW), max(abs(vx), SLOW)  # of wheels in their own direction
    shared = ONE / (one * other * cs)
    inverse = shared * one * cs
    slip = (vx * ss - aside * cs) * shared * other * cs, (shape.rear * turning - vy) * inverse
    fy, ry = gripped(slip[0], slip[1], q, lane)
    fx, fy, ry = drive * front, left * front * fy, left * rear * ry
    forward, aside = fx * cs - fy * ss + drive * rear, fy * cs + fx * ss
    turn = (shape.front * aside - shape.rear * ry) * q[SPIN, lane]
    # As wheels roll that do not slip.
    curved = shape.per_base * vx * ss * shared * one * other
    to_left = within(ROLLS * (shape.rear * curved - vy), hold)
    to_turn = within(ROLLS * (curved - turning), shape.spin * hold)
    share = min(max((vx * vx + vy * vy - SLOWEST) * SPAN, ZERO), ONE)
    wanted = shape.speed_gain * (c[SPEED, lane] - vx)
    wanted = min(max(wanted, -power), power * min(shape.switch_speed * inverse, ONE))
    told = within(c[STEER, lane], shape.steering_limit) + q[STRAIGHT, lane]
    return (
        vx * ahead - vy * up,
        vx * up + vy * ahead,
        turning,
        drive + share * (forward + vy * turning - drive),
        to_left + share * (aside + ry - vx * turning - to_left),
        to_turn + share * (turn - to_turn),
        within((told - steering) * q[SERVO, lane], shape.steering_rate),
        (wanted - push) * q[MOTOR, lane],
    )


@inlined
def along(state, h, rate):
    """The state after h seconds at these rates."""
    return (
        state[0] + h * rate[0],
        state[1] + h * rate[1],
        state[2] + h * rate[2],
        state[3] + h * rate[3],
        state[4] + h * rate[4],
        state[5] + h * rate[5],
        state[6] + h * rate[6],
        state[7] + h * rate[7],
    )


@inlined
def driven(s, q, c, shape, h, lane):
    """One step of h seconds, in place: state s, what is `derived` q, commands c. Walls are `walls.py`'s business."""
    cos, sin, none = s[COS, lane], s[SIN, lane], ZERO * s[COS, lane]
    start = (none, none, none, s[VX, lane], s[VY, lane], s[TURNING, lane], s[STEERING, lane], s[PUSH, lane])
    first = rates(q, c, shape, lane, cos, sin, start)
    second = rates(q, c, shape, lane, cos, sin, along(start, HALF * h, first))
    third = rates(q, c, shape, lane, cos, sin, along(start, HALF * h, second))
    fourth = rates(q, c, shape, lane, cos, sin, along(start, h, third))
    end = along(start, SIXTH * h, first)
    end = along(end, TWO * SIXTH * h, second)
    end = along(end, TWO * SIXTH * h, third)
    end = along(end, SIXTH * h, fourth)
    s[X, lane] += end[0]
    s[Y, lane] += end[1]
    by_cos, by_sin = cosine(end[2]), quarter_sine(end[2])
    ahead, up = cos * by_cos - sin * by_sin, sin * by_cos + cos * by_sin
    # Its length stays one: a Newton step for the inverse square root.
    unit = HALF * (ONE + TWO - ahead * ahead - up * up)
    s[COS, lane], s[SIN, lane] = unit * ahead, unit * up
    s[VX, lane], s[VY, lane], s[TURNING, lane] = end[3], end[4], end[5]
    s[STEERING, lane], s[PUSH, lane] = end[6], end[7]
