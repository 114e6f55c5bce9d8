"""A policy as a module of PX4: a flight mode around its C (firmware/px4), which commands the motors itself."""

from __future__ import annotations

import math

from deploy.codegen.elementwise import number
from deploy.codegen.source import FIRMWARE, Source
from deploy.policy_file import PolicyFile
from sim.robots.quadrotors import MOTOR_COMMAND
from sim.spec import Group, Signal

FOLDER = FIRMWARE / "px4"
WRITTEN = ("CMakeLists.txt", "Kconfig", "module.cpp", "module.hpp", "flight.c", "flight.h", "signals.c", "signals.h")
KNOWN: Group = (
    Signal("position", (3,), "m", "world"),
    Signal("rotation", (9,), "1", "body->world"),
    Signal("linear_velocity", (3,), "m/s", "world"),
    Signal("angular_velocity", (3,), "rad/s", "body"),
    Signal("target_position", (3,), "m", "world"),
    Signal("target_velocity", (3,), "m/s", "world"),
)
QUICKEST = 400.0  # Hz: IMU_GYRO_RATEMAX as PX4 comes; the policy's step is taken at a sample of the gyroscope
BODY_RATE = 15.0  # rad/s, where the file says nothing
# Name, value, what it is; the file's own limits go before these.
LIMITS = (
    ("FENCE", 10.0, "m: no further from where it began, along north, east and down"),
    ("TILT", 60.0, "degrees between the body's z axis and the world's"),
    ("SPEED", 5.0, "m/s"),
    ("RATE", BODY_RATE, "rad/s, of the body"),
)
AGES = (
    ("POSITION", 100, "vehicle_local_position may be that old, in us"),
    ("ATTITUDE", 50, "vehicle_attitude"),
    ("RATES", 20, "vehicle_angular_velocity"),
    ("TARGET", 500, "trajectory_setpoint; older: it stays where it began"),
)
HEADER = """\
/* When the policy hands back to PX4: made by `python -m deploy.export`; change it, and build again. */
#ifndef LIMITS_H
#define LIMITS_H

{lines}

#endif
"""


def check(policy: PolicyFile) -> None:
    """ValueError when the module cannot supply a signal, carry out a command or keep the pace."""
    known = {s.name: s for s in KNOWN}
    for signal in policy.inputs:
        ours = known.get(signal.name)
        told = (signal.shape, signal.unit, signal.frame)
        if ours is None or (ours.shape, ours.unit, ours.frame) != told:
            raise ValueError(
                f"{policy.path}: target=px4 has no signal {signal.name!r} {signal.shape} in {signal.unit}; it has: "
                f"{', '.join(known)}"
            )
    commands = [(c.name, c.shape, c.low, c.high) for c in policy.outputs]
    if commands != [(MOTOR_COMMAND.name, MOTOR_COMMAND.shape, MOTOR_COMMAND.low, MOTOR_COMMAND.high)]:
        told_of = ", ".join(f"{c.name} {c.shape}" for c in policy.outputs)
        raise ValueError(f"{policy.path}: target=px4 commands 4 rotors (motor_command, 0 to 1), not {told_of}")
    if policy.rate_hz > QUICKEST:
        raise ValueError(f"{policy.path} runs at {policy.rate_hz:g} Hz; PX4's gyroscope gives {QUICKEST:g} samples/s")


def limits(policy: PolicyFile) -> str:
    """limits.h: the file's own limits, else the usual ones."""
    e = policy.envelope
    own = {"TILT": e.max_tilt, "SPEED": e.max_speed, "RATE": e.max_body_rate}
    lines = []
    for name, usual, what in LIMITS:
        value = own.get(name)
        value = usual if value is None else min(float(value), 179.0) if name == "TILT" else float(value)
        lines.append(f"#define LIMIT_{name} {number(value)} /* {what} */")
        if name == "TILT":
            cosine = math.cos(math.radians(value))
            lines.append(f"#define LIMIT_UPRIGHT {number(cosine)} /* the cosine of LIMIT_TILT */")
    lines += [f"#define LIMIT_{name}_US {1000 * age}u /* {what} */" for name, age, what in AGES]
    return HEADER.format(lines="\n".join(lines))


def files(policy: PolicyFile, source: Source) -> dict[str, str]:
    """Path in the module's folder -> text, of a policy that was checked."""
    return {
        **{name: (FOLDER / name).read_text() for name in WRITTEN},
        **source.files(),
        "limits.h": limits(policy),
    }
