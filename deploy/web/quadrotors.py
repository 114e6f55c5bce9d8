"""What a page flies: quadrotors, with the numbers of `sim.robots` as C, and policies whose contract is theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from deploy.codegen.elementwise import number
from deploy.loop import HandshakeError, handshake
from deploy.policy_file import PolicyFile
from sim.robots import ROBOTS, robot
from sim.robots.quadrotors import MOTOR_COMMAND, Quadrotor
from sim.spec import ANY_ROBOT, Group, Signal

SENSED: Group = (
    Signal("position", (3,), "m", "world"),
    Signal("rotation", (9,), "1", "body->world"),
    Signal("linear_velocity", (3,), "m/s", "world"),
    Signal("angular_velocity", (3,), "rad/s", "body"),
    Signal("target_position", (3,), "m", "world"),
    Signal("target_velocity", (3,), "m/s", "world"),
)
PREVIEW = "target_preview"  # as many points as the policy has
LONGEST_SUBSTEP = 0.002  # s; a latency is a whole number of these
LONGEST_PREVIEW = 10.0  # s between two points
HEADER = """\
/* The airframes of sim/robots/quadrotors.py: made by `python -m deploy.export`; do not edit. */
#ifndef AIRFRAMES_H
#define AIRFRAMES_H

typedef struct {{
    float {members};
}} flight_parameters;

#define AIRFRAMES {count}
static const flight_parameters airframes[AIRFRAMES] __attribute__((unused)) = {{
{rows}}};

#endif
"""


class VehicleError(ValueError):
    """No quadrotor of ours is what the policy is for; the message says why."""


def airframes(policy: PolicyFile) -> list[Quadrotor]:
    """All that a page offers, the policy's own one first. Raises VehicleError where that is none of ours."""
    known = {name: robot(name) for name in ROBOTS}
    offered = [vehicle for vehicle in known.values() if not vehicle.all_differ]
    if policy.robot != ANY_ROBOT and policy.robot not in known:
        names = ", ".join(vehicle.name for vehicle in offered)
        raise VehicleError(
            f"{policy.path} is for the robot {policy.robot!r}; a page flies quadrotors: {names}, {ANY_ROBOT}"
        )
    return sorted(offered, key=lambda vehicle: vehicle.name != policy.robot)


def _preview(policy: PolicyFile) -> float:
    """The seconds between two points of the preview, as the task was set; 0 where there is none."""
    if PREVIEW not in {s.name for s in policy.inputs}:
        return 0.0
    told: Any = policy.metadata.get("training", {})
    for key in ("task_config", "preview"):
        told = told.get(key) if isinstance(told, dict) else None
    if not isinstance(told, int | float) or not 0.0 < told <= LONGEST_PREVIEW:
        raise VehicleError(f"{policy.path} does not say how far ahead {PREVIEW!r} looks (training.task_config.preview)")
    return float(told)


def check(policy: PolicyFile) -> None:
    """VehicleError, with all differences, unless the policy is fed and obeyed like that of a quadrotor."""
    airframes(policy)
    points = [s.size // 3 for s in policy.inputs if s.name == PREVIEW]
    ahead = tuple(Signal(PREVIEW, (3 * n,), "m", "world") for n in points)
    vehicle: Any = SimpleNamespace(
        robot=policy.robot, rate_hz=policy.rate_hz, signals=(*SENSED, *ahead), commands=(MOTOR_COMMAND,)
    )
    try:
        handshake(policy, vehicle)
    except HandshakeError as error:
        raise VehicleError(f"a page flies quadrotors: {error}") from None
    _preview(policy)


def substeps(policy: PolicyFile) -> int:
    """Of the flight in a control period."""
    return math.ceil(1.0 / policy.rate_hz / LONGEST_SUBSTEP - 1e-9)


def headers(policy: PolicyFile, vehicles: Sequence[Quadrotor]) -> dict[str, str]:
    """What firmware/web/world.c includes: airframes.h and settings.h."""
    columns = [vehicle.parameters() for vehicle in vehicles]
    rows = ("{" + ", ".join("{" + ", ".join(map(number, v)) + "}" for v in row.values()) + "}" for row in columns)
    names = ", ".join(f"{name}[{value.size}]" for name, value in columns[0].items())
    settings = f"#define SUBSTEPS {substeps(policy)}\n#define PREVIEW {number(_preview(policy))} /* s */\n"
    return {
        "airframes.h": HEADER.format(members=names, count=len(vehicles), rows=",\n".join(rows)),
        "settings.h": settings,
    }


def told(policy: PolicyFile, vehicles: Sequence[Quadrotor]) -> dict[str, Any]:
    """What a page must know of them: `airframes`, and where each parameter lies in C, in bytes."""
    parameters, at = [], 0
    for name, value in vehicles[0].parameters().items():
        parameters.append({"name": name, "offset": at, "size": value.size})
        at += value.size * np.dtype(np.float32).itemsize
    offered = [{"name": vehicle.name, "source": vehicle.source} for vehicle in vehicles]
    return {"airframes": offered, "parameters": parameters, "substeps": substeps(policy)}
