"""The planes in which a robot is its own mirror image."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from sim.robots.quadrotors import Quadrotor
from sim.terms import Mirror

VECTORS = (
    *("position", "linear_velocity", "target_position", "target_velocity", "target_acceleration"),
    *("target_preview", "target_preview_velocity", "target_preview_acceleration", "force", "wind"),
)  # in the world's frame
AXIAL = ("angular_velocity", "torque")  # a mirror turns them the other way round
BODY = ("inertia", "thrust_curve")  # numbers of the vehicle, alike in both images
EACH_ROTOR = ("motor_command", "rotor_speed", "thrust_scale")


def quadrotor_mirrors(robot: Quadrotor) -> tuple[Mirror, ...]:
    """The planes x = 0 and y = 0 of world and body, where each rotor has a counterpart that turns the other way."""
    rotors, spins = np.array(robot.rotor_position), np.array(robot.rotor_direction)
    found = []
    for axis in range(2):
        signs = np.ones(3)
        signs[axis] = -1.0
        distance = np.linalg.norm(rotors[:, None] * signs[:2] - rotors[None], axis=-1)
        partner = distance.argmin(axis=1)
        if distance.min(axis=1).max() > 1e-6 or (spins[partner] != -spins).any():
            continue
        changes: dict[str, tuple[Sequence[int], Sequence[float]]] = {}
        for names, sign in ((VECTORS, signs), (AXIAL, -signs)):
            changes |= {name: (range(3), sign.tolist()) for name in names}
        changes |= {name: (partner.tolist(), [1.0] * 4) for name in EACH_ROTOR}
        changes |= {name: (range(3), [1.0] * 3) for name in BODY}
        changes["target_heading"] = (range(2), signs[:2].tolist())
        changes["rotation"] = (range(9), [a * b for a, b in product(signs, signs)])
        found.append(Mirror(changes))
    return tuple(found)
