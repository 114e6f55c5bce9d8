"""The table of robots: name -> "module:ATTRIBUTE", imported when asked for."""

from __future__ import annotations

from dataclasses import dataclass

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
# Every robot whose limits are listed, those of manipulation tasks too.
LISTED = {**ROBOTS, "panda": "sim.robots.panda:PANDA"}


@dataclass(frozen=True)
class Robot:
    """The robot of a task that brings its own physics, by name: policies are made for it."""

    name: str


def robot(name: str) -> Quadrotor:
    """The robot of that name, or of "module:ATTRIBUTE"; ValueError lists the choices."""
    found = load("robot", name, ROBOTS)
    if not isinstance(found, Quadrotor):
        raise ValueError(f"{name!r} names a {type(found).__name__}, not a robot")
    return found
