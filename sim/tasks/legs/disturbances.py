"""What differs from episode to episode of a legged robot, and pushes it: domain randomisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from sim.robots.mjcf import Double
    from sim.robots.mjcf_legged import LeggedRobot

# Ranges of factors, at `vary` 1 (with `vary` v they are that much wider): friction, the mass of the base and of each
# other body, servos' stiffness, joints' damping; compare `Velocity`'s peers legged_gym and MuJoCo Playground.
FRICTION, BASE, PART, STIFFNESS, DAMPING = 0.4, 0.2, 0.1, 0.15, 0.2
SHIFT = 0.02  # m: how far the base's centre of mass is off, per axis
CALIBRATION = 0.02  # rad: how far joints' positions are told wrongly
LATENCY = 0.02  # s, of commands at most
PUSHES = 3  # in an episode


class Vehicle(NamedTuple):
    """One that was drawn: factors, and offsets."""

    friction: float
    base: float
    parts: Double  # (bodies,)
    stiffness: float
    damping: float
    shift: Double  # (3,) m
    calibration: Double  # (joints,) rad (m)
    latency: float  # s

    def change(self, model: Any, base: int) -> None:
        """Make it of the nominal one."""
        model.geom_friction[:] *= self.friction
        mass = self.parts.copy()
        mass[base] = self.base
        model.body_mass[:] *= mass
        model.body_inertia[:] *= mass[:, None]
        model.body_ipos[base] += self.shift
        model.actuator_gainprm[:, 0] *= self.stiffness
        model.actuator_biasprm[:, 1] *= self.stiffness
        model.dof_damping[6:] *= self.damping


def draw(robot: LeggedRobot, rng: np.random.Generator, vary: float) -> Vehicle:
    """One, for `vary` of the usual ranges."""

    def factor(width: float, *shape: int) -> Any:
        return np.exp(rng.uniform(-1.0, 1.0, shape or None) * np.log1p(vary * width))

    return Vehicle(
        friction=factor(FRICTION),
        base=factor(BASE),
        parts=factor(PART, robot.physics.nbody),
        stiffness=factor(STIFFNESS),
        damping=factor(DAMPING),
        shift=vary * SHIFT * rng.uniform(-1.0, 1.0, 3),
        calibration=vary * CALIBRATION * rng.uniform(-1.0, 1.0, len(robot.joints)),
        latency=vary * LATENCY * rng.uniform(),
    )
