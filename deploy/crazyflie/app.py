"""A policy as an app of the Crazyflie's own firmware: the out-of-tree controller of firmware/crazyflie, and its C."""

from __future__ import annotations

from deploy.codegen.elementwise import number
from deploy.codegen.source import FIRMWARE, Source
from deploy.crazyflie.simulator.onboard import calls_per_step
from deploy.mcu.budget import Budget
from deploy.policy_file import PolicyFile
from sim.spec import ANY_ROBOT

APP = FIRMWARE / "crazyflie"
RATE_HZ = 1000.0  # how often the firmware calls its controller
# Built from crazyflie-firmware 2a18fc29 (2026.08+2) for cf2 with `quad_any`, whose C takes 12 752 bytes of flash and
# 624 of memory: 322 508 of 1 032 192 bytes of flash and 95 504 of 131 072 of memory are full. The stabilizer task must
# be through within its 1 ms (its rate supervisor stops a vehicle outside of 997..1003 Hz), and tasks below it must
# run, too: that a third of it is free for the policy is our choice, not Bitcraze's number.
BUDGET = Budget(
    us=300.0,
    why="what is left of the Crazyflie's 1 kHz stabilizer task, in which the policy runs",
    flash=1_032_192 - 322_508 + 12_752,
    memory=131_072 - 95_504 + 624,
)
VEHICLE = """\
/* The airframe that the policy was trained on: made by `python -m deploy.export`; do not edit. */
#ifndef VEHICLE_H
#define VEHICLE_H

/* N: c0, c1, c2 of c0 + c1 u + c2 u^2, the thrust of one rotor at the fraction u of its largest speed. */
#define VEHICLE_THRUST {thrust}

#endif
"""


def check(policy: PolicyFile) -> None:
    """ValueError when the firmware cannot fly the policy."""
    if policy.robot != ANY_ROBOT and not policy.robot.startswith("crazyflie"):
        raise ValueError(f"{policy.path} is for the robot {policy.robot!r}, which is no Crazyflie")
    calls_per_step(policy, RATE_HZ)


def _thrust(policy: PolicyFile) -> str:
    """The airframe's thrust curve. A policy for any robot commands shares of this one's largest speed."""
    if policy.robot == ANY_ROBOT:
        return "{0.0f, 0.0f, THRUST_MAX}"
    from sim.registry import names_from
    from sim.robots import robot

    with names_from(policy.path):
        curve = robot(policy.robot).thrust_curve
    return f"{{{', '.join(number(c) for c in curve)}}}"


def files(policy: PolicyFile, content: bytes, weights: str = "float32") -> dict[str, str]:
    """Path in the app's folder -> text. Raises ValueError when it cannot fly, GraphError when it cannot be C."""
    check(policy)
    return around(policy, Source(policy, content, weights))


def around(policy: PolicyFile, source: Source) -> dict[str, str]:
    """The same of C that there is already, of a policy that was checked."""
    written = ["Kbuild", "Makefile", "app-config", "src/Kbuild", "src/flight.c"]
    written += [f"src/{name}.{kind}" for name in ("guard", "landing", "signals") for kind in "ch"]
    app = {name: (APP / name).read_text() for name in written}
    app |= {f"src/{name}": text for name, text in source.files().items()}
    return {**app, "src/vehicle.h": VEHICLE.format(thrust=_thrust(policy))}
