"""Quadrotor airframes: frozen data with sources. Rotors are ordered front-right, back-right, back-left, front-left.

Axes: body x forward, y left, z up. Commands are fractions 0..1 of the rotor speed range; thrust per rotor in newtons is
c0 + c1 u + c2 u^2 at the rotor speed fraction u.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.spec import Group, Signal

GRAVITY = 9.81  # m/s^2

# What the on-board state estimator of a quadrotor with positioning provides.
SENSED = (
    "position",
    "rotation",
    "linear_velocity",
    "angular_velocity",
    "target_position",
    "target_velocity",
    "target_acceleration",
    "target_preview",
    "target_preview_velocity",
    "target_preview_acceleration",
    "target_heading",
)

MOTOR_COMMAND = Signal("motor_command", (4,), low=0.0, high=1.0)


@dataclass(frozen=True)
class Quadrotor:
    """One airframe. `source` says where the numbers come from."""

    all_differ: ClassVar[bool] = False  # every one drawn is another airframe

    name: str
    source: str
    mass: float  # kg
    inertia: tuple[float, float, float]  # kg m^2, diagonal, body axes
    rotor_position: tuple[tuple[float, float], ...]  # m, (x, y) of the four rotors, in the plane of the centre of mass
    rotor_direction: tuple[float, float, float, float]  # sign of the yaw torque that each rotor exerts on the body
    thrust_curve: tuple[float, float, float]  # N: c0, c1, c2
    torque_ratio: float  # m: yaw torque = torque_ratio * thrust
    rise_time: float  # s, first-order rotor lag when speeding up
    fall_time: float  # s, when slowing down
    propeller_radius: float  # m
    drag: tuple[float, float, float] = (0.0, 0.0, 0.0)  # N s/m along the body axes
    ground_effect: float = 0.0  # gain of (radius / 4 height)^2 on the thrust
    max_rpm: float | None = None  # rotor speed at command 1, where known
    sensed: tuple[str, ...] = SENSED
    commands: Group = (MOTOR_COMMAND,)
    # Limits that no policy file may widen, fields of deploy.safety.envelope.Envelope; and per command, what it may be
    # sent when it is stopped. A gyroscope of 2000 deg/s, as small vehicles have, ends at 35 rad/s.
    envelope: Mapping[str, Any] = field(default_factory=lambda: {"max_body_rate": 35.0}, hash=False)
    safe: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: {"motor_command": ((0.0,) * 4,)}, hash=False)

    def thrust(self, u: float) -> float:
        """Thrust of one rotor in newtons at the speed fraction `u`."""
        c0, c1, c2 = self.thrust_curve
        return c0 + c1 * u + c2 * u * u

    @property
    def thrust_to_weight(self) -> float:
        """Maximal thrust over weight."""
        return 4.0 * self.thrust(1.0) / (self.mass * GRAVITY)

    @property
    def hover_command(self) -> float:
        """The command (0..1) at which the four rotors carry the weight."""
        return self.command_for(self.mass * GRAVITY / 4.0)

    def command_for(self, thrust: float) -> float:
        """The command (0..1) at which one rotor gives a thrust in N; above 1 when it cannot."""
        c0, c1, c2 = self.thrust_curve
        need = thrust - c0
        if need <= 0.0:
            return 0.0
        return (math.sqrt(c1 * c1 + 4.0 * c2 * need) - c1) / (2.0 * c2) if c2 else need / c1

    @property
    def extent(self) -> float:
        """m from its centre to the tips of its propellers."""
        return float(np.linalg.norm(self.rotor_position, axis=1).max()) + self.propeller_radius

    @property
    def mixer(self) -> NDArray[np.float64]:
        """(4, 4): thrust (N), roll, pitch and yaw torque (N m) of the four rotors' thrusts (N)."""
        x, y = np.array(self.rotor_position, np.float64).T
        return np.stack([np.ones(4), y, -x, self.torque_ratio * np.array(self.rotor_direction)])

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """The physical parameters that engines take and `Vary` perturbs: name -> (k,)."""
        values = {
            "mass": (self.mass,),
            "inertia": self.inertia,
            "rotor_position": tuple(c for xy in self.rotor_position for c in xy),  # x0, y0, x1, y1, ...
            "rotor_direction": self.rotor_direction,
            "thrust_curve": self.thrust_curve,
            "thrust_scale": (1.0, 1.0, 1.0, 1.0),  # health of each rotor
            "torque_ratio": (self.torque_ratio,),
            "rise_time": (self.rise_time,),
            "fall_time": (self.fall_time,),
            "rotor_lag": (1.0,),  # factor on both time constants
            "drag": self.drag,
            "wind": (0.0, 0.0, 0.0),  # m/s, world
            "force": (0.0, 0.0, 0.0),  # N, world, external
            "torque": (0.0, 0.0, 0.0),  # N m, body, external
            "ground_effect": (self.ground_effect,),
            "propeller_radius": (self.propeller_radius,),
        }
        return {name: np.asarray(value, np.float32) for name, value in values.items()}

    def draw(self, rng: np.random.Generator, n: int) -> dict[str, NDArray[np.float32]]:
        """What differs between n copies of this robot, name -> (n, k): nothing; they are all the same vehicle."""
        return {}


