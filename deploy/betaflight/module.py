"""A policy as a module of Betaflight: C around its C (firmware/betaflight), in the mixer's place while a switch is on.

Betaflight knows attitude, body rates and the battery. Where it is, it estimates since release 2026.6, from GPS or from
optical flow and a rangefinder; a computer beside it can be that GPS, over MSP. It has no target: sticks move it.

Sources: betaflight @6dbc4218 (release 2026.6.1) src/main flight/imu.c, flight/position_estimator.c, flight/mixer.c,
fc/core.c, common/axis.h, pg/pos_hold_multirotor.h, msp/msp_box.c.
"""

from __future__ import annotations

import math

from deploy.codegen.elementwise import number
from deploy.codegen.source import Source
from deploy.drivers.quadrotor import STATE, TARGET
from deploy.mcu.budget import Budget
from deploy.policy_file import PolicyFile
from deploy.safety.compiled import MOTION, Autopilot, Limit
from sim.spec import Signal

BUILD = (
    "echo 'include $(SRC_DIR)/sim2metal/sim2metal.mk' >> mk/source.mk",
    "sed -i 's|^ *mixTable(currentTimeUs);|&\\n    sim2metalUpdate(currentTimeUs);|' src/main/fc/core.c",
    'sed -i \'0,/^#include "flight/s||#include "sim2metal/sim2metal.h"\\n&|\' src/main/fc/core.c',
    "make TARGET=STM32F405",
)
SWITCH_MODE = 40  # BOXUSER1's permanent number. The Configurator offers it only where pinioBox monitors it.
SWITCH = f"""\
the switch is the mode USER1, which is set in Betaflight's CLI (N: a free line; CHANNEL 0: AUX1, 1: AUX2, ...):
  aux N {SWITCH_MODE} CHANNEL 1700 2100 0 0
  save
what it does: docs/px4.md"""
BUDGET = Budget(250.0, "a turn of a PID loop at 4 kHz, in which the step is taken")
BETAFLIGHT = Autopilot(
    target="betaflight",
    name="Betaflight",
    written=("sim2metal.c", "sim2metal.h", "sim2metal.mk", "flight.c", "flight.h", "signals.c", "signals.h"),
    signals=(*STATE, *TARGET, Signal("battery_voltage", (1,), "V")),
    quickest_hz=1000.0,
    pace="Betaflight's slowest usual PID loop",
    limits=(
        Limit("FENCE", "", 10.0, "m: no further from where it began, along north, west and up"),
        *MOTION,
        Limit("DOUBT", "", 0.5, "m: one standard deviation of its position, by Betaflight's own filter"),
        Limit("GPS_AGE", "", 0.5, "s without news from the GPS, where the position is of it"),
        Limit("STICK_SPEED", "max_speed", 1.0, "m/s of the target, at a stick's end", share=0.5 / math.sqrt(3.0)),
        Limit("PAUSE", "longest_pause", 0.05, "s between two turns of the loop"),
    ),
    not_carried_out={"max_change": "commands go to the motors as they are"},
    lacks=". What a sensor beside these would tell, Betaflight does not",
)
PLACED = {"position", "linear_velocity", *(s.name for s in TARGET)}


def needs_position(policy: PolicyFile) -> bool:
    """Whether a signal or a rule of it needs to know where it is."""
    e = BETAFLIGHT.rules(policy)
    return bool(PLACED & {s.name for s in policy.inputs}) or e.fence_low is not None or e.max_speed is not None


def limits(policy: PolicyFile) -> str:
    """limits.h: the usual limits, or the file's or its robot's where those are stricter."""
    e = BETAFLIGHT.rules(policy)
    lines = ["#define NEEDS_POSITION"] * needs_position(policy)
    if "battery_voltage" in {s.name for s in policy.inputs}:
        lines.append("#define NEEDS_VOLTS")
    if e.min_voltage is not None:
        lines.append(f"#define LIMIT_VOLTS {number(float(e.min_voltage))} /* V, of the battery */")
        lines.append(f"#define LIMIT_LOW {number(e.low_voltage_steps / policy.rate_hz)} /* s: it sags under load */")
    return BETAFLIGHT.header(policy, lines)


def files(policy: PolicyFile, source: Source) -> dict[str, str]:
    """Path in the module's folder -> text, of a policy that was checked."""
    return BETAFLIGHT.files(source, limits(policy))
