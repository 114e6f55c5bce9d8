"""The equations of a football match seen from above, written once for worlds side by side (CPU) or one (CUDA thread).

Robots are discs with a flat front on wheels: what the wheels' controllers want comes with a lag, within what motors and
grip allow. The ball slides under Coulomb friction until it rolls, which costs little (as spheres do; Mason, Mechanics
of Robotic Manipulation, 2001). Contacts are impulses with restitution and Coulomb friction, then overlaps are taken
apart by the masses' shares. A ball between robot and wall holds the robot up.

Every array argument is (rows, LANES); `lane` is `simd.ALL` or the number of one lane.
"""

from __future__ import annotations

import math

import numpy as np

from sim.engines.pitch.rows import (
    ACCELERATION,
    BALL_MASS,
    BALL_RADIUS,
    BALL_VX,
    BALL_VY,
    BALL_X,
    BALL_Y,
    BOUNCE,
    CHARGE,
    COMMAND_ROWS,
    COS,
    FORWARD,
    GRIP,
    KICK,
    KICK_SPEED,
    LAG,
    LEFT,
    MASS,
    PAN,
    PAN_RATE,
    PARAMETER_ROWS,
    ROBOT_PARAMETERS,
    ROBOT_ROWS,
    ROBOTS,
    ROLL_X,
    ROLL_Y,
    ROLLING,
    SCORED,
    SIN,
    SLIDING,
    SPEED,
    TOUCHED,
    TURN,
    TURNING,
    VX,
    VY,
    WALL_BOUNCE,
    X,
    Y,
)
from sim.engines.vector.blocks import inlined
from sim.engines.vector.simd import select
from sim.scenes.pitch import GRAVITY

ZERO, HALF, ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
TINY = np.float32(1e-6)
WEIGHT = np.float32(GRAVITY)  # of one kilogram
SOFT = np.float32(0.2)  # m/s: what comes closer more slowly does not bounce
ROBOT_BOUNCE = np.float32(0.2)  # restitution of robots on one another
RUBBED = np.float32(0.3)  # friction of the ball on robots
LEAST_KICK = np.float32(0.1)  # of the command: less is none


@inlined
def within(value, limit):
    """Clipped to either side."""
    return min(max(value, -limit), limit)


@inlined
def driven(s, p, c, k, shape, h, lane):
    """Robot k under its command, for h seconds: its velocities, then where it is."""
    at, q, o = ROBOTS + ROBOT_ROWS * k, ROBOT_PARAMETERS + PARAMETER_ROWS * k, COMMAND_ROWS * k
    cos, sin, turning = s[at + COS, lane], s[at + SIN, lane], s[at + TURNING, lane]
    vx, vy = s[at + VX, lane], s[at + VY, lane]
    forward, left = vx * cos + vy * sin, vy * cos - vx * sin
    to_forward, to_left, to_turning = c[o + FORWARD, lane], c[o + LEFT, lane] * shape.omni, c[o + TURN, lane]
    fastest = math.sqrt(to_forward * to_forward + to_left * to_left) + shape.track * abs(to_turning)
    share = min(p[q + SPEED, lane] / max(fastest, TINY), ONE)
    quick, most = ONE / p[q + LAG, lane], p[q + ACCELERATION, lane]
    # Wheels that do not go sideways hold as their grip allows.
    firmly = shape.omni * quick + (ONE - shape.omni) / h
    grip = shape.omni * most + (ONE - shape.omni) * p[q + GRIP, lane]
    forward += h * within((share * to_forward - forward) * quick, most)
    left += h * within((share * to_left - left) * firmly, grip)
    turning += h * within((share * to_turning - turning) * quick, shape.yaw_acceleration)
    vx, vy = forward * cos - left * sin, forward * sin + left * cos
    s[at + VX, lane], s[at + VY, lane], s[at + TURNING, lane] = vx, vy, turning
    s[at + X, lane] += h * vx
    s[at + Y, lane] += h * vy
    half = HALF * h * turning  # of the angle, whose tangent is as large
    length = ONE / (ONE + half * half)
    by_cos, by_sin = (ONE - half * half) * length, (half + half) * length
    s[at + COS, lane], s[at + SIN, lane] = cos * by_cos - sin * by_sin, sin * by_cos + cos * by_sin
    pan = s[at + PAN, lane] + h * within(c[o + PAN_RATE, lane], shape.pan_speed)
    s[at + PAN, lane] = within(pan, shape.pan_limit)
    s[at + CHARGE, lane] = max(s[at + CHARGE, lane] - h, ZERO)


