"""A policy as an app of the Crazyflie's own firmware: the out-of-tree controller of firmware/crazyflie, and its C."""

from __future__ import annotations

from deploy.codegen.elementwise import number
from deploy.codegen.source import FIRMWARE, QUADROTOR_SIGNALS, Source
from deploy.crazyflie.budget import Place, place
from deploy.crazyflie.simulator.onboard import calls_per_step
from deploy.policy_file import PolicyFile
from sim.spec import ANY_ROBOT

APP = FIRMWARE / "crazyflie"
RATE_HZ = 1000.0  # how often the firmware calls its controller
VEHICLE = """\
/* The airframe that the policy was trained on, and where it runs: made by `python -m deploy.export`; do not edit. */
#ifndef VEHICLE_H
#define VEHICLE_H

/* N: c0, c1, c2 of c0 + c1 u + c2 u^2, the thrust of one rotor at the fraction u of its largest speed. */
#define VEHICLE_THRUST {thrust}

#define POLICY_TASK {own_task} /* 1: a step has a task of its own, 0: it runs in the stabilizer's */
#define POLICY_STACK {stack}   /* bytes that a step takes */

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
    """Path in the app's folder -> text. ValueError: it cannot fly, or is too slow; GraphError: no C."""
    check(policy)
    source = Source(policy, content, weights)
    return around(policy, source, place(policy, source))


def around(policy: PolicyFile, source: Source, where: Place) -> dict[str, str]:
    """The same of C that there is already, of a policy that was checked."""
    written = ["Kbuild", "Makefile", "app-config", "src/Kbuild", "src/flight.c"]
    written += [f"src/{name}.{kind}" for name in ("compute", "guard", "landing", "signals") for kind in "ch"]
    app = {name: (APP / name).read_text() for name in written}
    app[f"src/{QUADROTOR_SIGNALS}"] = (FIRMWARE / QUADROTOR_SIGNALS).read_text()
    app |= {f"src/{name}": text for name, text in source.files().items()}
    vehicle = VEHICLE.format(thrust=_thrust(policy), own_task=int(where.own_task), stack=where.stack)
    return {**app, "src/vehicle.h": vehicle}
