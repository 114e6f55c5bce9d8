"""PX4's flight logs (ULog): motors' commands, body rate, attitude and velocity, in one time.

Written from PX4's documentation of the format, its messages and parameters (docs.px4.io, "ULog File Format",
"actuator_motors", "THR_MDL_FAC", "CA_ROTOR0_PX"). PX4's body axes are forward, right, down and its world north, east,
down; ours forward, left, up, in a world that is north, west, up. Its rotors go by its parameters, ours front-right,
back-right, back-left, front-left.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.mavlink.frames import FLIP
from policies.identification import ulog_formats

Array = NDArray[np.float64]

LARGEST = 1 << 31  # bytes of a log
MOST_ADDED = 4096  # topics that are said to be logged; PX4 has some hundreds
SLOWEST = 45.0  # Hz, of the motors' commands
GAP = 2.5  # usual intervals of a topic: what lies in a longer gap is not guessed
QUARTERS = ((1, -1), (-1, -1), (-1, 1), (1, 1))  # signs of x and y of our rotors
USUAL = ((1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0))  # PX4's rotors of a quadrotor x: forward, right
# Topic -> fields that are read, and what they are here. All but the first are interpolated at the first one's times.
MOTORS = ("actuator_motors", tuple(f"control[{k}]" for k in range(4)))
STATES = {
    "angular_velocity": ("vehicle_angular_velocity", tuple(f"xyz[{k}]" for k in range(3))),
    "quaternion": ("vehicle_attitude", tuple(f"q[{k}]" for k in range(4))),
    "linear_velocity": ("vehicle_local_position", ("vx", "vy", "vz")),
}
LANDED = ("vehicle_land_detected", ("landed",))
HIGH_RATE = "log it at a higher rate: SDLOG_PROFILE with its bit 3 (high rate) set"


def read(path: str) -> dict[str, Array]:
    """Time (steps,) in s and the signals (steps, k) of `policies.identify`, where the vehicle flew.

    Raises ValueError for a file that is none, a vehicle without four rotors in the corners of an x, and what the log
    lacks; ModuleNotFoundError without pyulog (extra [ulog]).
    """
    log = _opened(path)
    parameters: Mapping[str, Any] = log.initial_parameters
    order = _order(parameters, path)
    time, control = _topic(log, *MOTORS, path)
    rate = 1.0 / float(np.median(np.diff(time)))
    if rate < SLOWEST:
        raise ValueError(f"{path}: {MOTORS[0]} has {rate:.0f} rows a second, and 50 are needed: {HIGH_RATE}")
    kept = np.isfinite(control).all(axis=1)  # a motor that is off is commanded NaN
    found: dict[str, Array] = {}
    for name, (topic, fields) in STATES.items():
        when, values = _topic(log, topic, fields, path)
        if name == "quaternion":
            values = _without_jumps(values)
        found[name] = np.stack([np.interp(time, when, column) for column in values.T], axis=1)
        kept &= _covered(time, when)
    if LANDED[0] in {topic.name for topic in log.data_list}:
        when, landed = _topic(log, *LANDED, path, least=1)
        kept &= landed[np.maximum(np.searchsorted(when, time, "right") - 1, 0), 0] < 0.5
    if not kept.any():
        raise ValueError(f"{path}: no row in which the vehicle is armed, in the air, and all topics are logged")
    quaternion = found["quaternion"] / np.linalg.norm(found["quaternion"], axis=1, keepdims=True)
    return {
        "time": time[kept],
        "motor_command": _command(control[kept][:, order], parameters, path),
        "angular_velocity": found["angular_velocity"][kept] * FLIP,
        "linear_velocity": found["linear_velocity"][kept] * FLIP,
        "quaternion": quaternion[kept] * np.array([1.0, *FLIP]),
    }


def _opened(path: str) -> Any:
    from pyulog import ULog

    if (size := os.path.getsize(path)) > LARGEST:
        raise ValueError(f"{path}: a log of {size >> 20} MB is too large; the most are {LARGEST >> 20}")
    topics = [MOTORS[0], *(topic for topic, _ in STATES.values()), LANDED[0]]

    class Bounded(ULog):  # type: ignore[misc]
        """Of a bounded number of topics: each one that is said again is an object of all its fields."""

        added = 0

        def _MessageAddLogged(self, *told: Any) -> Any:  # noqa: N802  the reader calls it so
            self.added += 1
            if self.added > MOST_ADDED:
                raise RuntimeError(f"it adds more than {MOST_ADDED} topics")
            return ULog._MessageAddLogged(*told)

    with open(path, "rb") as file:
        try:
            ulog_formats.check(file, topics)
            file.seek(0)
            with contextlib.redirect_stdout(io.StringIO()):  # what it prints of damage is the file's words
                return Bounded(file, topics, True)
        except Exception as error:  # a stranger's bytes: the reader raises whatever it stumbles over
            raise ValueError(f"{path} is no ULog, or a damaged one: {str(error)[:120]}") from None


def _topic(log: Any, topic: str, fields: tuple[str, ...], path: str, least: int = 3) -> tuple[Array, Array]:
    """Times (n,) in s, increasing, and the fields (n, k); of a time that is there twice, the first."""
    held = [each for each in log.data_list if each.name == topic and each.multi_id == 0]
    if not held:
        raise ValueError(f"{path}: no topic {topic}; {HIGH_RATE}")
    data = held[0].data
    if missing := [name for name in ("timestamp", *fields) if name not in data]:
        raise ValueError(f"{path}: {topic} has no {', '.join(missing)}")
    time, first = np.unique(np.asarray(data["timestamp"], np.float64) * 1e-6, return_index=True)
    if len(time) < least:
        raise ValueError(f"{path}: {topic} has {len(time)} rows")
    return time, np.stack([np.asarray(data[name], np.float64)[first] for name in fields], axis=1)


def _covered(time: Array, when: Array) -> NDArray[np.bool_]:
    """Whether a row of the log lies closely before and closely after each time."""
    usual = float(np.median(np.diff(when)))
    after = np.searchsorted(when, time)
    inside = (after > 0) & (after < len(when))
    at = np.clip(after, 1, len(when) - 1)
    near: NDArray[np.bool_] = inside & (when[at] - when[at - 1] <= GAP * usual)
    return near


def _without_jumps(quaternions: Array) -> Array:
    """The same attitudes, of which neighbours have the same sign."""
    turns = np.sum(quaternions[1:] * quaternions[:-1], axis=1) < 0.0
    alike: Array = quaternions * np.concatenate([[1.0], np.where(np.cumsum(turns) % 2, -1.0, 1.0)])[:, None]
    return alike


def _order(parameters: Mapping[str, Any], path: str) -> list[int]:
    """Which of the log's motors is our first, second, third and fourth."""
    if (count := int(parameters.get("CA_ROTOR_COUNT", 4))) != 4:
        raise ValueError(f"{path}: a vehicle of {count} rotors; here they have four")
    usual = [(f"CA_ROTOR{k}_P{axis}", USUAL[k][i]) for k in range(4) for i, axis in enumerate("XY")]
    places = np.array([float(parameters.get(name, place)) for name, place in usual]).reshape(4, 2)
    corners = [tuple(int(sign) for sign in np.sign(place) * (1, -1)) for place in places]
    if sorted(corners) != sorted(QUARTERS):
        raise ValueError(f"{path}: the rotors (CA_ROTOR0_PX ...) are not one in each corner, front, back, left, right")
    return [corners.index(corner) for corner in QUARTERS]


def _command(control: Array, parameters: Mapping[str, Any], path: str) -> Array:
    """What motors are told, 0..1, of the thrust that is asked for: PX4's thrust model undone.

    With the parameter THR_MDL_FAC = f a motor's relative thrust is f u^2 + (1 - f) u.
    """
    factor = float(parameters.get("THR_MDL_FAC", 0.0))
    if not 0.0 <= factor <= 1.0:
        raise ValueError(f"{path}: THR_MDL_FAC lies between 0 and 1, got {factor}")
    control = np.clip(control, 0.0, 1.0)
    if factor < 1e-6:
        return control
    linear = 1.0 - factor
    told: Array = (np.sqrt(linear * linear + 4.0 * factor * control) - linear) / (2.0 * factor)
    return told