@inlined
def rolled(s, p, shape, h, lane):
    """The ball on the ground for h seconds: sliding becomes rolling, rolling becomes rest."""
    vx, vy, rx, ry = s[BALL_VX, lane], s[BALL_VY, lane], s[ROLL_X, lane], s[ROLL_Y, lane]
    ux, uy = vx - rx, vy - ry  # of its lowest point
    slip, once = math.sqrt(ux * ux + uy * uy), ONE / (ONE + shape.inertia)
    rubbed = min(h * WEIGHT * p[SLIDING, lane] / (shape.inertia * once) / max(slip, TINY), ONE)
    slower = rubbed * shape.inertia * once
    vx, vy = vx - slower * ux, vy - slower * uy
    rx, ry = rx + rubbed * once * ux, ry + rubbed * once * uy
    speed = math.sqrt(vx * vx + vy * vy)
    left = max(ONE - h * WEIGHT * p[ROLLING, lane] / max(speed, TINY), ZERO)
    s[BALL_VX, lane], s[BALL_VY, lane], s[ROLL_X, lane], s[ROLL_Y, lane] = vx * left, vy * left, rx * left, ry * left
    s[BALL_X, lane] += h * vx * left
    s[BALL_Y, lane] += h * vy * left


@inlined
def kicked(s, p, c, k, shape, lane):
    """Robot k kicks the ball if told to, if it lies at its front, and if the kicker is charged."""
    at, q = ROBOTS + ROBOT_ROWS * k, ROBOT_PARAMETERS + PARAMETER_ROWS * k
    cos, sin, told = s[at + COS, lane], s[at + SIN, lane], min(c[COMMAND_ROWS * k + KICK, lane], ONE)
    dx, dy = s[BALL_X, lane] - s[at + X, lane], s[BALL_Y, lane] - s[at + Y, lane]
    ahead, aside = dx * cos + dy * sin, dy * cos - dx * sin
    kicks = select(told > LEAST_KICK, ONE, ZERO)
    kicks = select(s[at + CHARGE, lane] > ZERO, ZERO, kicks)
    kicks = select(ahead > shape.front + p[BALL_RADIUS, lane] + shape.reach, ZERO, kicks)
    kicks = select(ahead > shape.front, kicks, ZERO)
    kicks = select(abs(aside) > shape.mouth, ZERO, kicks)
    along = (s[BALL_VX, lane] - s[at + VX, lane]) * cos + (s[BALL_VY, lane] - s[at + VY, lane]) * sin
    gain = kicks * max(told * p[q + KICK_SPEED, lane] - along, ZERO)
    share = p[BALL_MASS, lane] / (p[BALL_MASS, lane] + p[q + MASS, lane])
    s[BALL_VX, lane] += (ONE - share) * gain * cos
    s[BALL_VY, lane] += (ONE - share) * gain * sin
    s[at + VX, lane] -= share * gain * cos
    s[at + VY, lane] -= share * gain * sin
    s[at + CHARGE, lane] = max(s[at + CHARGE, lane], kicks * shape.recharge)


@inlined
def nearest(s, p, at, shape, lane):
    """Ball and robot: how far they overlap, the normal toward the ball, and the contact from the robot's middle."""
    cos, sin = s[at + COS, lane], s[at + SIN, lane]
    dx, dy = s[BALL_X, lane] - s[at + X, lane], s[BALL_Y, lane] - s[at + Y, lane]
    ahead, aside = dx * cos + dy * sin, dy * cos - dx * sin
    away = max(math.sqrt(ahead * ahead + aside * aside), TINY)
    beside = within(aside, shape.mouth)
    flat = abs(aside) > shape.mouth  # not
    ex, ey = ahead - shape.front, aside - beside
    corner = max(math.sqrt(ex * ex + ey * ey), TINY)
    gap, nx, ny = select(flat, corner, ex), select(flat, ex / corner, ONE), select(flat, ey / corner, ZERO)
    round_side = shape.radius * ahead > shape.front * away  # not: in front of the chord
    gap = select(round_side, gap, away - shape.radius)
    nx, ny = select(round_side, nx, ahead / away), select(round_side, ny, aside / away)
    px, py = (
        select(round_side, shape.front, shape.radius * ahead / away),
        select(round_side, beside, shape.radius * aside / away),
    )
    return (
        p[BALL_RADIUS, lane] - gap,
        nx * cos - ny * sin,
        nx * sin + ny * cos,
        px * cos - py * sin,
        px * sin + py * cos,
    )


