"""What libraries of legged robots call the same: terms of Isaac Lab and mjlab, as signals and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from policies.adoption.found import UNKNOWN

# A term -> the signals that say it (name, size or None: one per joint, unit, frame).
TERMS: dict[str, tuple[tuple[str, int | None, str, str], ...]] = {
    "base_lin_vel": (("linear_velocity", 3, "m/s", "body"),),
    "base_ang_vel": (("angular_velocity", 3, "rad/s", "body"),),
    "projected_gravity": (("projected_gravity", 3, "1", "body"),),
    **dict.fromkeys(("joint_pos", "joint_pos_rel"), (("joint_position", None, "rad", ""),)),
    **dict.fromkeys(("joint_vel", "joint_vel_rel"), (("joint_velocity", None, "rad/s", ""),)),
    **dict.fromkeys(
        ("command", "velocity_commands", "generated_commands"),
        (("target_velocity", 2, "m/s", "body"), ("target_turn_rate", 1, "rad/s", "body")),
    ),
}
LAST = ("actions", "last_action")


def term(name: str, joints: Sequence[str], offset: Sequence[float] = ()) -> dict[str, Any]:
    """As a draft says it; `joints`: the order of its elements, where it is of joints."""
    if name in LAST:
        return {"last_action": True}
    if name not in TERMS:
        return {"signal": f"{UNKNOWN}{name}"}
    parts = [part[0] for part in TERMS[name]]
    made: dict[str, Any] = {"signal": parts[0] if len(parts) == 1 else parts}
    if TERMS[name][0][1] is None:
        made["elements"] = list(joints)
    if any(offset):
        made["offset"] = list(offset)
    return made


def signals(names: Iterable[str], joints: Sequence[str]) -> list[dict[str, Any]]:
    """Those that the terms need, for a robot that is none of ours."""
    made: dict[str, dict[str, Any]] = {}
    for name in names:
        if name in LAST:
            continue
        for signal, size, unit, frame in TERMS.get(name, ((f"{UNKNOWN}{name}", 1, "1", ""),)):
            made[signal] = {"name": signal, "size": size or len(joints), "unit": unit}
            made[signal] |= {"frame": frame} if frame else {}
            made[signal] |= {} if size else {"elements": list(joints)}
    return list(made.values())


def command(name: str, unit: str, joints: Sequence[str], limits: Sequence[Any] = (UNKNOWN, UNKNOWN)) -> dict[str, Any]:
    """One number for each joint."""
    return {"name": name, "size": len(joints), "unit": unit, "limits": list(limits), "elements": list(joints)}
