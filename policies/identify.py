"""python -m policies.identify log=FILE robot=GUESS [key=value ...]: the airframe that a recorded flight shows.

`log` is the .mcap that `deploy.run log=...` writes, a .npz with the names of the simulated driver's flight (arrays
(steps, k), or (steps, flights, k)), a .csv with one column per element: ours ("angular_velocity.0") or the
Crazyflie's ("gyro.x", "motor.m1"), or Betaflight's blackbox as blackbox_decode writes it; or a .ulg of PX4 (logged at a
high rate). `out` is a Python file that training takes: out=my_drone.py, then task.robot=my_drone:ROBOT in that folder.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploy import cli
from deploy.recording import flight_log
from deploy.system.files import write_atomic
from deploy.trust import npz
from policies.identification import blackbox, ulog
from sim.robots import robot
from sim.robots.quadrotors import MOTOR_COMMAND, SENSED
from sim.rotations import normalised, rotation_matrices
from sim.sysid import Identified, identify
from sim.sysid.fit import Record

Array = NDArray[np.float64]

SIZES = {"linear_velocity": 3, "angular_velocity": 3, "motor_command": 4}
CURVES = ("scale", "free")
GAP = 1.5  # rows further apart than this many usual steps begin another record
HIGHEST_PWM = 65535.0
LARGEST = 1 << 31  # bytes of an .npz, packed or not
WHITE = 0.2  # residuals that correlate more than this from row to row are not only noise
# Our names: the Crazyflie's columns, and the factor to SI units. Its quaternion rotates body to world, as ours.
CRAZYFLIE = {
    "linear_velocity": (tuple(f"stateEstimate.v{k}" for k in "xyz"), 1.0),
    "quaternion": (tuple(f"stateEstimate.q{k}" for k in "wxyz"), 1.0),
    "angular_velocity": (tuple(f"gyro.{k}" for k in "xyz"), math.pi / 180.0),
    "motor_command": (tuple(f"motor.m{k}" for k in range(1, 5)), 1.0 / HIGHEST_PWM),
}
TIMES = {"time": 1.0, "timestamp": 1e-3}  # s per unit


@dataclass(kw_only=True)
class Config:
    """Settings of the command."""

    log: str = field(metadata={"help": "the recorded flight: .mcap, .npz, .csv or .ulg"})
    robot: str = field(metadata={"help": "the guess: an airframe of similar size, with the right rotor positions"})
    out: str | None = field(default=None, metadata={"help": "write the airframe to this file (.py)"})
    mass: float | None = field(default=None, metadata={"help": "kg, from a scale (default: the guess's)"})
    curve: str = field(default="scale", metadata={"help": "thrust curve: scale the guess's | free"})
    one_lag: bool = field(default=False, metadata={"help": "one time constant for rise and fall"})
    free_torque_ratio: bool = field(
        default=False, metadata={"help": "tell torque ratio and yaw inertia apart by gyroscopic moments"}
    )
    delay: float | None = field(default=None, metadata={"help": "s from command to rotor (default: fitted)"})
    rate_hz: float | None = field(default=None, metadata={"help": "of the rows, where the log has no time"})
    motors: str | None = field(
        default=None,
        metadata={"help": "of Betaflight's blackbox: dshot | pwm (default: dshot, where numbers prove it)"},
    )

    def __post_init__(self) -> None:
        if self.curve not in CURVES:
            raise ValueError(f"curve {self.curve!r} is not one of {', '.join(CURVES)}")
        if self.rate_hz is not None and not (math.isfinite(self.rate_hz) and self.rate_hz > 0.0):
            raise ValueError(f"rate_hz must be positive, got {self.rate_hz}")
        if self.motors is not None and self.motors not in blackbox.PROTOCOLS:
            raise ValueError(f"motors {self.motors!r} is not one of {', '.join(blackbox.PROTOCOLS)}")
        if self.out is not None and not (self.out.endswith(".py") and Path(self.out).stem.isidentifier()):
            raise ValueError(f"out={self.out}: needs the name of a Python module, as my_drone.py")


def _read_npz(path: str) -> dict[str, Array]:
    try:
        return {name: np.asarray(value, float) for name, value in npz.read(path, LARGEST).items()}
    except ValueError as error:
        raise ValueError(f"{path} is not a .npz of numbers: {error}") from None


def _read_csv(path: str, motors: str | None = None) -> dict[str, Array]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from None
    if len(rows) < 2:
        raise ValueError(f"{path} has no rows under its header")
    names = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(names):
            raise ValueError(f"{path}: line {number} has {len(row)} values, the header {len(names)}")
    if blackbox.FIRST in names:
        return blackbox.read(names, rows[1:], path, motors)
    if motors is not None:
        raise ValueError(f"motors={motors} is for Betaflight's blackbox; {path} is none")
    try:
        values = np.array(rows[1:], float)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    columns = {name: values[:, k] for k, name in enumerate(names)}
    found = {name: columns[name] for name in TIMES if name in columns}
    for name, size in {**SIZES, "rotation": 9, "quaternion": 4}.items():
        ours = [f"{name}.{k}" for k in range(size)]
        theirs, factor = CRAZYFLIE.get(name, ((), 1.0))
        for wanted, scale in ((ours, 1.0), (theirs, factor)):
            if wanted and all(each in columns for each in wanted):
                found[name] = scale * np.stack([columns[each] for each in wanted], axis=1)
                break
    return found


def _read_mcap(path: str) -> dict[str, Array]:
    flight = flight_log.read(path)
    if not len(flight.steps):
        raise ValueError(f"{path}: holds no control steps")
    starts = [0, *(index for index, _ in flight.gaps), len(flight.steps)]  # what was lost in between is not guessed
    begin, end = max(itertools.pairwise(starts), key=lambda part: part[1] - part[0])
    flight = dataclasses.replace(flight, steps=flight.steps[begin:end], numbers=None)
    values = {s.name: np.asarray(flight.values(f"signals.{s.name}"), float) for s in flight.layout.signals}
    values |= {s.name: np.asarray(flight.values(f"sent.{s.name}"), float) for s in flight.layout.commands}
    return {**values, "time": flight.time}


READERS = {".mcap": _read_mcap, ".npz": _read_npz, ".csv": _read_csv, ".ulg": ulog.read}


def _needed(values: Mapping[str, Array], path: str) -> None:
    """Raises ValueError naming every signal that the log lacks, and the columns that would hold it."""
    missing = [name for name in SIZES if name not in values]
    if "rotation" not in values and "quaternion" not in values:
        missing.append("quaternion")
    if missing:
        listed = "; ".join(f"{name} ({', '.join(CRAZYFLIE[name][0])})" for name in missing)
        raise ValueError(f"{path} lacks {listed}")
    for name, size in SIZES.items():
        if values[name].ndim not in (2, 3) or values[name].shape[-1] != size:
            raise ValueError(f"{path}: {name} must be (steps, {size}) or (steps, flights, {size})")


def _times(values: Mapping[str, Array], steps: int, rate_hz: float | None, path: str) -> Array:
    for name, unit in TIMES.items():
        if name in values:
            if values[name].shape != (steps,):
                raise ValueError(f"{path}: {name} must be ({steps},), got {values[name].shape}")
            return unit * values[name]
    if rate_hz is None:
        raise ValueError(f"{path} has no column time (s) or timestamp (ms); give rate_hz=...")
    return np.arange(steps) / rate_hz


def _rotations(values: Mapping[str, Array], path: str) -> Array:
    """(steps, flights, 3, 3), body to world."""
    if "rotation" in values:
        matrix = values["rotation"]
        return matrix.reshape(len(matrix), -1, 3, 3)
    q = values["quaternion"].reshape(len(values["quaternion"]), -1, 4)
    if np.any(np.abs(np.linalg.norm(q, axis=-1) - 1.0) > 0.05):
        raise ValueError(f"{path}: quaternions are not of unit length")
    return rotation_matrices(normalised(q))


def read_records(path: str, rate_hz: float | None = None, motors: str | None = None) -> list[Record]:
    """The uninterrupted flights of a log. Raises ValueError naming what is missing or malformed.

    `motors`: of `blackbox.PROTOCOLS`, for Betaflight's logs alone.
    """
    kind = Path(path).suffix
    if kind not in READERS:
        raise ValueError(f"{path}: a log is one of {', '.join(READERS)}")
    if motors is not None and kind != ".csv":
        raise ValueError(f"motors={motors} is for Betaflight's blackbox; {path} is none")
    values = READERS[kind](path) if motors is None else _read_csv(path, motors)
    _needed(values, path)
    steps = len(values["motor_command"])
    rotation = _rotations(values, path)
    time = _times(values, steps, rate_hz, path)
    if steps < 3 or any(len(v) != steps for v in (rotation, *(values[name] for name in SIZES))):
        raise ValueError(f"{path}: signals must have the same number of rows, three or more")
    for name, value in {"time": time, **{name: values[name] for name in SIZES}, "attitude": rotation}.items():
        bad = ~np.isfinite(value).reshape(steps, -1).all(axis=1)
        if bad.any():
            where = f"row {np.argmax(bad) + 1} (in {bad.sum()} of {steps} rows)"
            raise ValueError(f"{path}: {name} is not a finite number in {where}; leave such rows out")
    between = np.diff(time)
    dt = float(np.median(between))
    if not (between > 0.0).all():
        raise ValueError(f"{path}: time must increase from row to row; after row {np.argmax(between <= 0.0) + 1} not")
    if np.mean(np.abs(between / dt - 1.0) > GAP - 1.0) > 0.1:
        raise ValueError(f"{path}: rows are unevenly spaced (usually {1e3 * dt:.3g} ms); log all columns at one rate")
    flat = {name: values[name].reshape(steps, -1, size) for name, size in SIZES.items()}
    pieces = np.split(np.arange(steps), np.flatnonzero(between > GAP * dt) + 1)
    return [
        Record(dt, rotation[i, k], flat["linear_velocity"][i, k], flat["angular_velocity"][i, k], command[i, k])
        for command in (flat["motor_command"],)
        for k in range(command.shape[1])
        for i in pieces
    ]


def source_text(found: Identified) -> str:
    """A Python module whose ROBOT is the airframe. Raises ValueError for one whose commands are not rotor speeds."""
    if found.robot.commands != (MOTOR_COMMAND,) or found.robot.sensed != SENSED:
        raise ValueError(f"{found.robot.source}: only the usual signals and commands can be written")
    told = ("commands", "sensed", "envelope", "safe")
    names = [f.name for f in dataclasses.fields(found.robot) if f.name not in told]
    numbers = "\n".join(f"    {name}={getattr(found.robot, name)!r}," for name in names)
    lines = "\n".join(f"# {line}" for line in table(found).splitlines())
    return (
        f'"""The airframe {found.robot.name!r}: {found.robot.source}."""\n\n'
        "from sim.robots.quadrotors import Quadrotor\n\n"
        f"# With 95 % intervals:\n{lines}\n"
        f"ROBOT = Quadrotor(\n{numbers}\n)\n"
    )


def table(found: Identified) -> str:
    """One line per quantity: value, half of the 95 % interval, unit, what it rests on."""
    rows = [f"{e.name:16} {e.value:12.5g} +- {e.margin:8.2g} {e.unit:9} {e.note}".rstrip() for e in found.estimates]
    velocity, rate = (max(found.residual[part]) for part in (slice(0, 3), slice(3, 6)))
    rows.append(f"mean command {found.mean_command:.4f}; {found.seconds:.0f} s of flight in {found.windows} windows")
    rows.append(f"left unexplained within a window: {velocity:.2g} m/s and {rate:.2g} rad/s")
    return "\n".join(rows)


def main(argv: Sequence[str]) -> None:
    """Read, identify, print; write what was asked for."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    guess = robot(config.robot)
    name = Path(config.out).stem if config.out else "identified"
    found = identify(
        read_records(config.log, config.rate_hz, config.motors),
        guess,
        mass=config.mass,
        free_curve=config.curve == "free",
        one_lag=config.one_lag,
        free_torque_ratio=config.free_torque_ratio,
        delay=config.delay,
        name=name,
    )
    kilograms = "given" if config.mass is not None else f"that of {guess.name}: weigh the vehicle and give mass=..."
    print(f"mass {found.robot.mass:.5g} kg ({kilograms})\n{table(found)}")
    if found.correlation > WHITE:
        print(
            f"warning: what is left unexplained is not just noise (correlation {found.correlation:.2f} of rows), "
            "so the true values may lie outside these intervals. Commands that change between rows? Filtered signals?",
            file=sys.stderr,
        )
    if config.out:
        write_atomic(config.out, source_text(found).encode())
        print(f"robot: {config.out} (task.robot={name}:ROBOT)")


if __name__ == "__main__":
    sys.exit(cli.call(main))
