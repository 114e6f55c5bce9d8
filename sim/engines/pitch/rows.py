"""What lies where in the arrays of `dynamics.py`: worlds beside one another in lanes, one row for each number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.robots.wheeled import Wheeled
from sim.scenes.pitch import Ball, Field

# Rows of a world's state: the ball; in whose goal it is; then each robot.
BALL_X, BALL_Y, BALL_VX, BALL_VY, ROLL_X, ROLL_Y, SCORED = range(7)
ROBOTS = 7
X, Y, COS, SIN, VX, VY, TURNING, PAN, CHARGE, TOUCHED = range(10)
ROBOT_ROWS = 10
# Rows of what robots are told.
FORWARD, LEFT, TURN, PAN_RATE, KICK = range(5)
COMMAND_ROWS = 5
# Rows of a world's parameters: the ball's, then each robot's.
BALL_RADIUS, BALL_MASS, SLIDING, ROLLING, WALL_BOUNCE = range(5)
ROBOT_PARAMETERS = 5
MASS, SPEED, ACCELERATION, GRIP, LAG, KICK_SPEED, BOUNCE = range(7)
PARAMETER_ROWS = 7

# By name, the states that are set and read: the ball's, and those of each robot.
BALL = {"ball_position": slice(0, 2), "ball_velocity": slice(2, 4), "ball_rolling": slice(4, 6), "scored": slice(6, 7)}
ROBOT = {
    "position": slice(0, 2),
    "heading": slice(2, 4),  # cosine and sine
    "velocity": slice(4, 6),
    "turning": slice(6, 7),
    "pan": slice(7, 8),
    "charge": slice(8, 9),
    "touched": slice(9, 10),
}


class Shape(NamedTuple):
    """What is the same in all worlds: SI units; `omni` is 0 or 1."""

    half_length: np.float32
    half_width: np.float32
    half_goal: np.float32
    depth: np.float32
    inertia: np.float32
    omni: np.float32
    radius: np.float32
    front: np.float32
    mouth: np.float32
    track: np.float32
    yaw_acceleration: np.float32
    recharge: np.float32
    reach: np.float32
    pan_speed: np.float32
    pan_limit: np.float32


def shape_of(robot: Wheeled, field: Field, ball: Ball) -> Shape:
    """Of these."""
    numbers = {
        "half_length": 0.5 * field.length,
        "half_width": 0.5 * field.width,
        "half_goal": 0.5 * field.goal,
        "depth": field.depth,
        "inertia": ball.inertia,
        "omni": float(robot.omni),
    }
    numbers |= {name: getattr(robot, name) for name in Shape._fields[6:]}
    return Shape(**{name: np.float32(value) for name, value in numbers.items()})


def state_rows(robots: int) -> int:
    """How many rows the state of so many robots and the ball has."""
    return ROBOTS + ROBOT_ROWS * robots


def parameter_rows(robots: int) -> int:
    """How many rows their parameters have."""
    return ROBOT_PARAMETERS + PARAMETER_ROWS * robots
