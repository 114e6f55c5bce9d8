"""Betaflight's blackbox, decoded: motors' outputs, body rates, attitude and acceleration, in one time.

    blackbox_decode --unit-rotation deg/s --unit-acceleration g LOG00001.BFL

Betaflight's body axes are ours (forward, left, up) and its quaternion goes to a world that is north, west, up; its
motors are back right, front right, back left, front left. A velocity it does not log: here it is the acceleration's
integral, which is good for the short windows of an identification, and wanders over a flight.

Sources: betaflight @6dbc4218 (release 2026.6.1) src/main blackbox/blackbox.c, flight/mixer_init.c, drivers/dshot.c;
blackbox-tools' README.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import GRAVITY
from sim.rotations import normalised, rotation_matrices

Array = NDArray[np.float64]

FIRST = "loopIteration"  # by this column such a table is known
ORDER = [1, 0, 2, 3]  # which of its motors is our front right, back right, back left, front left
QUATERNION = 32767.0  # of a component 1; the real part, never negative, is not logged
RATES = {"deg/s": math.pi / 180.0, "rad/s": 1.0}
ACCELERATIONS = {"g": GRAVITY, "m/s2": 1.0, "m/s/s": 1.0}
TIMES = {"us": 1e-6, "s": 1.0, "": 1e-6}
PROTOCOLS = {"dshot": (48.0, 2047.0), "pwm": (1000.0, 2000.0)}  # motors' outputs, least and most; pulses are in us
SLACK = 0.95  # of the shortest pulse: what is below it is none
DECODE = "decode it by: blackbox_decode --unit-rotation deg/s --unit-acceleration g"


def commands(motors: Array, protocol: str | None, path: str) -> Array:
    """Of motors' outputs (steps, 4): 0..1. `protocol`: of PROTOCOLS; without one, only DSHOT's lowest tell it.

    ValueError where they could be either (a flight by DSHOT may stay within a pulse's range), or are not what is said.
    """
    low, high = PROTOCOLS["pwm"]
    pulses = motors.min() >= SLACK * low
    seen = f"{path}: motors' outputs are {motors.min():g} to {motors.max():g}"
    if protocol is None and pulses and motors.max() <= high:
        raise ValueError(f"{seen}, which DSHOT and PWM both have; say motors=dshot or motors=pwm")
    if protocol == "pwm" and not (pulses and motors.max() <= high):
        raise ValueError(f"{seen}, and PWM's {low:g} to {high:g} us: say motors=dshot")
    low, high = PROTOCOLS[protocol or "dshot"]
    return np.clip((motors - low) / (high - low), 0.0, 1.0)


def read(
    names: Sequence[str], rows: Sequence[Sequence[str]], path: str, protocol: str | None = None
) -> dict[str, Array]:
    """Time (steps,) in s and the signals (steps, k) of `policies.identify`; ValueError for what the table lacks.

    `protocol` of its motors as in `commands`.
    """
    places, units = {}, {}
    for place, title in enumerate(names):
        name, _, unit = title.partition(" (")
        places[name.strip()], units[name.strip()] = place, unit.rstrip(")").strip()

    def columns(name: str, count: int) -> Array:
        wanted = [f"{name}[{k}]" for k in range(count)] if count else [name]
        if missing := [each for each in wanted if each not in places]:
            raise ValueError(f"{path}: Betaflight logged no {', '.join(missing)}; {DECODE}, and log all of its fields")
        try:
            return np.array([[float(row[places[each]]) for each in wanted] for row in rows])
        except ValueError as error:
            raise ValueError(f"{path}: {name}: {error}") from None

    def scale(name: str, known: dict[str, float]) -> float:
        unit = units.get(name, "")
        if unit not in known:
            raise ValueError(f"{path}: {name} is in {unit or 'raw numbers'}, not in {' or '.join(known)}; {DECODE}")
        return known[unit]

    if "motor[4]" in places:
        raise ValueError(f"{path}: a vehicle of more than four rotors; here they have four")
    time = columns("time", 0)[:, 0] * scale("time", TIMES)
    rates = columns("gyroADC", 3) * scale("gyroADC[0]", RATES)
    force = columns("accSmooth", 3) * scale("accSmooth[0]", ACCELERATIONS)
    vector = columns("imuQuaternion", 3) / QUATERNION
    motors = columns("motor", 4)[:, ORDER]
    square = np.sum(vector * vector, axis=1, keepdims=True)
    if len(time) < 3 or not np.isfinite(np.hstack([time[:, None], rates, force, vector, motors])).all():
        raise ValueError(f"{path}: three rows or more of finite numbers are needed")
    if (square > 1.05).any():
        raise ValueError(f"{path}: imuQuaternion is none in row {int(np.argmax(square > 1.05)) + 1}")
    if not (np.diff(time) > 0.0).all():
        raise ValueError(f"{path}: time must increase from row to row")
    quaternion = normalised(np.hstack([np.sqrt(np.maximum(1.0 - square, 0.0)), vector]))
    command = commands(motors, protocol, path)
    fallen = np.einsum("nij,nj->ni", rotation_matrices(quaternion), force) - [0.0, 0.0, GRAVITY]
    steps = 0.5 * (fallen[1:] + fallen[:-1]) * np.diff(time)[:, None]
    velocity = np.vstack([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    return {
        "time": time,
        "motor_command": command,
        "angular_velocity": rates,
        "linear_velocity": velocity,
        "quaternion": quaternion,
    }
