"""Random quadrotors: the vehicles that a foundation policy learns on, and is measured on.

Published sampling: "RAPTOR" (Eschmann et al. 2025, arXiv 2509.11481), rl-tools/rl-tools @e43ae4bc,
src/foundation_policy/pre_training/sample_dynamics_parameters.cpp: 0.02 to 5 kg, thrust 1.5 to 5 times the weight, 40 to
1200 rad/s^2 of roll, slow rotors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import CRAZYFLIE_DECKS, GRAVITY, Quadrotor
from sim.spec import ANY_ROBOT

Array = NDArray[np.float32]

SAMPLINGS = ("wide", "log_uniform", "uniform")
YAW_INERTIA = 0.915  # over the sum of roll and pitch, as the Crazyflie's
ARM_PER_CUBE_ROOT = 0.028 / 0.027 ** (1.0 / 3.0)  # m per kg^(1/3): the Crazyflie's rotor offset scaled by its mass


@dataclass(frozen=True)
class RandomQuadrotor(Quadrotor):
    """Every vehicle is another one. The fields of `Quadrotor` hold one in the middle.

    `sampling` says how "agility", the largest roll acceleration (rad/s^2), is drawn: "uniform" is the published way;
    "log_uniform" takes the same range and has six times as many sluggish vehicles; "wide" is for training: log-uniform
    with still more of those, other thrust curves, pitch unlike roll, drag, and a share `beyond` of vehicles from beyond
    the published ranges, such as a bare Crazyflie (2170 rad/s^2, rotors of 0.15 s), an X500 (rotors of 0.0125 s) or
    a StampFly (1.35 times its weight).
    """

    sampling: str = "wide"
    thrust_to_weights: tuple[float, float] = (1.5, 5.0)
    masses: tuple[float, float] = (0.02, 5.0)  # kg, drawn uniformly in the cube root
    agilities: tuple[float, float] = (40.0, 1200.0)  # rad/s^2
    rise_times: tuple[float, float] = (0.03, 0.10)  # s
    fall_times: tuple[float, float] = (0.03, 0.30)  # s
    torque_ratios: tuple[float, float] = (0.005, 0.05)  # m
    beyond: float = 0.1

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"sampling {self.sampling!r} is not one of {', '.join(SAMPLINGS)}")

    def _agility(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        low, high = self.agilities
        share = rng.random(n)
        if self.sampling == "uniform":
            return np.asarray(low + (high - low) * share)
        return np.asarray(low * (high / low) ** (share**1.4 if self.sampling == "wide" else share))

    def draw(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        """n random vehicles: parameter name -> (n, k)."""
        mass = rng.uniform(self.masses[0] ** (1.0 / 3.0), self.masses[1] ** (1.0 / 3.0), n) ** 3
        ratio = rng.uniform(*self.thrust_to_weights, n)
        agility = self._agility(rng, n)
        arm = ARM_PER_CUBE_ROOT * np.cbrt(mass) * rng.uniform(0.9, 1.1, n)
        rise, fall = rng.uniform(*self.rise_times, n), rng.uniform(*self.fall_times, n)
        torque_ratio = rng.uniform(*self.torque_ratios, n)
        shape = np.asarray(self.thrust_curve) / sum(self.thrust_curve)
        curve = np.tile(shape, (n, 1))
        pitch = np.ones(n)  # inertia of pitch over that of roll
        drag = np.zeros(n)  # 1/s
        if self.sampling == "wide":
            linear = rng.uniform(-0.05, 0.3, n)
            curve = np.stack([0.03 * rng.random(n), linear, 1.0 - linear], axis=1)
            curve /= curve.sum(axis=1, keepdims=True)
            pitch = rng.uniform(0.75, 1.5, n)
            drag = rng.uniform(0.0, 0.4, n)
            outside = rng.random(n) < self.beyond
            ratio = np.where(rng.random(n) < self.beyond, rng.uniform(1.3, 1.7, n), ratio)
            agility = np.where(outside, np.exp(rng.uniform(np.log(100.0), np.log(2500.0), n)), agility)
            rise = np.where(outside, np.exp(rng.uniform(np.log(0.01), np.log(0.16), n)), rise)
            fall = np.where(outside, rise * rng.uniform(1.0, 2.0, n), fall)
            torque_ratio = np.where(outside, arm * rng.uniform(0.07, 0.7, n), torque_ratio)
        thrust = ratio * mass * GRAVITY / 4.0  # N, the largest of one rotor
        roll = 2.0 * thrust * arm / agility
        position = np.array([1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
        values = {
            "mass": mass,
            "inertia": np.stack([roll, pitch * roll, YAW_INERTIA * (1.0 + pitch) * roll], axis=1),
            "rotor_position": arm[:, None] * position,
            "thrust_curve": thrust[:, None] * curve,
            "torque_ratio": torque_ratio,
            "rise_time": rise,
            "fall_time": fall,
            "propeller_radius": 0.8 * arm,
            "drag": np.tile((mass * drag)[:, None], (1, 3)),
        }
        return {k: np.ascontiguousarray(v.reshape(n, -1), np.float32) for k, v in values.items()}


def _random_quadrotor(name: str, sampling: str) -> RandomQuadrotor:
    """The random vehicle, drawn in one of the ways `SAMPLINGS`; its nominal one has 0.5 kg and rolls at 220 rad/s^2."""
    mass = 0.5
    arm = ARM_PER_CUBE_ROOT * mass ** (1.0 / 3.0)
    thrust = 2.5 * mass * GRAVITY / 4.0
    roll = 2.0 * thrust * arm / 220.0
    c0, c1, c2 = CRAZYFLIE_DECKS.thrust_curve  # the published shape
    scale = thrust / (c0 + c1 + c2)
    return RandomQuadrotor(
        name=name,
        source="drawn at random, see sim/robots/random_quadrotor.py",
        mass=mass,
        inertia=(roll, roll, 2.0 * YAW_INERTIA * roll),
        rotor_position=((arm, -arm), (-arm, -arm), (-arm, arm), (arm, arm)),
        rotor_direction=CRAZYFLIE_DECKS.rotor_direction,
        thrust_curve=(scale * c0, scale * c1, scale * c2),
        torque_ratio=0.02,
        rise_time=0.06,
        fall_time=0.12,
        propeller_radius=0.8 * arm,
        sampling=sampling,
    )


ANY = _random_quadrotor(ANY_ROBOT, "wide")
ANY_LOG_UNIFORM = _random_quadrotor("any_log_uniform", "log_uniform")
ANY_UNIFORM = _random_quadrotor("any_uniform", "uniform")
