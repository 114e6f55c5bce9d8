"""A policy as a module of PX4: a flight mode around its C (firmware/px4), which commands the motors itself."""

from __future__ import annotations

import math

from deploy.codegen.elementwise import number
from deploy.codegen.source import FIRMWARE, Source
from deploy.drivers.quadrotor import STATE, TARGET
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import Envelope
from deploy.safety.limits import limits_of, tightened
from sim.robots.quadrotors import MOTOR_COMMAND
from sim.spec import Group

FOLDER = FIRMWARE / "px4"
WRITTEN = ("CMakeLists.txt", "Kconfig", "module.cpp", "module.hpp", "flight.c", "flight.h", "signals.c", "signals.h")
KNOWN: Group = (*STATE, *TARGET)
QUICKEST = 400.0  # Hz: IMU_GYRO_RATEMAX as PX4 comes; the policy's step is taken at a sample of the gyroscope
# Name, the rule of an envelope that may be stricter, value, what it is.
LIMITS = (
    ("FENCE", "", 10.0, "m: no further from where it began, along north, east and down"),
    ("TILT", "max_tilt", 60.0, "degrees between the body's z axis and the world's"),
    ("SPEED", "max_speed", 5.0, "m/s"),
    ("RATE", "max_body_rate", 15.0, "rad/s, of the body"),
)
# Name, the signals that may have to be younger, ms, what it is.
AGES = (
    ("POSITION", ("position", "linear_velocity"), 100, "vehicle_local_position may be that old, in us"),
    ("ATTITUDE", ("rotation",), 50, "vehicle_attitude"),
    ("RATES", ("angular_velocity",), 20, "vehicle_angular_velocity"),
    ("TARGET", ("target_position", "target_velocity"), 500, "trajectory_setpoint; older: it stays where it began"),
)
NOT_CARRIED_OUT = {
    "min_voltage": "PX4 watches the battery itself (BAT_LOW_THR)",
    "max_change": "commands go to the motors as they are",
}
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
    rules(policy)


def rules(policy: PolicyFile) -> Envelope:
    """The stricter of the file's rules and its robot's. ValueError for one that the module cannot carry out."""
    try:
        e = tightened(policy.envelope, limits_of(policy.robot).envelope)
    except ValueError as error:
        raise ValueError(f"{policy.path} and the limits of {policy.robot} exclude each other: {error}") from None
    for rule, why in NOT_CARRIED_OUT.items():
        if getattr(e, rule) is not None:
            raise ValueError(
                f"{policy.path}: it or its robot has the rule {rule}, which target=px4 does not carry out: {why}. "
                "Export a file without it"
            )
    for rule in ("fence_low", "fence_high", *(rule for _, rule, _, _ in LIMITS if rule)):
        value = getattr(e, rule)
        if value is not None and not all(map(math.isfinite, value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{policy.path}: {rule} is infinite; name a number, or leave the rule out")
    return e


def limits(policy: PolicyFile) -> str:
    """limits.h: the usual limits, or the file's or its robot's where those are stricter."""
    e = rules(policy)
    lines = []
    for name, rule, usual, what in LIMITS:
        own = getattr(e, rule) if rule else None
        value = usual if own is None else min(usual, float(own))
        lines.append(f"#define LIMIT_{name} {number(value)} /* {what} */")
        if name == "TILT":
            cosine = math.cos(math.radians(value))
            lines.append(f"#define LIMIT_UPRIGHT {number(cosine)} /* the cosine of LIMIT_TILT */")
    for side, wall in (("LOW", e.fence_low), ("HIGH", e.fence_high)):
        if wall is not None:
            numbers = ", ".join(number(float(x)) for x in wall)
            lines.append(f"#define LIMIT_WORLD_{side} {{{numbers}}} /* m: a geofence, in the world */")
    for name, signals, usual_ms, what in AGES:
        own_ms = [1000.0 * s.max_age for s in policy.inputs if s.name in signals]
        lines.append(f"#define LIMIT_{name}_US {max(1, int(1000 * min([usual_ms, *own_ms])))}u /* {what} */")
    return HEADER.format(lines="\n".join(lines))


def files(policy: PolicyFile, source: Source) -> dict[str, str]:
    """Path in the module's folder -> text, of a policy that was checked."""
    return {
        **{name: (FOLDER / name).read_text() for name in WRITTEN},
        **source.files(),
        "limits.h": limits(policy),
    }
