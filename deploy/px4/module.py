"""A policy as a module of PX4: a flight mode around its C (firmware/px4), which commands the motors itself."""

from __future__ import annotations

import math

from deploy.codegen.source import Source
from deploy.drivers.quadrotor import STATE, TARGET
from deploy.policy_file import PolicyFile
from deploy.safety.compiled import MOTION, Autopilot, Limit

PX4 = Autopilot(
    target="px4",
    name="PX4",
    written=("CMakeLists.txt", "Kconfig", "module.cpp", "module.hpp", "flight.c", "flight.h", "signals.c", "signals.h"),
    signals=(*STATE, *TARGET),
    quickest_hz=400.0,  # IMU_GYRO_RATEMAX as PX4 comes; the policy's step is taken at a sample of the gyroscope
    pace="PX4's gyroscope",
    limits=(
        Limit("FENCE", "", 10.0, "m: no further from where it began, along north, east and down"),
        *MOTION,
    ),
    not_carried_out={
        "min_voltage": "PX4 watches the battery itself (BAT_LOW_THR)",
        "max_change": "commands go to the motors as they are",
    },
)
PAUSE_MS = 50  # between two samples of the gyroscope, which come every 1 to 4
# Name, the signals that may have to be younger, ms, what it is.
AGES = (
    ("POSITION", ("position", "linear_velocity"), 100, "vehicle_local_position may be that old, in us"),
    ("ATTITUDE", ("rotation",), 50, "vehicle_attitude"),
    ("RATES", ("angular_velocity",), 20, "vehicle_angular_velocity"),
    ("TARGET", ("target_position", "target_velocity"), 500, "trajectory_setpoint; older: it stays where it began"),
)


def limits(policy: PolicyFile) -> str:
    """limits.h: the usual limits, or the file's or its robot's where those are stricter."""
    lines = []
    for name, signals, usual_ms, what in AGES:
        own_ms = [1000.0 * s.max_age for s in policy.inputs if s.name in signals]
        lines.append(f"#define LIMIT_{name}_US {max(1, int(1000 * min([usual_ms, *own_ms])))}u /* {what} */")
    pause_ms = 1000.0 * min(PAUSE_MS / 1000.0, PX4.rules(policy).longest_pause or math.inf)
    lines.append(f"#define LIMIT_PAUSE_US {max(1, int(1000 * pause_ms))}u /* between two samples in flight */")
    return PX4.header(policy, lines)


def files(policy: PolicyFile, source: Source) -> dict[str, str]:
    """Path in the module's folder -> text, of a policy that was checked."""
    return PX4.files(source, limits(policy))
