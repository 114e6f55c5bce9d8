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
from sim.robots.random_quadrotor import ANY_EXTENDED
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
from sim.terms import Cost, Feature, namespace

WAVES = 2
HEADING = "target_heading"  # cosine and sine of its angle from the world's x
PATHS = ("hold", "figure_eight", "random", "mixed")
ACCELERATION_SCALE = 0.1  # s^2/m
RANGES = ("usual", "wide")
# Of the paths that are seen ahead: their share of the episodes at least, and what bounds them. Two metres in three
# seconds, or six in five, take 9 m/s^2.
AGILE, AGILE_SPEED, AGILE_ACCELERATION, AGILE_SIZES = 0.5, 6.0, 12.0, (0.3, 4.0)  # 1, m/s, m/s^2, m
LOST_EVERY = 2.56  # s, after which another rotor may be the lost one
SAG = 0.9  # share of its thrust that a rotor has on an empty battery


@dataclass
class AnyConfig(HoverConfig):
    """Settings of quad_any: those of quad_hover, and what the target does."""

    robot: str = ANY_ROBOT  # any, any_log_uniform, any_published (random vehicles), or an airframe
    path: str = "mixed"  # hold | figure_eight | random | mixed: most hold, some random
    moving: float = 0.2  # share of the episodes of a mixed path in which the target moves
    size: float = 1.0  # m, half the length of the figure-eight
    period: float = 5.5  # s
    speed: float = 1.5  # m/s, bounds of the random paths; with preview they are 6 m/s and 12 m/s^2
    acceleration: float = 3.0  # m/s^2
    range: str = "usual"  # usual | wide: of the random vehicles of training; wide is 2.5 g to 27 kg
    preview: bool = False  # the policy is told the path ahead, and learns quicker paths, whose bounds are fixed
    preview_s: float = 0.15  # s between the points that it is told
    preview_points: int = 2
    lost: float = 0.0  # share of the time that a vehicle flies on three rotors
    heading: bool = False  # the policy is told where to turn its nose
    guidance: float = 0.0
    history: int = 1
    delay_high: float = 0.022  # s

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path not in PATHS:
            raise ValueError(f"path {self.path!r} is not one of {', '.join(PATHS)}")
        if not 0.0 <= self.moving <= 1.0:
            raise ValueError(f"moving is a share of the episodes, 0..1, got {self.moving}")
        if not 0.0 <= self.lost <= 1.0:
            raise ValueError(f"lost is a share of the time, 0..1, got {self.lost}")
        if self.range not in RANGES:
            raise ValueError(f"range {self.range!r} is not one of {', '.join(RANGES)}")
        if not (self.preview_s > 0.0 and 1 <= self.preview_points <= 16):
            raise ValueError(
                f"needs preview_s > 0 and 1 to 16 preview_points, got {self.preview_s} and {self.preview_points}"
            )
        usual = AnyConfig.speed, AnyConfig.acceleration
        if self.preview and (self.speed, self.acceleration) != usual:  # files of a preview have recorded the usual ones
            raise ValueError(
                f"preview has paths of its own, up to {AGILE_ACCELERATION:g} m/s^2: "
                f"leave speed at {usual[0]:g} and acceleration at {usual[1]:g}"
            )


_POINTS = {
    "target_preview": targets.position_at,
    "target_preview_velocity": targets.velocity_at,
    "target_preview_acceleration": targets.acceleration_at,
}
_AHEAD = (
    Feature("target_acceleration", scale=ACCELERATION_SCALE),
    Feature("target_preview", minus="target_position", squash=POSITION_SCALE),
    Feature("target_preview_velocity", minus="target_velocity", squash=VELOCITY_SCALE),
    Feature("target_preview_acceleration", scale=ACCELERATION_SCALE),
)


def _told(config: AnyConfig) -> Group:
    """What the policy is told of its target, besides where it is."""

    def told(name: str, unit: str, points: int = 1) -> Signal:
        return Signal(name, (3 * points,), unit, "world", max_age=1.0)

    group: Group = (told("target_velocity", "m/s"),)
    if config.preview:
        units = dict(zip(_POINTS, ("m", "m/s", "m/s^2"), strict=True))
        points = (told(name, unit, config.preview_points) for name, unit in units.items())
        group += (told("target_acceleration", "m/s^2"), *points)
    if config.heading:
        group += (Signal(HEADING, (2,), "1", "world", -1.1, 1.1, max_age=1.0),)
    return group


