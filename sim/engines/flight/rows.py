"""What lies where in the arrays of `dynamics.py`, and the derived parameters that its equations read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.engines.vector.blocks import kernel

# Rows of the state.
POSITION, QUATERNION, VELOCITY, BODY_RATE, ROTOR = 0, 3, 7, 10, 13
STATE_ROWS = 17
COMMAND_ROWS = 4
# Rows of what the policy may sense: position, rotation matrix (row-major), velocity, body rate.
SIGNAL_ROWS = 18

# Rows of the derived parameters.
LIFT = 0  # 4: thrust_scale / mass
ROLL, PITCH, YAW = 4, 8, 12  # 4 each: angular acceleration per newton of rotor thrust
CURVE = 16  # 3: c0, c1, c2
GYRO = 19  # 3: (Jy - Jz) / Jx and cyclic
DECAY_UP, DECAY_DOWN = 22, 23  # exp(-h / (2 tau)) over half a substep
DRAG = 24  # 3: drag / mass
WIND = 27  # 3
PUSH = 30  # 3: external force / mass + gravity
TWIST = 33  # 3: external torque / inertia
GROUND, LOWEST = 36, 37  # gain (radius / 4)^2; the height below which the effect grows no more
PARAMETER_ROWS = 38

# Columns of the physical parameters that they are derived from; their meaning: `Quadrotor.parameters()`.
MASS, INERTIA, ARM, SPIN, THRUST, HEALTH, RATIO, RISE = 0, 1, 4, 12, 16, 19, 23, 24
FALL, LAG, RESISTANCE, AIR, FORCE, TORQUE, EFFECT, RADIUS = 25, 26, 27, 30, 33, 36, 39, 40
COLUMNS = {
    "mass": slice(MASS, INERTIA),
    "inertia": slice(INERTIA, ARM),
    "rotor_position": slice(ARM, SPIN),
    "rotor_direction": slice(SPIN, THRUST),
    "thrust_curve": slice(THRUST, HEALTH),
    "thrust_scale": slice(HEALTH, RATIO),
    "torque_ratio": slice(RATIO, RISE),
    "rise_time": slice(RISE, FALL),
    "fall_time": slice(FALL, LAG),
    "rotor_lag": slice(LAG, RESISTANCE),
    "drag": slice(RESISTANCE, AIR),
    "wind": slice(AIR, FORCE),
    "force": slice(FORCE, TORQUE),
    "torque": slice(TORQUE, EFFECT),
    "ground_effect": slice(EFFECT, RADIUS),
    "propeller_radius": slice(RADIUS, RADIUS + 1),
}

# What `sense` gives, and the state by name.
SIGNALS = {
    "position": slice(0, 3),
    "rotation": slice(3, 12),
    "linear_velocity": slice(12, 15),
    "angular_velocity": slice(15, 18),
}
STATE = {
    "position": slice(0, 3),
    "quaternion": slice(3, 7),
    "linear_velocity": slice(7, 10),
    "angular_velocity": slice(10, 13),
    "rotor_speed": slice(13, 17),
}
REST = np.zeros(STATE_ROWS, np.float32)
REST[QUATERNION] = 1.0
GRAVITY = 9.81  # m/s^2


@kernel
def derive_rows(values, substep, out):
    """The rows out (n, PARAMETER_ROWS) of physical parameters (n, columns)."""
    for row in range(len(values)):
        v, o = values[row], out[row]
        for rotor in range(4):
            health = v[HEALTH + rotor]
            o[LIFT + rotor] = health / v[MASS]
            o[ROLL + rotor] = v[ARM + 2 * rotor + 1] * health / v[INERTIA]
            o[PITCH + rotor] = -v[ARM + 2 * rotor] * health / v[INERTIA + 1]
            o[YAW + rotor] = v[SPIN + rotor] * v[RATIO] * health / v[INERTIA + 2]
        for k in range(3):
            o[CURVE + k] = v[THRUST + k]
            o[GYRO + k] = (v[INERTIA + (k + 1) % 3] - v[INERTIA + (k + 2) % 3]) / v[INERTIA + k]
            o[DRAG + k] = v[RESISTANCE + k] / v[MASS]
            o[WIND + k] = v[AIR + k]
            o[PUSH + k] = v[FORCE + k] / v[MASS]
            o[TWIST + k] = v[TORQUE + k] / v[INERTIA + k]
        o[PUSH + 2] -= GRAVITY
        o[DECAY_UP] = math.exp(-0.5 * substep / (v[RISE] * v[LAG]))
        o[DECAY_DOWN] = math.exp(-0.5 * substep / (v[FALL] * v[LAG]))
        o[LOWEST] = v[RADIUS] / 4.0
        o[GROUND] = v[EFFECT] * o[LOWEST] * o[LOWEST]


def agility(parameters: Mapping[str, Any]) -> Any:
    """The largest angular acceleration in roll (n,), in rad/s^2, of physical parameters name -> (n, k)."""
    thrust = parameters["thrust_curve"].sum(axis=1)  # of one rotor, N
    return 0.5 * thrust * np.abs(parameters["rotor_position"][:, 1::2]).sum(axis=1) / parameters["inertia"][:, 0]


def derive_values(values: Any, substep: float) -> Any:
    """The rows (n, PARAMETER_ROWS) in float64 that the kernels read, from physical parameters in their columns."""
    out = np.empty((len(values), PARAMETER_ROWS))
    derive_rows(values.astype(np.float64), substep, out)
    return out


def derive(parameters: Mapping[str, Any], substep: float) -> Any:
    """The same from physical parameters name -> (n, k)."""
    return derive_values(np.concatenate([parameters[name] for name in COLUMNS], axis=1), substep)