@inlined
def touched(s, p, k, shape, lane):
    """The ball meets robot k."""
    at, q = ROBOTS + ROBOT_ROWS * k, ROBOT_PARAMETERS + PARAMETER_ROWS * k
    depth, nx, ny, px, py = nearest(s, p, at, shape, lane)
    turning, share = s[at + TURNING, lane], p[BALL_MASS, lane] / (p[BALL_MASS, lane] + p[q + MASS, lane])
    ux = s[BALL_VX, lane] - s[at + VX, lane] + turning * py
    uy = s[BALL_VY, lane] - s[at + VY, lane] - turning * px
    nearing, sliding = -(ux * nx + uy * ny), uy * nx - ux * ny
    contact = select(depth > ZERO, ONE, ZERO)
    push = contact * max(nearing, ZERO) * (ONE + select(nearing > SOFT, p[q + BOUNCE, lane], ZERO))
    rub = within(sliding * shape.inertia / (ONE + shape.inertia), RUBBED * push)  # the rest becomes spin
    gx, gy = push * nx + rub * ny, push * ny - rub * nx
    # It rolls up or down the robot's side, which slows that.
    rolling = within(s[ROLL_X, lane] * nx + s[ROLL_Y, lane] * ny, RUBBED * push / shape.inertia)
    s[ROLL_X, lane] -= rolling * nx
    s[ROLL_Y, lane] -= rolling * ny
    s[BALL_VX, lane] += (ONE - share) * gx
    s[BALL_VY, lane] += (ONE - share) * gy
    s[at + VX, lane] -= share * gx
    s[at + VY, lane] -= share * gy
    apart = max(depth, ZERO)
    s[BALL_X, lane] += (ONE - share) * apart * nx
    s[BALL_Y, lane] += (ONE - share) * apart * ny
    s[at + X, lane] -= share * apart * nx
    s[at + Y, lane] -= share * apart * ny
    s[at + TOUCHED, lane] = max(s[at + TOUCHED, lane], contact)


@inlined
def held_up(s, p, k, shape, lane):
    """Robot k makes room for a ball that a wall has pushed back into it."""
    at = ROBOTS + ROBOT_ROWS * k
    depth, nx, ny, _, _ = nearest(s, p, at, shape, lane)
    contact, apart = select(depth > ZERO, ONE, ZERO), max(depth, ZERO)
    ux, uy = s[at + VX, lane] - s[BALL_VX, lane], s[at + VY, lane] - s[BALL_VY, lane]
    faster = contact * max(ux * nx + uy * ny, ZERO)
    s[at + VX, lane] -= faster * nx
    s[at + VY, lane] -= faster * ny
    s[at + X, lane] -= apart * nx
    s[at + Y, lane] -= apart * ny


@inlined
def collided(s, p, k, other, shape, lane):
    """Two robots meet, as discs."""
    at, to = ROBOTS + ROBOT_ROWS * k, ROBOTS + ROBOT_ROWS * other
    mass = p[ROBOT_PARAMETERS + PARAMETER_ROWS * k + MASS, lane]
    share = mass / (mass + p[ROBOT_PARAMETERS + PARAMETER_ROWS * other + MASS, lane])
    dx, dy = s[to + X, lane] - s[at + X, lane], s[to + Y, lane] - s[at + Y, lane]
    away = max(math.sqrt(dx * dx + dy * dy), TINY)
    nx, ny, depth = dx / away, dy / away, shape.radius + shape.radius - away
    nearing = (s[at + VX, lane] - s[to + VX, lane]) * nx + (s[at + VY, lane] - s[to + VY, lane]) * ny
    push = select(depth > ZERO, max(nearing, ZERO), ZERO) * (ONE + select(nearing > SOFT, ROBOT_BOUNCE, ZERO))
    apart = max(depth, ZERO)
    s[at + VX, lane] -= (ONE - share) * push * nx
    s[at + VY, lane] -= (ONE - share) * push * ny
    s[to + VX, lane] += share * push * nx
    s[to + VY, lane] += share * push * ny
    s[at + X, lane] -= (ONE - share) * apart * nx
    s[at + Y, lane] -= (ONE - share) * apart * ny
    s[to + X, lane] += share * apart * nx
    s[to + Y, lane] += share * apart * ny