def _cross(arm_x: float, arm_y: float) -> tuple[tuple[float, float], ...]:
    """An X frame: front-right, back-right, back-left, front-left."""
    return ((arm_x, -arm_y), (-arm_x, -arm_y), (-arm_x, arm_y), (arm_x, arm_y))


_SPINS = (-1.0, 1.0, -1.0, 1.0)
_RPM_PER_RAD_S = 30.0 / np.pi

# Drag of the Crazyflie 2.0: Foerster, "System Identification of the Crazyflie 2.0 Nano Quadrocopter" (ETH 2015):
# 9.1785e-7 and 10.311e-7 N s^2/(m rad) times the summed rotor speed, here at hover (4 x 1516 rad/s).
_CRAZYFLIE_DRAG = (5.57e-3, 5.57e-3, 6.25e-3)

CRAZYFLIE = Quadrotor(
    name="crazyflie",
    source="Crazyflie 2.0/2.1, bare: arplaboratory/learning-to-fly parameters/dynamics/crazy_flie.h @d07592d5; "
    "drag: Foerster 2015",
    mass=0.027,
    inertia=(3.85e-6, 3.85e-6, 5.9675e-6),
    rotor_position=_cross(0.028, 0.028),
    rotor_direction=_SPINS,
    thrust_curve=(0.0, 0.0, 3.16e-10 * 21702.0**2),
    torque_ratio=0.005964552,
    rise_time=0.15,
    fall_time=0.15,
    propeller_radius=0.0231348,
    drag=_CRAZYFLIE_DRAG,
    max_rpm=21702.0,
)

CRAZYFLIE_DECKS = Quadrotor(
    name="crazyflie_decks",
    source="Crazyflie 2.1 with decks: rl-tools/rl-tools l2f/parameters/dynamics/crazyflie.h @9acdf5c8; "
    "drag: Foerster 2015",
    mass=0.0306,
    inertia=(9.4166e-6, 9.6441e-6, 1.74595e-5),
    rotor_position=_cross(0.028, 0.028),
    rotor_direction=_SPINS,
    thrust_curve=(0.00352526, 0.01437313, 0.09223048),
    torque_ratio=4.665e-3,
    rise_time=0.05545,
    fall_time=0.24939,
    propeller_radius=0.0231348,
    drag=_CRAZYFLIE_DRAG,
)

# Thrust 4.407355e-10 rpm^2 - 3.133427e-7 rpm reaches the stated maximum of 0.2 N per rotor at this speed.
_BRUSHLESS_RPM = 21661.0

