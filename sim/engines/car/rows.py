"""What lies where in the arrays of `dynamics.py`: cars beside one another in lanes, one row for each number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.robots.cars import GRAVITY, VARYING, Car

# Rows of a car's state.
X, Y, COS, SIN, VX, VY, TURNING, STEERING, PUSH, TOUCHED, IMPACT = range(11)
STATE_ROWS = 11
# Rows of what it is told.
STEER, SPEED = range(2)
COMMAND_ROWS = 2
# Rows of its parameters, in the order of `sim.robots.cars.VARYING`; behind them its track's: see `grids.py`.
MASS, INERTIA, FRICTION, FRONT_STIFFNESS, REAR_STIFFNESS, SHAPE, CURVATURE, STEERING_LAG, MOTOR_LAG, POWER, TRIM = (
    range(len(VARYING))
)
PARAMETER_ROWS = len(VARYING)

# By name, the states that are set and read.
STATES = {
    "position": slice(0, 2),  # m, of the centre of mass
    "heading": slice(2, 4),  # cosine and sine
    "velocity": slice(4, 6),  # m/s, ahead and to the left
    "turning": slice(6, 7),  # rad/s
    "steering_angle": slice(7, 8),  # rad
    "push": slice(8, 9),  # m/s^2: what the motor gives
    "touched": slice(9, 10),  # 1: a wall, in the last step
    "impact": slice(10, 11),  # m/s at which it met walls in the last step, the fastest
}


class Shape(NamedTuple):
    """What is the same in all worlds, in SI units."""

    front: np.float32
    rear: np.float32
    steering_limit: np.float32
    steering_rate: np.float32
    switch_speed: np.float32
    speed_gain: np.float32
    wall_friction: np.float32
    per_base: np.float32  # 1/m: over the wheelbase
    lever: np.float32  # s^2/m: what of its weight braking moves to the front axle; 0: loads do not move
    radius: np.float32  # of the circles that touch walls
    reach: np.float32  # from the middle one to the others
    share: np.float32  # of a car's weight that its front axle carries at rest
    spin: np.float32  # 1/m: the largest yaw moment of its tyres over its weight and the square of its gyration radius


def shape_of(car: Car, load_transfer: bool) -> Shape:
    """Of this one."""
    numbers = {name: getattr(car, name) for name in Shape._fields[:7]}
    numbers |= car.derived
    numbers["lever"] = load_transfer * car.height / (car.wheelbase * GRAVITY)
    return Shape(**{name: np.float32(value) for name, value in numbers.items()})


WEIGHT = np.float32(GRAVITY)  # of one kilogram
