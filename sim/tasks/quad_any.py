"""One policy for any quadrotor: recover, go to, hold and follow a target with a vehicle that it never saw.

After "RAPTOR" (Eschmann et al. 2025, arXiv 2509.11481): the policy sees position, rotation, velocity and body rate,
relative to its target, and its own last command; what it flies it must find out by flying. Every episode is another
vehicle (`sim/robots/random_quadrotor.py`) unless `robot` names an airframe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sim.conditions import Grid
from sim.randomize import Array, Vary
from sim.robots.quadrotors import GRAVITY
from sim.spec import ANY_ROBOT, Group, Signal
from sim.tasks import Recipes, targets
from sim.tasks.quad_hover import (
    LATENCIES,
    POSITION_SCALE,
    PRIVILEGED,
    RATE_SCALE,
    VELOCITY_SCALE,
    HoverConfig,
    QuadHover,
)
from sim.terms import Cost, Feature

WAVES = 2
PATHS = ("hold", "figure_eight", "random", "mixed")
SAG = 0.9  # share of its thrust that a rotor has on an empty battery


@dataclass
class AnyConfig(HoverConfig):
    """Settings of quad_any: those of quad_hover, and what the target does."""

    robot: str = ANY_ROBOT  # any, any_log_uniform, any_published (random vehicles), or an airframe
    path: str = "mixed"  # hold | figure_eight | random | mixed: most hold, some random
    moving: float = 0.2  # share of the episodes of a mixed path in which the target moves
    size: float = 1.0  # m, half the length of the figure-eight
    period: float = 5.5  # s
    speed: float = 1.5  # m/s, bounds of the random paths
    acceleration: float = 3.0  # m/s^2
    guidance: float = 0.0
    history: int = 1
    delay_high: float = 0.022  # s

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path not in PATHS:
            raise ValueError(f"path {self.path!r} is not one of {', '.join(PATHS)}")
        if not 0.0 <= self.moving <= 1.0:
            raise ValueError(f"moving is a share of the episodes, 0..1, got {self.moving}")


class QuadAny(QuadHover):
    """Success: within 0.3 m of the target during the whole last second. "precise" is the share within 0.1 m."""

    Config = AnyConfig
    name = "quad_any"
    recipes: ClassVar[Recipes] = {
        "apg": {
            "default": {"algorithm.updates": 20000, "algorithm.learning_rate": 7e-3},
            "robust": {
                "algorithm.updates": 140000,
                "algorithm.hidden": [16, 16],
                "algorithm.learning_rate": 5e-3,
                "algorithm.gradient_clip": 0.1,
                "task.noise": 10.0,
                "task.tilt": 180.0,
                "task.delay_high": 0.03,
            },
        }
    }
    privileged: Group = (
        *PRIVILEGED,
        Signal("inertia", (3,), "kg m^2"),
        Signal("thrust_curve", (3,), "N"),
        Signal("torque_ratio", (1,), "m"),
        Signal("rise_time", (1,), "s"),
        Signal("fall_time", (1,), "s"),
    )
    scores = {
        "success": "1",
        "precise": "1",
        "position_error": "m",
        "tracking_error": "m",
        "settling_time": "s",
        "control_effort": "1",
    }
    lost_distance = 10.0  # m
    close = 0.3  # m
    precise = 0.1  # m

    def __init__(self, config: AnyConfig) -> None:
        super().__init__(config)
        self.path = config
        self.policy: Group = (*self.policy, Signal("target_velocity", (3,), "m/s", "world", max_age=1.0))
        self.features = (
            Feature("position", minus="target_position", squash=POSITION_SCALE),
            Feature("rotation"),
            Feature("linear_velocity", minus="target_velocity", squash=VELOCITY_SCALE),
            Feature("angular_velocity", scale=RATE_SCALE),
            Feature("history"),
        )
        self.costs = (
            Cost("position", "position", 1.0, "log", minus="target_position", softening=0.05),
            Cost("velocity", "linear_velocity", 0.05, minus="target_velocity"),
            Cost("body_rate", "angular_velocity", 0.002),
            Cost("attitude", "rotation", 0.1, "attitude"),
            Cost("action_change", "action_change", 0.03),
        )
        if self.robot.all_differ:
            self.vary = ()
            self.grid = Grid(LATENCIES, (1.0,), ((1.0, 1.0),))  # they differ in the rest by more than those of one name
        if config.robust:
            self.vary = (
                Vary("thrust_scale", 0.8, 1.2, independent=True),
                Vary("thrust_scale", SAG, 1.0, every=2.56),
                Vary("force", 0.0, 0.05 * GRAVITY, "set", "normal", independent=True, per="mass"),
                Vary("torque", 0.0, 0.5, "set", "normal", independent=True, per="inertia"),
                Vary("wind", 0.0, 2.0, "set", "normal", independent=True, every=1.28),
            )

    def _motions(self, rng: np.random.Generator, n: int, centre: Array) -> Array:
        c = self.path
        still = targets.widen(targets.hold(centre), WAVES)
        if c.path == "hold":
            return still
        if c.path == "figure_eight":
            return targets.widen(targets.figure_eight(rng, n, c.size, c.period, centre), WAVES)
        smooth = targets.smooth_random(rng, n, c.speed, c.acceleration, WAVES, centre)
        moves = rng.random(n) < (1.0 if c.path == "random" else c.moving)
        return np.where(moves[:, None, None], smooth, still)

    def reset(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        state = super().reset(rng, n)
        centre = targets.position_at(state["motion"], np.zeros(n, np.float32))
        targets.move_start(state, self._motions(rng, n, centre))
        return state

    def reference(self, motion_: Any, time: Any) -> dict[str, Any]:
        return {
            "target_position": targets.position_at(motion_, time),
            "target_velocity": targets.velocity_at(motion_, time),
        }

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        error = np.linalg.norm(flight["position"] - flight["target_position"], axis=-1)
        error = np.where(np.isfinite(error), error, np.inf)
        second = round(self.rate_hz)
        settled = error[min(2 * second, len(error) // 2) :]  # after two seconds; in the second half of a short flight
        return super().score(flight) | {
            "precise": (error[-second:].max(axis=0) < self.precise).astype(np.float32),
            "tracking_error": np.sqrt((settled**2).mean(axis=0)).astype(np.float32),
        }
