"""The table of robots: name -> "module:ATTRIBUTE", imported when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sim.registry import load
from sim.robots.quadrotors import Quadrotor

ROBOTS = {
    "crazyflie": "sim.robots.quadrotors:CRAZYFLIE",
    "crazyflie_decks": "sim.robots.quadrotors:CRAZYFLIE_DECKS",
    "crazyflie_brushless": "sim.robots.quadrotors:CRAZYFLIE_BRUSHLESS",
    "stampfly": "sim.robots.quadrotors:STAMPFLY",
    "racer": "sim.robots.quadrotors:RACER",
    "x500": "sim.robots.quadrotors:X500",
    "x500_identified": "sim.robots.quadrotors:X500_IDENTIFIED",
    "any": "sim.robots.random_quadrotor:ANY",
    "any_log_uniform": "sim.robots.random_quadrotor:ANY_LOG_UNIFORM",
    "any_published": "sim.robots.random_quadrotor:ANY_PUBLISHED",
}
# Every robot whose limits are listed, those of other tasks too.
LISTED = {
    **ROBOTS,
    "panda": "sim.robots.panda:PANDA",
    "soccer_differential": "sim.robots.wheeled:DIFFERENTIAL",
    "soccer_omni": "sim.robots.wheeled:OMNI",
    "car_1_10": "sim.robots.cars:CAR_1_10",
    "car_1_18": "sim.robots.cars:CAR_1_18",
}


@dataclass(frozen=True)
class Robot:
    """The robot of a task that brings its own physics, by name: policies are made for it."""

    name: str


@runtime_checkable
class HasKinematics(Protocol):
    """An arm whose hand can be told where to go."""

    def toward(self, joints: Any, position: Any, rotation: Any) -> Any:
        """Joint positions (n, joints) that bring the hand from `joints` to position (n, 3) m, rotation (3, 3)."""


def kinematics_of(robot: Any) -> Callable[[Any, Any, Any], Any] | None:
    """What the robot's hand is told by, if it can be."""
    return robot.toward if isinstance(robot, HasKinematics) else None


@runtime_checkable
class HasRecovery(Protocol):
    """A vehicle that can free itself where it is stuck."""

    recovery: Mapping[str, Any]  # fields of deploy.safety.recovery.Rules


def recovery_of(robot: Any) -> Mapping[str, Any] | None:
    """How the robot frees itself, if it can."""
    return robot.recovery if isinstance(robot, HasRecovery) else None


def quadrotor(robot: Any) -> Quadrotor | None:
    """The robot, if it is one."""
    return robot if isinstance(robot, Quadrotor) else None


def robot(name: str) -> Quadrotor:
    """The robot of that name, or of "module:ATTRIBUTE"; ValueError lists the choices."""
    found = load("robot", name, ROBOTS)
    if not isinstance(found, Quadrotor):
        raise ValueError(f"{name!r} names a {type(found).__name__}, not a robot")
    return found
