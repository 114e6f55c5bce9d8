"""Robots on wheels that play football: discs with a flat front, a kicker behind it and a camera that pans.

The sizes are those of RoboCup's small-size league (rules of 2024: at most 0.18 m across and 0.15 m high); what a wheel
can do is what its teams describe (2 to 3 m/s, 3 to 4 m/s^2). They are estimates, so tasks vary them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.spec import Group, Signal


@dataclass(frozen=True)
class Wheeled:
    """A robot on two wheels (`omni` False) or on wheels that go sideways, too."""

    name: str
    omni: bool
    radius: float = 0.09  # m
    front: float = 0.07  # m from its axis to its flat front
    height: float = 0.15  # m
    track: float = 0.08  # m from its axis to a wheel
    yaw_acceleration: float = 40.0  # rad/s^2 at most
    recharge: float = 0.5  # s from one kick to the next
    reach: float = 0.015  # m between its front and a ball that it kicks
    # A small servo's, such as Robotis' XL330 (emanual.robotis.com): 300 degrees, 104 rpm without load.
    pan_speed: float = 10.0  # rad/s at most
    pan_limit: float = 2.6  # rad to either side
    eye: tuple[float, float] = (0.0, 0.13)  # m: the camera in front of its axis, and above the ground
    mass: float = 2.5  # kg
    speed: float = 2.0  # m/s of a wheel at most
    acceleration: float = 3.0  # m/s^2 at most
    grip: float = 6.0  # m/s^2 at most, by which wheels that do not go sideways stop doing so
    lag: float = 0.04  # s: time constant of the wheels' controllers
    kick_speed: float = 3.0  # m/s of the ball at most
    bounce: float = 0.4  # restitution of the ball on it

    @property
    def mouth(self) -> float:
        """m from the middle of its flat front to either end."""
        return math.sqrt(self.radius**2 - self.front**2)

    @property
    def turn_speed(self) -> float:
        """rad/s at most."""
        return self.speed / self.track

    @property
    def commands(self) -> Group:
        """All that it can be told, with its own limits. `kick`: the share of its largest speed."""
        return (
            Signal("drive", (2 if self.omni else 1,), "m/s", "body", -self.speed, self.speed),
            Signal("turn", (1,), "rad/s", "body", -self.turn_speed, self.turn_speed),
            Signal("kick", (1,), "1", "", 0.0, 1.0),
            Signal("look", (1,), "rad", "body", -self.pan_limit, self.pan_limit),
        )

    @property
    def envelope(self) -> Mapping[str, Any]:
        """Limits that no policy file may widen: it has none beside its commands'."""
        return {}

    @property
    def safe(self) -> Mapping[str, tuple[Any, ...]]:
        """Per command, what stops it: it stands, does not kick, and looks ahead."""
        return {c.name: ((0.0,) * c.size,) for c in self.commands}

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """What may differ from robot to robot of one kind, by name (1,)."""
        names = ("mass", "speed", "acceleration", "grip", "lag", "kick_speed", "bounce")
        return {name: np.array([getattr(self, name)], np.float32) for name in names}


DIFFERENTIAL = Wheeled("soccer_differential", omni=False)
"""A football robot on two wheels: a disc with a flat front, a kicker and a camera."""

OMNI = Wheeled("soccer_omni", omni=True)
"""The football robot on wheels that go sideways, too."""