@inlined
def fenced(s, at, limit, velocity, lane):
    """A robot's coordinate in row `at` stays within its limit; one that would leave stops."""
    place, speed = s[at, lane], s[velocity, lane]
    speed = select(place > limit, min(speed, ZERO), speed)
    s[velocity, lane] = select(place < -limit, max(speed, ZERO), speed)
    s[at, lane] = within(place, limit)


@inlined
def bounced(place, speed, limit, bounce):
    """A ball's coordinate and velocity behind a wall at either side."""
    speed = select(place > limit, min(speed, -bounce * speed), speed)
    speed = select(place < -limit, max(speed, -bounce * speed), speed)
    return within(place, limit), speed


@inlined
def enclosed(s, p, shape, lane):
    """The ball stays within the boards, bounces off the posts, and counts when it is in a goal as a whole."""
    radius, bounce = p[BALL_RADIUS, lane], p[WALL_BOUNCE, lane]
    x, y, vx, vy = s[BALL_X, lane], s[BALL_Y, lane], s[BALL_VX, lane], s[BALL_VY, lane]
    # A post is a corner that only a ball within the mouth meets from the side.
    dx = select(x < ZERO, x + shape.half_length, x - shape.half_length)
    dy = select(y < ZERO, y + shape.half_goal, y - shape.half_goal)
    away = max(math.sqrt(dx * dx + dy * dy), TINY)
    depth = select(abs(x) > shape.half_length, ZERO, select(abs(y) > shape.half_goal, ZERO, max(radius - away, ZERO)))
    nx, ny = dx / away, dy / away
    nearing = select(depth > ZERO, max(-(vx * nx + vy * ny), ZERO), ZERO) * (ONE + bounce)
    x, y, vx, vy = x + depth * nx, y + depth * ny, vx + nearing * nx, vy + nearing * ny
    inside = abs(x) > shape.half_length  # of a goal, unless it is beside the mouth, where the board is
    deep = select(abs(y) > shape.half_goal, shape.half_length, shape.half_length + shape.depth) - radius
    wide = select(abs(y) > shape.half_goal, shape.half_width, select(inside, shape.half_goal, shape.half_width))
    x, vx = bounced(x, vx, deep, bounce)
    y, vy = bounced(y, vy, wide - radius, bounce)
    s[BALL_X, lane], s[BALL_Y, lane], s[BALL_VX, lane], s[BALL_VY, lane] = x, y, vx, vy
    over = shape.half_length + radius
    scored = select(x > over, ONE, select(x < -over, -ONE, ZERO))
    s[SCORED, lane] = select(abs(s[SCORED, lane]) > ZERO, s[SCORED, lane], scored)


@inlined
def advance(s, p, c, robots, shape, h, lane):
    """One substep of h seconds, in place: state s, parameters p, commands c."""
    for k in range(robots):
        driven(s, p, c, k, shape, h, lane)
    rolled(s, p, shape, h, lane)
    for k in range(robots):
        kicked(s, p, c, k, shape, lane)
    for k in range(robots):
        for other in range(k + 1, robots):
            collided(s, p, k, other, shape, lane)
    for k in range(robots):
        touched(s, p, k, shape, lane)
    enclosed(s, p, shape, lane)
    for k in range(robots):
        held_up(s, p, k, shape, lane)
        at = ROBOTS + ROBOT_ROWS * k
        fenced(s, at + X, shape.half_length - shape.radius, at + VX, lane)
        fenced(s, at + Y, shape.half_width - shape.radius, at + VY, lane)


@inlined
def untouched(s, robots, lane):
    """Forget who touched the ball in the last control step."""
    for k in range(robots):
        s[ROBOTS + ROBOT_ROWS * k + TOUCHED, lane] = ZERO