class QuadAny(QuadHover):
    """Success: within 0.3 m of the target during the whole last second. "precise" is the share within 0.1 m."""

    Config = AnyConfig
    name = "quad_any"
    recipes: ClassVar[Recipes] = {
        "apg": {
            "default": {"algorithm.updates": 20000, "algorithm.learning_rate": 7e-3},
            "wide": {  # 2.5 g to 27 kg, told the path ahead
                "task.range": "wide",
                "task.preview": True,
                "algorithm.updates": 40000,
                "algorithm.hidden": [32, 32],
                "algorithm.learning_rate": 7e-3,
                "algorithm.final_learning_rate": 2e-4,
                "algorithm.gradient_clip": 0.2,
                "algorithm.adjoint_power": 1.0,
            },
            "lost": {  # flies on three rotors, too
                "task.lost": 0.7,
                "task.path": "hold",
                "task.delay_high": 0.015,
                "algorithm.updates": 10000,
                "algorithm.hidden": [32, 32],
                "algorithm.learning_rate": 7e-3,
                "algorithm.gradient_clip": 0.2,
                "algorithm.adjoint_power": 1.0,
            },
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
        if config.range == "wide" and config.robot == ANY_ROBOT:
            self.robot = ANY_EXTENDED
        self.policy: Group = (*self.policy, *_told(config))
        self.heading = HEADING if config.heading else ""
        if config.heading:
            self.scores = {**QuadAny.scores, "heading_error": "rad"}
        self.features = (
            Feature("position", minus="target_position", squash=POSITION_SCALE),
            Feature("rotation"),
            Feature("linear_velocity", minus="target_velocity", squash=VELOCITY_SCALE),
            Feature("angular_velocity", scale=RATE_SCALE),
            *(_AHEAD if config.preview else ()),
            Feature("history"),
        )
        self.costs = (
            Cost("position", "position", 1.0, "log", minus="target_position", softening=0.05),
            Cost("velocity", "linear_velocity", 0.05, minus="target_velocity"),
            Cost("body_rate", "angular_velocity", 0.0002 if config.lost else 0.002),  # on three rotors it has to spin
            Cost("attitude", "rotation", 0.05 if config.preview else 0.1, "attitude"),
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
        if config.lost > 0.0:  # in the place of an empty battery: of one parameter one thing changes in flight
            kept = tuple(v for v in self.vary if v.name != "thrust_scale" or v.every is None)
            self.vary = (*kept, Vary("thrust_scale", 0.0, config.lost, distribution="one", every=LOST_EVERY))

    def _motions(self, rng: np.random.Generator, n: int, centre: Array) -> Array:
        c = self.path
        still = targets.widen(targets.hold(centre), WAVES)
        if c.path == "hold":
            return still
        if c.path == "figure_eight":
            return targets.widen(targets.figure_eight(rng, n, c.size, c.period, centre), WAVES)
        smooth = targets.smooth_random(rng, n, c.speed, c.acceleration, WAVES, centre)
        if c.preview:
            smooth = self._agile(rng, n, centre)
        share = max(c.moving, AGILE) if c.preview else c.moving
        moves = rng.random(n) < (1.0 if c.path == "random" else share)
        return np.where(moves[:, None, None], smooth, still)

    def _agile(self, rng: np.random.Generator, n: int, centre: Array) -> Array:
        """Paths that are seen ahead: figure-eights of any size and random ones."""
        smooth = targets.smooth_random(rng, n, AGILE_SPEED, AGILE_ACCELERATION, WAVES, centre)
        size = np.exp(rng.uniform(np.log(AGILE_SIZES[0]), np.log(AGILE_SIZES[1]), n))
        most = rng.uniform(1.0, AGILE_ACCELERATION, n)  # of a figure-eight: 2.1 size (2 pi / period)^2
        eight = targets.figure_eight(rng, n, size, 2.0 * np.pi * np.sqrt(2.1 * size / most), centre)
        return np.where(rng.random(n)[:, None, None] < 0.5, targets.widen(eight, WAVES), smooth)

    def reset(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        state = super().reset(rng, n)
        centre = targets.position_at(state["motion"], np.zeros(n, np.float32))
        targets.move_start(state, self._motions(rng, n, centre))
        if self.heading:  # the phase of one more sinusoid, which has no amplitude
            motion = targets.widen(state["motion"], (state["motion"].shape[2] - 1) // 3 + 1)
            motion[:, 2, -1] = rng.uniform(-np.pi, np.pi, n)
            state["motion"] = motion
        return state

    def reference(self, motion_: Any, time: Any) -> dict[str, Any]:
        c = self.path
        told = {
            "target_position": targets.position_at(motion_, time),
            "target_velocity": targets.velocity_at(motion_, time),
        }
        if c.preview:
            told["target_acceleration"] = targets.acceleration_at(motion_, time)
            times = [time + (k + 1) * c.preview_s for k in range(c.preview_points)]
            for name, of in _POINTS.items():
                told[name] = namespace(motion_).concatenate([of(motion_, when) for when in times], -1)
        if self.heading:
            xp, angle = namespace(motion_), motion_[:, 2, -1]
            told[HEADING] = xp.stack([xp.cos(angle), xp.sin(angle)], -1)
        return told

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        error = np.linalg.norm(flight["position"] - flight["target_position"], axis=-1)
        error = np.where(np.isfinite(error), error, np.inf)
        second = round(self.rate_hz)
        settled = error[min(2 * second, len(error) // 2) :]  # after two seconds; in the second half of a short flight
        scores = super().score(flight) | {
            "precise": (error[-second:].max(axis=0) < self.precise).astype(np.float32),
            "tracking_error": np.sqrt((settled**2).mean(axis=0)).astype(np.float32),
        }
        if self.heading:
            nose, told = flight["rotation"][-second:, :, 0:6:3], flight[HEADING][-second:]  # cosine and sine, scaled
            off = np.arctan2(nose[..., 1], nose[..., 0]) - np.arctan2(told[..., 1], told[..., 0])
            scores["heading_error"] = np.abs((off + np.pi) % (2.0 * np.pi) - np.pi).mean(axis=0).astype(np.float32)
        return scores