CRAZYFLIE_BRUSHLESS = Quadrotor(
    name="crazyflie_brushless",
    source=(
        "Crazyflie 2.1 Brushless: learnsyslab/crazyflow dynamics/first_principles/params.toml [cf21B_500] @0608e97c. "
        "Derived at hover (15 900 rpm): torque ratio from rpm2torque / rpm2thrust; time constants 1 / (a + 2 b rpm) "
        "from rotor_dyn_coef. Propeller: 55 mm (Bitcraze, blog on the Crazyflie 2.1 Brushless)"
    ),
    mass=0.0434,
    inertia=(25e-6, 28e-6, 49e-6),
    rotor_position=_cross(0.035355, 0.035355),
    rotor_direction=_SPINS,
    thrust_curve=(0.0, -3.133427e-7 * _BRUSHLESS_RPM, 4.407355e-10 * _BRUSHLESS_RPM**2),
    torque_ratio=6.11e-3,
    rise_time=0.0571,
    fall_time=0.0621,
    propeller_radius=0.0275,
    drag=(0.02149, 0.02149, 0.02360),
    max_rpm=_BRUSHLESS_RPM,
)

STAMPFLY = Quadrotor(
    name="stampfly",
    source=(
        "M5Stack StampFly: M5Fly-kanazawa/stampfly_ecosystem docs/architecture/stampfly-parameters.md, measured in "
        "2026. Derived: 4 269 rad/s where the battery's 3.7 V meet V = 5.39e-8 w^2 + 6.33e-4 w + 0.0153. Propeller: "
        "the rotor guard's outer radius, (81.5 mm overall - 46 mm between rotors) / 2, less 2 mm"
    ),
    mass=0.037,
    inertia=(9.16e-6, 13.3e-6, 20.4e-6),
    rotor_position=_cross(0.023, 0.023),
    rotor_direction=_SPINS,
    thrust_curve=(0.0, 0.0, 6.7e-9 * 4269.0**2),
    torque_ratio=6.12e-3,
    rise_time=0.018,
    fall_time=0.018,
    propeller_radius=0.0158,
    max_rpm=4269.0 * _RPM_PER_RAD_S,
)

RACER = Quadrotor(
    name="racer",
    source=(
        "5-inch research racer of UZH RPG: Learning on the Fly (lotf/objects, class Quadrotor): 8.5 N per "
        "rotor at 1.562522e-6 N/(rad/s)^2. Propeller: 5.1 inch (uzh-rpg/agilicious docs/hardware/overview @256bd1de)"
    ),
    mass=0.75,
    inertia=(0.002410, 0.001800, 0.003759),
    rotor_position=_cross(0.075, 0.10),
    rotor_direction=_SPINS,
    thrust_curve=(0.0, 0.0, 8.5),
    torque_ratio=0.022,
    rise_time=0.033,
    fall_time=0.033,
    propeller_radius=0.0648,
    max_rpm=2332.4 * _RPM_PER_RAD_S,
)

X500 = Quadrotor(
    name="x500",
    source=(
        "Holybro X500 as PX4 simulates it: PX4/PX4-gazebo-models models/x500 @0f0e45da, models/x500_base @008216ec. "
        "Derived: mass and inertia of the body plus its four 16 g rotors at (0.174, 0.174) m; "
        "drag = 4 x rotorDragCoefficient x 769.6 rad/s, the hover speed. Propeller: 10 inch (1045)"
    ),
    mass=2.0643,
    inertia=(0.023614, 0.023614, 0.043894),
    rotor_position=_cross(0.174, 0.174),
    rotor_direction=_SPINS,
    thrust_curve=(0.0, 0.0, 8.54858e-6 * 1000.0**2),
    torque_ratio=0.016,
    rise_time=0.0125,
    fall_time=0.025,
    propeller_radius=0.127,
    drag=(0.2483, 0.2483, 0.0),
    max_rpm=1000.0 * _RPM_PER_RAD_S,
)

X500_IDENTIFIED = Quadrotor(
    name="x500_identified",
    source=(
        "A real 2 kg X500 identified from flight data (Eschmann et al. 2024, arXiv 2404.07837): rl-tools/rl-tools "
        "l2f/parameters/dynamics/x500_real.h @078ccad0; Jxx is the inverse of its J_inv (its J has a typing error). "
        "Propeller: 10 inch (1045)"
    ),
    mass=2.0,
    inertia=(0.021705, 0.021304, 0.039396),
    rotor_position=_cross(0.1767767, 0.1767767),
    rotor_direction=_SPINS,
    thrust_curve=(0.0, 0.0, 15.9261199),
    torque_ratio=0.10847,
    rise_time=0.054,
    fall_time=0.054,
    propeller_radius=0.127,
)
