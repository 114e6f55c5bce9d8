"""What each robot of a match knows of it: itself, the ball, the goal to score in and the others, in its own axes."""

from __future__ import annotations

import math

import numpy as np

from sim.engines.pitch.rows import (
    BALL_VX,
    BALL_VY,
    BALL_X,
    BALL_Y,
    CHARGE,
    COS,
    ROBOT_ROWS,
    ROBOTS,
    SIN,
    TURNING,
    VX,
    VY,
    X,
    Y,
)
from sim.engines.vector.blocks import inlined, kernel
from sim.engines.vector.simd import LANES
from sim.spec import Group, Signal

ZERO, ONE = np.float32(0.0), np.float32(1.0)


def view(players: int) -> Group:
    """The signals of a robot in teams of so many, in the order of `view_rows`.

    "own": from the middle of the pitch, x towards the goal to score in. "body": x ahead, y to the left.
    """

    def seen(name: str, count: int) -> Group:
        size = (2 * count,)
        return (Signal(name, size, "m", "body"), Signal(f"{name}_velocity", size, "m/s", "body")) if count else ()

    return (
        Signal("position", (2,), "m", "own"),
        Signal("heading", (2,), "1", "own"),
        Signal("velocity", (2,), "m/s", "body"),
        Signal("turning", (1,), "rad/s", "body"),
        Signal("ready", (1,), "1"),  # 1: it can kick, 0: it has just done so
        Signal("ball_position", (2,), "m", "body"),
        Signal("ball_velocity", (2,), "m/s", "body"),
        Signal("goal", (2,), "m", "body"),  # the middle of the one to score in
        *seen("mates", players - 1),
        *seen("others", players),
    )


@inlined
def put_turned(out, at, x, y, cos, sin):
    """A vector of the world's in the axes of somebody with this heading."""
    out[at] = x * cos + y * sin
    out[at + 1] = y * cos - x * sin


@kernel
def view_rows(state, players, half_length, out, ways):
    """`view` of all robots, out (worlds, robots, k).

    And their ways (worlds, robots, 2): the ball's to the goal that each is to score in, and its own to the ball, in m.
    """
    for world in range(out.shape[0]):
        s, lane = state[world // LANES], world % LANES
        bx, by = s[BALL_X, lane], s[BALL_Y, lane]
        for robot in range(2 * players):
            at, o = ROBOTS + ROBOT_ROWS * robot, out[world, robot]
            side = ONE if robot < players else -ONE
            x, y, cos, sin = s[at + X, lane], s[at + Y, lane], s[at + COS, lane], s[at + SIN, lane]
            o[0], o[1], o[2], o[3] = side * x, side * y, side * cos, side * sin
            put_turned(o, 4, s[at + VX, lane], s[at + VY, lane], cos, sin)
            o[6], o[7] = s[at + TURNING, lane], ZERO if s[at + CHARGE, lane] > ZERO else ONE
            put_turned(o, 8, bx - x, by - y, cos, sin)
            put_turned(o, 10, s[BALL_VX, lane], s[BALL_VY, lane], cos, sin)
            put_turned(o, 12, side * half_length - x, -y, cos, sin)
            mate, other = 14, 14 + 4 * (players - 1)
            for k in range(2 * players):
                to = ROBOTS + ROBOT_ROWS * k
                ours = (k < players) == (robot < players)
                if k != robot:
                    first, count = (mate, players - 1) if ours else (other, players)
                    put_turned(o, first, s[to + X, lane] - x, s[to + Y, lane] - y, cos, sin)
                    put_turned(o, first + 2 * count, s[to + VX, lane], s[to + VY, lane], cos, sin)
                    mate, other = (mate + 2, other) if ours else (mate, other + 2)
            ways[world, robot, 0] = math.hypot(bx - side * half_length, by)
            ways[world, robot, 1] = math.hypot(bx - x, by - y)
