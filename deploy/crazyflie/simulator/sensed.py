"""What the state estimator and the sensors of one vehicle say, in SI units and in the firmware's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from deploy.crazyflie.simulator.setpoints import Triple

GRAVITY = 9.81  # m/s^2


@dataclass
class Sensed:
    """One instant. Body axes: x forward, y left, z up."""

    position: Triple  # m, world
    velocity: Triple  # m/s, world
    acceleration: Triple  # m/s^2, world, without gravity
    rotation: list[float]  # (9), row-major, body to world
    quaternion: list[float]  # w, x, y, z
    rate: Triple  # rad/s, body
    rotor_speed: list[float]  # fractions 0..1

    @cached_property
    def roll(self) -> float:
        """Degrees."""
        return math.degrees(math.atan2(self.rotation[7], self.rotation[8]))

    @cached_property
    def pitch(self) -> float:
        """Degrees, nose up positive: the firmware's convention, opposite to the rotation about y."""
        return math.degrees(math.asin(min(max(self.rotation[6], -1.0), 1.0)))

    @cached_property
    def yaw(self) -> float:
        """Degrees, to the left positive."""
        return math.degrees(math.atan2(self.rotation[3], self.rotation[0]))

    @cached_property
    def gyro(self) -> Triple:
        """Degrees/s, body."""
        x, y, z = self.rate
        return math.degrees(x), math.degrees(y), math.degrees(z)

    @cached_property
    def specific_force(self) -> Triple:
        """What an accelerometer measures, in g, body: (0, 0, 1) at rest."""
        x, y, z = self.acceleration
        r, z = self.rotation, z + GRAVITY
        a, b, c = ((r[k] * x + r[3 + k] * y + r[6 + k] * z) / GRAVITY for k in range(3))
        return a, b, c
