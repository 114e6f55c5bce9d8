"""What a page plays: one against one on the pitch, and policies whose contract is that of a robot there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile
from deploy.web.kind import Kind, check_contract, check_rate, header, offsets, struct_rows
from sim.robots.wheeled import DIFFERENTIAL, OMNI, Wheeled
from sim.spec import Group, Signal

ROBOTS = {robot.name: robot for robot in (DIFFERENTIAL, OMNI)}
SUBSTEP = 0.01  # s
TURN = 8.0  # rad/s at most
PLAIN = ("radius", "front", "mouth", "track", "yaw_acceleration", "recharge", "reach")
SENSED: Group = (
    Signal("position", (2,), "m", "own"),
    Signal("heading", (2,), "1", "own"),
    Signal("velocity", (2,), "m/s", "body"),
    Signal("turning", (1,), "rad/s", "body"),
    Signal("ready", (1,), "1"),
    Signal("ball_position", (2,), "m", "body"),
    Signal("ball_velocity", (2,), "m/s", "body"),
    Signal("goal", (2,), "m", "body"),
    Signal("others", (2,), "m", "body"),
    Signal("others_velocity", (2,), "m/s", "body"),
)


def parameters(robot: Wheeled) -> dict[str, NDArray[Any]]:
    """All that the equations read, by name."""
    found = {name: value[0] for name, value in robot.parameters().items()}
    found |= {name: getattr(robot, name) for name in PLAIN} | {"omni": float(robot.omni)}
    return {name: np.asarray(value, np.float32) for name, value in found.items()}


def check(policy: PolicyFile) -> None:
    """VehicleError, with all differences, unless the policy is fed and obeyed like one that plays one against one."""
    drive, turn, kick, _ = ROBOTS[policy.robot].commands
    commands = (drive, replace(turn, low=-TURN, high=TURN), kick)
    check_contract(policy, "plays one against one, told where everything is", SENSED, commands)
    check_rate(policy, "plays")


def headers(policy: PolicyFile) -> dict[str, str]:
    """What firmware/web/soccer includes: robots.h and settings.h."""
    robot = ROBOTS[policy.robot]
    rows = struct_rows("kinds", "pitch_kind", [parameters(robot)])
    substeps = max(1, round(1.0 / policy.rate_hz / SUBSTEP))
    settings = f"#define SUBSTEPS {substeps}\n#define OMNI {int(robot.omni)}\n"
    return {"robots.h": header("ROBOTS", "The robots of sim/robots/wheeled.py", rows), "settings.h": settings}


def told(policy: PolicyFile) -> dict[str, Any]:
    """What a page must know: where each parameter of a robot lies in C."""
    return {"parameters": offsets(parameters(ROBOTS[policy.robot]))}


KIND = Kind(
    "soccer",
    tuple(ROBOTS),
    "football robots",
    "a football robot",
    check,
    headers,
    told,
    ("pitch.c", "world.c"),
    ("world.mjs", "scene.mjs", "page.mjs"),
)
