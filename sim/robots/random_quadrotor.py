"""Random quadrotors: the vehicles that a foundation policy learns on, and is measured on.

Published sampling: "RAPTOR" (Eschmann et al. 2025, arXiv 2509.11481), rl-tools/rl-tools @e43ae4bc: ranges in
src/foundation_policy/pre_training/sample_dynamics_parameters.cpp, what they mean in
l2f/operations_generic/10_sample_initial_parameters.h. Vehicles of 0.02 to 5 kg, thrust of 1.5 to 5 times the weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import CRAZYFLIE_DECKS, GRAVITY, Quadrotor
from sim.spec import ANY_ROBOT

Array = NDArray[np.float32]
Double = NDArray[np.float64]

SAMPLINGS = ("wide", "extended", "log_uniform", "published")
SMALL_AND_LARGE = 0.2  # share of each in "extended"
ARM_PER_CUBE_ROOT = 0.028 / 0.027 ** (1.0 / 3.0)  # m per kg^(1/3): the Crazyflie's rotor offset scaled by its mass
SHAPE = np.asarray(CRAZYFLIE_DECKS.inertia) / CRAZYFLIE_DECKS.inertia[0]  # inertia over that of roll
# Of "extended": mass (kg), agility (rad/s^2), rise time (s), torque ratio over arm; log-uniform.
NANO = ((0.0025, 0.03), (1500.0, 5000.0), (0.01, 0.03), (0.07, 0.7))
LIFTER = ((4.0, 27.0), (22.0, 90.0), (0.05, 0.2), (0.03, 0.4))
YAW_INERTIA = 0.915  # over the sum of roll and pitch, as the Crazyflie's


@dataclass(frozen=True)
class RandomQuadrotor(Quadrotor):
    """Every vehicle is another one. The fields of `Quadrotor` hold one in the middle.

    What decides how hard a vehicle is to fly is its agility, the largest angular acceleration in roll (rad/s^2):

    - "published": to the letter. Agility over the square root of 2, uniform in 40..1200; one thrust curve.
    - "log_uniform": agility log-uniform in 40..1200, which has six times as many sluggish vehicles.
    - "wide": for training. More sluggish ones still, other thrust curves, pitch unlike roll, drag; shares `beyond` have
      less thrust, or are from outside the published ranges, as a bare Crazyflie (2170 rad/s^2, rotors of 0.15 s), an
      X500 (rotors of 0.0125 s) or a StampFly (1.35 times its weight) are.
    - "extended": "wide", and shares `SMALL_AND_LARGE` of nanos (from 2.5 g, up to 5000 rad/s^2) and of lifters (up to
      27 kg, from 22 rad/s^2, rotors of up to 0.2 s).
    """

    all_differ: ClassVar[bool] = True

    sampling: str = "wide"
    beyond: float = 0.1
    thrust_to_weights: tuple[float, float] = (1.5, 5.0)
    masses: tuple[float, float] = (0.02, 5.0)  # kg, drawn uniformly in the cube root
    agilities: tuple[float, float] = (40.0, 1200.0)  # rad/s^2
    rise_times: tuple[float, float] = (0.03, 0.10)  # s
    fall_times: tuple[float, float] = (0.03, 0.30)  # s
    torque_ratios: tuple[float, float] = (0.005, 0.05)  # m

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"sampling {self.sampling!r} is not one of {', '.join(SAMPLINGS)}")

    def draw(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        """n random vehicles: parameter name -> (n, k)."""
        mass = rng.uniform(self.masses[0] ** (1.0 / 3.0), self.masses[1] ** (1.0 / 3.0), n) ** 3
        thrust = rng.uniform(*self.thrust_to_weights, n) * mass * GRAVITY / 4.0  # N, the largest of one rotor
        arm = ARM_PER_CUBE_ROOT * np.cbrt(mass) * rng.uniform(0.9, 1.1, n)  # m, along x and along y
        low, high = self.agilities
        agility = low * (high / low) ** rng.random(n)
        values = {
            "mass": mass,
            "torque_ratio": rng.uniform(*self.torque_ratios, n),
            "rise_time": rng.uniform(*self.rise_times, n),
            "fall_time": rng.uniform(*self.fall_times, n),
        }
        curve = np.asarray(self.thrust_curve) / sum(self.thrust_curve) * np.ones((n, 1))
        shape = SHAPE * np.ones((n, 1))
        if self.sampling == "published":
            deviation = rng.normal(-0.1, 0.1, n)  # its mean is where the range of +-0.1 begins: most arms are short
            arm = CRAZYFLIE_DECKS.rotor_position[0][0] * np.cbrt(mass / CRAZYFLIE_DECKS.mass)
            arm *= np.where(deviation < 0.0, 1.0 / (1.0 - deviation), 1.0 + deviation)
            agility = np.sqrt(2.0) * rng.uniform(low, high, n)
        elif self.sampling in ("wide", "extended"):
            agility = low * (np.sqrt(2.0) * high / low) ** (rng.random(n) ** 1.4)
            linear = rng.uniform(-0.05, 0.3, n)
            curve = np.stack([0.03 * rng.random(n), linear, 1.0 - linear], axis=1)
            curve /= curve.sum(axis=1, keepdims=True)
            pitch = rng.uniform(0.75, 1.5, n)
            shape = np.stack([np.ones(n), pitch, YAW_INERTIA * (1.0 + pitch)], axis=1)
            weak, outside = rng.random((2, n)) < self.beyond
            thrust = np.where(weak, rng.uniform(1.3, 1.7, n) * mass * GRAVITY / 4.0, thrust)
            agility = np.where(outside, np.exp(rng.uniform(np.log(100.0), np.log(2500.0), n)), agility)
            rise = np.exp(rng.uniform(np.log(0.01), np.log(0.16), n))
            values["rise_time"] = np.where(outside, rise, values["rise_time"])
            values["fall_time"] = np.where(outside, rise * rng.uniform(1.0, 2.0, n), values["fall_time"])
            values["torque_ratio"] = np.where(outside, arm * rng.uniform(0.07, 0.7, n), values["torque_ratio"])
            values["drag"] = np.tile((mass * rng.uniform(0.0, 0.4, n))[:, None], (1, 3))
        if self.sampling == "extended":
            mass, arm, thrust, agility = self._small_and_large(rng, values, mass, arm, thrust, agility)
        corners = np.array([1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
        values |= {
            "inertia": (2.0 * thrust * arm / agility)[:, None] * shape,
            "rotor_position": arm[:, None] * corners,
            "thrust_curve": thrust[:, None] * curve,
            "propeller_radius": 0.8 * arm,
        }
        return {k: np.ascontiguousarray(v.reshape(n, -1), np.float32) for k, v in values.items()}

    @staticmethod
    def _small_and_large(
        rng: np.random.Generator, values: dict[str, Double], mass: Double, arm: Double, thrust: Double, agility: Double
    ) -> tuple[Double, Double, Double, Double]:
        """Turn some of the n vehicles into nanos and lifters; mass, arm, thrust and agility (n,), and `values`."""
        n, kind = len(mass), rng.random(len(mass))
        for low, ranges in ((0.0, NANO), (SMALL_AND_LARGE, LIFTER)):
            chosen = (low <= kind) & (kind < low + SMALL_AND_LARGE)
            m, a, rise, ratio = (np.exp(rng.uniform(np.log(r[0]), np.log(r[1]), n)) for r in ranges)
            length = ARM_PER_CUBE_ROOT * np.cbrt(m) * rng.uniform(0.9, 1.1, n)
            thrust = np.where(chosen, thrust * m / mass, thrust)  # the same share of the weight
            values["drag"] = np.where(chosen[:, None], values["drag"] * (m / mass)[:, None], values["drag"])
            fall = rise * rng.uniform(1.0, 2.0, n)
            for name, value in (("rise_time", rise), ("fall_time", fall), ("torque_ratio", ratio * length)):
                values[name] = np.where(chosen, value, values[name])
            mass, arm, agility = (np.where(chosen, new, old) for new, old in ((m, mass), (length, arm), (a, agility)))
        values["mass"] = mass
        return mass, arm, thrust, agility


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
"""Random quadrotors to train on: 0.02 to 5 kg, more sluggish ones and shares of odd ones."""

ANY_EXTENDED = _random_quadrotor(ANY_ROBOT, "extended")
ANY_LOG_UNIFORM = _random_quadrotor("any_log_uniform", "log_uniform")
"""Random quadrotors of 0.02 to 5 kg, agility log-uniform in 40 to 1200 rad/s^2."""

ANY_PUBLISHED = _random_quadrotor("any_published", "published")
"""Random quadrotors of 0.02 to 5 kg, drawn as RAPTOR's publication says."""
