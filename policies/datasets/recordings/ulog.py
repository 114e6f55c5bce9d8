"""PX4's flight log (.ulg) as signals of ours: velocity, attitude, body rates, and what the motors were told.

Topics are logged at rates of their own; here they come to common rows, as far apart as the samples of the slowest of
attitude, body rates and motors. The motors' command is the last that was published, the rest is interpolated. A row
in a gap of a topic, or while the motors are off, is left out: another record begins after it.

Axes are those of docs/px4.md: north, west, up, and forward, left, up. `actuator_motors` are taken for shares of the
rotors' largest speed, of a quadrotor x, as with THR_MDL_FAC = 0.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LARGEST = 2 << 30  # bytes of a log
# Topic -> the columns that are read.
TOPICS = {
    "vehicle_local_position": ("vx", "vy", "vz"),
    "vehicle_attitude": ("q[0]", "q[1]", "q[2]", "q[3]"),
    "vehicle_angular_velocity": ("xyz[0]", "xyz[1]", "xyz[2]"),
    "actuator_motors": ("control[0]", "control[1]", "control[2]", "control[3]"),
}
PACE = (
    "vehicle_attitude",
    "vehicle_angular_velocity",
    "actuator_motors",
)  # the slowest of these says how dense rows are
QUICKEST, SLOWEST = 0.002, 0.05  # s between rows
GAP, LEAST_GAP = 4.0, 0.05  # a topic is missing where its samples are so many usual intervals, and s, apart
OURS = (0, 3, 1, 2)  # PX4's rotors (front right, back left, front left, back right) in our order
BROKEN = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, MemoryError, ArithmeticError)


def read(path: str) -> dict[str, Array]:
    """linear_velocity (n, 3), quaternion (n, 4), angular_velocity (n, 3), motor_command (n, 4), time (n,) s.

    ValueError names a topic that the log lacks, or why it is none.
    """
    topics = _topics(path)
    usual = {name: float(np.median(np.diff(time))) for name, (time, _) in topics.items()}
    dt = max(usual[name] for name in PACE)
    if dt > SLOWEST:
        slow = max(PACE, key=lambda name: usual[name])
        raise ValueError(
            f"{path}: {slow} was logged every {1e3 * dt:.0f} ms; identification needs the high-rate profile"
        )
    begin, end = max(time[0] for time, _ in topics.values()), min(time[-1] for time, _ in topics.values())
    rows = np.arange(begin, end, max(dt, QUICKEST))
    keep = np.ones(len(rows), bool)
    for name, (time, _) in topics.items():
        after = np.clip(np.searchsorted(time, rows, side="right"), 1, len(time) - 1)
        keep &= time[after] - time[after - 1] <= max(GAP * usual[name], LEAST_GAP)
    motors = _held(*topics["actuator_motors"], rows)[:, OURS]
    keep &= np.isfinite(motors).all(axis=1) & (np.nan_to_num(motors) > 0.0).any(axis=1)
    if keep.sum() < 3:
        raise ValueError(f"{path}: motors, attitude, body rates and position were never logged at once with motors on")
    velocity = _between(*topics["vehicle_local_position"], rows) * [1.0, -1.0, -1.0]
    rates = _between(*topics["vehicle_angular_velocity"], rows) * [1.0, -1.0, -1.0]
    time, quaternion = topics["vehicle_attitude"]
    turned = _between(time, _without_jumps(quaternion), rows) * [1.0, 1.0, -1.0, -1.0]
    length = np.linalg.norm(turned, axis=1, keepdims=True)
    found = {
        "linear_velocity": velocity,
        "quaternion": turned / np.maximum(length, 1e-9),
        "angular_velocity": rates,
        "motor_command": np.clip(np.nan_to_num(motors), 0.0, 1.0),
    }
    return {name: np.asarray(value[keep], float) for name, value in found.items()} | {"time": rows[keep]}


def _topics(path: str) -> dict[str, tuple[Array, Array]]:
    """Times (n,) s and columns (n, k) of each topic, in order of time."""
    try:
        from pyulog import ULog
        from pyulog.exceptions import ULogException
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("pyulog"):
            raise
        raise ValueError("a log of PX4 needs pyulog: pip install 'sim2metal[ulog]'") from None
    if os.path.getsize(path) > LARGEST:
        raise ValueError(f"{path}: is larger than {LARGEST >> 30} GiB: cut it first")
    try:
        with open(path, "rb") as file:
            log: Any = ULog(file, list(TOPICS), disable_str_exceptions=True)
        held = {data.name: data.data for data in log.data_list if data.multi_id == 0}
    except (ULogException, *BROKEN) as error:
        raise ValueError(f"{path}: is no log of PX4: {' '.join(str(error).split())[:150]}") from None
    found = {}
    for name, columns in TOPICS.items():
        data = held.get(name, {})
        if missing := [each for each in ("timestamp", *columns) if each not in data]:
            raise ValueError(f"{path}: lacks {name} ({', '.join(missing)}); log it: the high-rate profile has it")
        time, values = 1e-6 * np.asarray(data["timestamp"], float), np.stack([data[each] for each in columns], axis=1)
        _, first = np.unique(time, return_index=True)  # sorted, once each
        finite = np.isfinite(values[first]).all(axis=1) | (name == "actuator_motors")  # NaN: a motor that is off
        if finite.sum() < 3:
            raise ValueError(f"{path}: {name} has fewer than three samples")
        found[name] = time[first][finite], np.asarray(values[first][finite], float)
    return found


def _between(time: Array, values: Array, rows: Array) -> Array:
    """Linearly, at other times."""
    return np.stack([np.interp(rows, time, column) for column in values.T], axis=1)


def _held(time: Array, values: Array, rows: Array) -> Array:
    """The last one, at other times."""
    return np.asarray(values[np.clip(np.searchsorted(time, rows, side="right") - 1, 0, len(time) - 1)])


def _without_jumps(quaternion: Array) -> Array:
    """The same rotations (n, 4), none on the other side of the one before."""
    dots = np.einsum("ij,ij->i", quaternion[1:], quaternion[:-1])
    signs = np.cumprod(np.concatenate([[1.0], np.where(dots < 0.0, -1.0, 1.0)]))
    return np.asarray(quaternion * signs[:, None])
