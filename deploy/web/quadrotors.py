"""What a page flies: quadrotors, with the numbers of `sim.robots` as C, and policies whose contract is theirs."""

from __future__ import annotations

import math
from typing import Any

from deploy.codegen.elementwise import number
from deploy.drivers.quadrotor import STATE, TARGET
from deploy.policy_file import PolicyFile
from deploy.web.kind import Kind, VehicleError, check_contract, header, offsets, struct_rows
from sim.robots import ROBOTS, robot
from sim.robots.quadrotors import MOTOR_COMMAND, Quadrotor
from sim.spec import Group, Signal

SENSED: Group = (*STATE, *TARGET)
PREVIEW = "target_preview"  # as many points as the policy has
LONGEST_SUBSTEP = 0.002  # s; a latency is a whole number of these
LONGEST_PREVIEW = 10.0  # s between two points


KNOWN = {name: robot(name) for name in ROBOTS}


def airframes(policy: PolicyFile) -> list[Quadrotor]:
    """All that a page offers, the policy's own one first."""
    offered = [vehicle for vehicle in KNOWN.values() if not vehicle.all_differ]
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
    points = [s.size // 3 for s in policy.inputs if s.name == PREVIEW]
    ahead = tuple(Signal(PREVIEW, (3 * n,), "m", "world") for n in points)
    check_contract(policy, "flies quadrotors", (*SENSED, *ahead), (MOTOR_COMMAND,))
    _preview(policy)


def substeps(policy: PolicyFile) -> int:
    """Of the flight in a control period."""
    return math.ceil(1.0 / policy.rate_hz / LONGEST_SUBSTEP - 1e-9)


def headers(policy: PolicyFile) -> dict[str, str]:
    """What firmware/web/quadrotor includes: airframes.h and settings.h."""
    rows = struct_rows("airframes", "flight_parameters", [v.parameters() for v in airframes(policy)])
    settings = f"#define SUBSTEPS {substeps(policy)}\n#define PREVIEW {number(_preview(policy))} /* s */\n"
    return {
        "airframes.h": header("AIRFRAMES", "The airframes of sim/robots/quadrotors.py", rows),
        "settings.h": settings,
    }


def told(policy: PolicyFile) -> dict[str, Any]:
    """What a page must know: `airframes`, and where each parameter lies in C, in bytes."""
    vehicles = airframes(policy)
    offered = [{"name": vehicle.name, "source": vehicle.source} for vehicle in vehicles]
    parameters = offsets(vehicles[0].parameters())
    return {"airframes": offered, "parameters": parameters, "substeps": substeps(policy)}


KIND = Kind(
    "quadrotor",
    tuple(KNOWN),
    "quadrotors",
    "any quadrotor",
    check,
    headers,
    told,
    ("flight.c", "world.c"),
    ("world.mjs", "scene.mjs", "page.mjs"),
)
