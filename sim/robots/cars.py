"""Small racing cars as data: a 1:10 car as in F1TENTH, and a 1:18 car.

The 1:10 car's numbers are the defaults of f1tenth_gym (f110_gym/envs/f110_env.py: mu, C_Sf, C_Sr, lf, lr, h, m, I and
limits of steering, speed and acceleration; width and length, too), which were identified on such a car. Its tyre is
linear, mu C_S F_z alpha; ours (Pacejka's formula) has the same slope at zero slip, and an end. How steering and motor
lag is not in there: ours are estimates, so tasks vary them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.spec import Group, Signal

GRAVITY = 9.81  # m/s^2
# What may differ from car to car of one kind.
VARYING = (
    *("mass", "yaw_inertia", "friction", "front_stiffness", "rear_stiffness", "tyre_shape", "tyre_curvature"),
    *("steering_lag", "motor_lag", "acceleration", "trim"),
)


@dataclass(frozen=True)
class Car:
    """A car with four driven wheels and a servo that steers the front ones, seen as a single track."""

    name: str
    mass: float  # kg
    yaw_inertia: float  # kg m^2
    front: float  # m from the centre of mass to the front axle
    rear: float
    height: float  # m of the centre of mass above the ground
    width: float  # m
    length: float
    friction: float  # of tyres on the ground
    front_stiffness: float  # 1/rad: slope of the lateral force over friction and load at zero slip
    rear_stiffness: float
    steering_limit: float  # rad to either side
    steering_rate: float  # rad/s at most
    acceleration: float  # m/s^2 of the motor at most, forward and braking
    switch_speed: float  # m/s from which on its power limits it
    slowest: float  # m/s
    fastest: float
    # Ours, from here on. Pacejka's shape factor C (his B is stiffness / C, his D friction times load) and curvature E.
    tyre_shape: float = 1.5
    tyre_curvature: float = 0.2
    longitudinal_stiffness: float = 10.0  # slope of the driving force over friction and load: how much wheels slip
    steering_lag: float = 0.03  # s: time constant of the servo
    motor_lag: float = 0.05  # s
    trim: float = 0.0  # rad by which it steers to the left of what it is told
    speed_gain: float = 10.0  # 1/s of the speed controller
    wall_friction: float = 0.3
    lidar: float = 0.1  # m in front of the centre of mass
    eye: tuple[float, float] = (0.1, 0.2)  # of its camera: m in front of that, and above the ground

    @property
    def wheelbase(self) -> float:
        """m from axle to axle."""
        return self.front + self.rear

    @property
    def commands(self) -> Group:
        """All that it can be told, with its own limits."""
        return (
            Signal("steering", (1,), "rad", "body", -self.steering_limit, self.steering_limit),
            Signal("speed", (1,), "m/s", "body", self.slowest, self.fastest),
        )

    @property
    def envelope(self) -> Mapping[str, Any]:
        """Limits that no policy file may widen: it has none beside its commands'."""
        return {}

    @property
    def safe(self) -> Mapping[str, tuple[Any, ...]]:
        """Per command, what stops it: it brakes, and steers straight on."""
        return {c.name: ((0.0,) * c.size,) for c in self.commands}

    @property
    def recovery(self) -> Mapping[str, Any]:
        """How it frees itself from a wall, fields of deploy.safety.recovery.Rules. Odometry of who stands is not 0."""
        told = {"drives": "speed", "back": -0.8, "forth": 0.8, "steers": "steering"}
        return {**told, "moves": "wheel_speed", "slow": 0.4}

    @property
    def derived(self) -> dict[str, float]:
        """What its equations read that follows from its numbers: see `sim.engines.car.rows.Shape`."""
        return {
            "per_base": 1.0 / self.wheelbase,
            "share": self.rear / self.wheelbase,
            "spin": 2.0 * self.front * self.rear / self.wheelbase * self.mass / self.yaw_inertia,
            "radius": 0.5 * self.width,
            "reach": 0.5 * (self.length - self.width),
        }

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """What may differ from car to car of one kind, by name (1,)."""
        return {name: np.array([getattr(self, name)], np.float32) for name in VARYING}


CAR_1_10 = Car(
    "car_1_10",
    mass=3.74,
    yaw_inertia=0.04712,
    front=0.15875,
    rear=0.17145,
    height=0.074,
    width=0.31,
    length=0.58,
    friction=1.0489,
    front_stiffness=4.718,
    rear_stiffness=5.4562,
    steering_limit=0.4189,
    steering_rate=3.2,
    acceleration=9.51,
    switch_speed=7.319,
    slowest=-5.0,
    fastest=20.0,
)
"""A 1:10 racing car as in F1TENTH: 0.58 m, 3.74 kg, up to 20 m/s; numbers of f1tenth_gym."""

# Ours, of no particular make: sizes, mass and limits as such cars have them, the inertia of a uniform box, the tyres of
# the larger one.
CAR_1_18 = Car(
    "car_1_18",
    mass=0.79,
    yaw_inertia=0.79 * (0.269**2 + 0.12**2) / 12.0,
    front=0.0915,
    rear=0.0915,
    height=0.03,
    width=0.12,
    length=0.269,
    friction=0.9,
    front_stiffness=4.718,
    rear_stiffness=5.4562,
    steering_limit=0.45,
    steering_rate=5.0,
    acceleration=7.0,
    switch_speed=5.0,
    slowest=-3.0,
    fastest=13.0,
    lidar=0.03,
    eye=(0.05, 0.12),
)
"""A 1:18 racing car of no particular make: 0.27 m, 0.79 kg, up to 13 m/s; numbers of ours."""

# "Reality": the 1:10 car as no training sees it, to ask whether a policy survives what its simulation gets wrong. Ours:
# heavier, on softer tyres that hold less once they slide, slower to answer, and out of trim.
REAL_1_10 = replace(
    CAR_1_10,
    mass=1.2 * CAR_1_10.mass,
    yaw_inertia=1.25 * CAR_1_10.yaw_inertia,
    friction=0.9 * CAR_1_10.friction,
    front_stiffness=0.8 * CAR_1_10.front_stiffness,
    rear_stiffness=0.75 * CAR_1_10.rear_stiffness,
    tyre_shape=1.65,
    tyre_curvature=-0.4,
    steering_lag=0.06,
    motor_lag=0.09,
    acceleration=0.85 * CAR_1_10.acceleration,
    trim=0.02,
)
