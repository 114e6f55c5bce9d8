"""The adjoint of `dynamics.py`, derived by hand: gradients run back through a car's steps.

Where something is clipped, no gradient passes. Walls are left out: a car that touches one has to be told otherwise, by
how far it is from them. Tests compare it with central differences in double precision.

Every array argument is (rows, LANES); `lane` is `simd.ALL` or the number of one lane.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sim.engines.car import dynamics
from sim.engines.car.dynamics import (
    FRONT_B,
    HALF,
    HOLD,
    MOST,
    MOTOR,
    ONE,
    PER_HOLD,
    REAR_B,
    ROLLS,
    SERVO,
    SIXTH,
    SLOW,
    SLOWEST,
    SPAN,
    SPIN,
    STRAIGHT,
    TWO,
    ZERO,
    C,
    E,
    along,
    gripped,
    rates,
    within,
)
from sim.engines.car.grids import PLACE_ROWS
from sim.engines.car.rows import (
    COMMAND_ROWS,
    COS,
    PARAMETER_ROWS,
    PUSH,
    SIN,
    SPEED,
    STATE_ROWS,
    STEER,
    STEERING,
    TURNING,
    VX,
    VY,
    X,
    Y,
)
from sim.engines.vector.blocks import block, inlined, kernel
from sim.engines.vector.simd import ALL, LANES, select
from sim.engines.vector.trigonometry import cosine, quarter_sine, upper_arctans

# The lateral force falls vertically where pushing takes all of the grip: the slope is that of so much of it left.
LEFT = np.float32(0.1)


@inlined
def inside(value, limit, gradient):
    """The gradient through `within`."""
    return select(abs(value) < limit, gradient, ZERO * gradient)


@inlined
def slopes(front, rear, q, lane):
    """The derivatives of `gripped`."""
    shape, curvature = q[C, lane], q[E, lane]
    f, r = q[FRONT_B, lane] * abs(front), q[REAR_B, lane] * abs(rear)
    a, b = upper_arctans(f, r)
    k, m = f - curvature * (f - a), r - curvature * (r - b)
    a, b = upper_arctans(k, m)
    bent = ONE - curvature + curvature / (ONE + f * f), ONE - curvature + curvature / (ONE + r * r)
    return (
        cosine(shape * a) * shape * q[FRONT_B, lane] * bent[0] / (ONE + k * k),
        cosine(shape * b) * shape * q[REAR_B, lane] * bent[1] / (ONE + m * m),
    )


@inlined
def rates_adjoint(q, c, shape, lane, cos, sin, state, g):
    """Gradients of (angle, vx, vy, turning, steering, push, cos, sin, both commands), given those of `rates`."""
    _, _, angle, vx, vy, turning, steering, push = state
    by_cos, by_sin = cosine(angle), quarter_sine(angle)
    ahead, up = cos * by_cos - sin * by_sin, sin * by_cos + cos * by_sin
    cs, ss = cosine(steering), quarter_sine(steering)
    hold, per_hold, power, switch = q[HOLD, lane], q[PER_HOLD, lane], q[MOST, lane], shape.switch_speed
    drive = within(push, hold)
    loaded = shape.share - shape.lever * drive
    front = min(max(loaded, ZERO), ONE)
    rear = ONE - front
    used = drive * per_hold
    root = math.sqrt(max(ONE - used * used, ZERO))
    left = hold * root
    side = vy + shape.front * turning
    own = vx * cs + side * ss
    per_one, per_other, per_cos = ONE / max(abs(own), SLOW), ONE / max(abs(vx), SLOW), ONE / cs
    slip, back = (vx * ss - side * cs) * per_one, (shape.rear * turning - vy) * per_other
    grip, grips = gripped(slip, back, q, lane)
    steep, steeps = slopes(slip, back, q, lane)
    fx, fy, ry = drive * front, left * front * grip, left * rear * grips
    forward, aside = fx * cs - fy * ss + drive * rear, fy * cs + fx * ss
    turn = (shape.front * aside - shape.rear * ry) * q[SPIN, lane]
    curved = shape.per_base * vx * ss * per_cos
    rolls, spins = ROLLS * (shape.rear * curved - vy), ROLLS * (curved - turning)
    to_left, to_turn = within(rolls, hold), within(spins, shape.spin * hold)
    counts = (vx * vx + vy * vy - SLOWEST) * SPAN
    share = min(max(counts, ZERO), ONE)
    # Where it is, and how it moves as a whole.
    g_ahead, g_up = vx * g[0] + vy * g[1], vx * g[1] - vy * g[0]
    g_vx = ahead * g[0] + up * g[1] - share * turning * g[4]
    g_vy = ahead * g[1] - up * g[0] + share * turning * g[3]
    g_turning = g[2] + share * (vy * g[3] - vx * g[4])
    g_share = (forward + vy * turning - drive) * g[3] + (turn - to_turn) * g[5]
    g_share = g_share + (aside + ry - vx * turning - to_left) * g[4]
    g_share = TWO * SPAN * select(counts > ZERO, select(counts < ONE, g_share, ZERO * g_share), ZERO * g_share)
    g_vx, g_vy = g_vx + vx * g_share, g_vy + vy * g_share
    # Wheels that roll.
    g_rolls = ROLLS * inside(rolls, hold, (ONE - share) * g[4])
    g_spins = ROLLS * inside(spins, shape.spin * hold, (ONE - share) * g[5])
    g_curved = shape.rear * g_rolls + g_spins
    g_vy, g_turning = g_vy - g_rolls, g_turning - g_spins
    g_vx = g_vx + shape.per_base * ss * per_cos * g_curved
    g_steering = shape.per_base * vx * per_cos * per_cos * g_curved
    # Forces of tyres.
    g_forward, g_turn = share * g[3], share * g[5] * q[SPIN, lane]
    g_aside, g_ry = share * g[4] + shape.front * g_turn, share * g[4] - shape.rear * g_turn
    g_fy, g_fx = cs * g_aside - ss * g_forward, ss * g_aside + cs * g_forward
    g_cs, g_ss = fy * g_aside + fx * g_forward, fx * g_aside - fy * g_forward
    g_front = drive * (g_fx - g_forward) + left * (grip * g_fy - grips * g_ry)
    g_left = front * grip * g_fy + rear * grips * g_ry
    g_drive = (ONE - share) * g[3] + rear * g_forward + front * g_fx - used / max(root, LEFT) * g_left
    loads = select(loaded > ZERO, select(loaded < ONE, g_front, ZERO * g_front), ZERO * g_front)
    g_push = inside(push, hold, g_drive - shape.lever * loads)
    # How they slip.
    g_slip, g_back = steep * left * front * g_fy * per_one, steeps * left * rear * g_ry * per_other
    g_own = select(abs(own) > SLOW, select(own > ZERO, -slip, slip) * g_slip, ZERO * g_slip)
    g_side = ss * g_own - cs * g_slip
    g_cs, g_ss = g_cs + vx * g_own - side * g_slip, g_ss + side * g_own + vx * g_slip
    g_vx = g_vx + cs * g_own + ss * g_slip
    g_vy, g_turning = g_vy + g_side - g_back, g_turning + shape.front * g_side + shape.rear * g_back
    g_steering = g_steering + cs * g_ss - ss * g_cs
    # Motor and servo.
    g_wanted, top = g[7] * q[MOTOR, lane], power * min(switch * per_other, ONE)
    wanted = shape.speed_gain * (c[SPEED, lane] - vx)
    asked = shape.speed_gain * select(wanted < top, select(wanted > -power, g_wanted, ZERO * vx), ZERO * vx)
    limits = select(wanted < top, ZERO * vx, select(switch * per_other < ONE, g_wanted, ZERO * vx))
    g_other = -back * g_back - power * switch * per_other * per_other * limits
    g_vx = g_vx - asked + select(abs(vx) > SLOW, select(vx > ZERO, g_other, -g_other), ZERO * vx)
    told = within(c[STEER, lane], shape.steering_limit) + q[STRAIGHT, lane]
    served = q[SERVO, lane] * inside((told - steering) * q[SERVO, lane], shape.steering_rate, g[6])
    g_by_cos, g_by_sin = cos * g_ahead + sin * g_up, cos * g_up - sin * g_ahead
    return (
        by_cos * g_by_sin - by_sin * g_by_cos,
        g_vx,
        g_vy,
        g_turning,
        g_steering - served,
        g_push - g[7] * q[MOTOR, lane],
        by_cos * g_ahead + by_sin * g_up,
        by_cos * g_up - by_sin * g_ahead,
        inside(c[STEER, lane], shape.steering_limit, served),
        asked,
    )


@inlined
def weighed(g, whole, b, part):
    """What reaches the rates of a stage: `whole` of the end's gradient g, `part` of the following stage's b."""
    return (
        whole * g[0],
        whole * g[1],
        whole * g[2] + part * b[0],
        whole * g[3] + part * b[1],
        whole * g[4] + part * b[2],
        whole * g[5] + part * b[3],
        whole * g[6] + part * b[4],
        whole * g[7] + part * b[5],
    )


@inlined
def driven_adjoint(s, q, c, shape, h, g, g_command, lane):
    """The adjoint of `dynamics.driven`: g (STATE_ROWS, LANES) goes from the new state's to that of s.

    g_command (COMMAND_ROWS, LANES) is added to. The stages are computed again.
    """
    cos, sin, none = s[COS, lane], s[SIN, lane], ZERO * s[COS, lane]
    start = (none, none, none, s[VX, lane], s[VY, lane], s[TURNING, lane], s[STEERING, lane], s[PUSH, lane])
    first = rates(q, c, shape, lane, cos, sin, start)
    at_second = along(start, HALF * h, first)
    second = rates(q, c, shape, lane, cos, sin, at_second)
    at_third = along(start, HALF * h, second)
    third = rates(q, c, shape, lane, cos, sin, at_third)
    at_fourth = along(start, h, third)
    turned = SIXTH * h * (first[2] + TWO * (second[2] + third[2]) + at_fourth[5])
    # The heading keeps its length.
    by_cos, by_sin = cosine(turned), quarter_sine(turned)
    ahead, up = cos * by_cos - sin * by_sin, sin * by_cos + cos * by_sin
    unit = HALF * (ONE + TWO - ahead * ahead - up * up)
    grown = ahead * g[COS, lane] + up * g[SIN, lane]
    g_ahead, g_up = unit * g[COS, lane] - ahead * grown, unit * g[SIN, lane] - up * grown
    g_angle = by_cos * (cos * g_up - sin * g_ahead) - by_sin * (cos * g_ahead + sin * g_up)
    end = (
        g[X, lane],
        g[Y, lane],
        g_angle,
        g[VX, lane],
        g[VY, lane],
        g[TURNING, lane],
        g[STEERING, lane],
        g[PUSH, lane],
    )
    zero = (none, none, none, none, none, none)
    b4 = rates_adjoint(q, c, shape, lane, cos, sin, at_fourth, weighed(end, SIXTH * h, zero, h))
    b3 = rates_adjoint(q, c, shape, lane, cos, sin, at_third, weighed(end, TWO * SIXTH * h, b4, h))
    b2 = rates_adjoint(q, c, shape, lane, cos, sin, at_second, weighed(end, TWO * SIXTH * h, b3, HALF * h))
    b1 = rates_adjoint(q, c, shape, lane, cos, sin, start, weighed(end, SIXTH * h, b2, HALF * h))
    g[COS, lane] = by_cos * g_ahead + by_sin * g_up + (b1[6] + b2[6] + b3[6] + b4[6])
    g[SIN, lane] = by_cos * g_up - by_sin * g_ahead + (b1[7] + b2[7] + b3[7] + b4[7])
    g[VX, lane] = end[3] + (b1[1] + b2[1] + b3[1] + b4[1])
    g[VY, lane] = end[4] + (b1[2] + b2[2] + b3[2] + b4[2])
    g[TURNING, lane] = end[5] + (b1[3] + b2[3] + b3[3] + b4[3])
    g[STEERING, lane] = end[6] + (b1[4] + b2[4] + b3[4] + b4[4])
    g[PUSH, lane] = end[7] + (b1[5] + b2[5] + b3[5] + b4[5])
    g_command[STEER, lane] += b1[8] + b2[8] + b3[8] + b4[8]
    g_command[SPEED, lane] += b1[9] + b2[9] + b3[9] + b4[9]


@inlined
def advance_adjoint(s, p, q, c, shape, h, n, g, g_command, states, lane):
    """The adjoint of n steps of h seconds without walls, from s; `states` (n, STATE_ROWS, LANES) is room for them."""
    dynamics.derived(p, q, shape, lane)
    for row in range(STATE_ROWS):
        states[0][row, lane] = s[row, lane]
    for k in range(1, n):
        for row in range(STATE_ROWS):
            states[k][row, lane] = states[k - 1][row, lane]
        dynamics.driven(states[k], q, c, shape, h, lane)
    for k in range(n - 1, -1, -1):
        driven_adjoint(states[k], q, c, shape, h, g, g_command, lane)


@kernel
def step_adjoint_blocks(state, parameters, command, gradient, g_command, shape, h, n):
    """The adjoint of `step_blocks` where there are no walls, from the state before it.

    `gradient` (blocks, STATE_ROWS, LANES) goes from the new state's to the old one's, g_command is added to.
    """
    q: Any = np.empty((dynamics.DERIVED_ROWS, LANES), np.float32)
    states = np.empty((n, STATE_ROWS, LANES), np.float32)
    for place in range(state.shape[0]):
        s, p = block(state, place, STATE_ROWS), block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        c, g = block(command, place, COMMAND_ROWS), block(gradient, place, STATE_ROWS)
        gc = block(g_command, place, COMMAND_ROWS)
        advance_adjoint(s, p, q, c, shape, h, n, g, gc, states, ALL)
