"""Recover a thrown quadrotor, go to a set point and hold it, with direct motor commands.

Start distribution: "Learning to Fly in Seconds" (Eschmann et al. 2024), the wider variant of rl-tools' zoo
(init_90_deg: +-0.5 m, tilt up to 90 degrees, +-1 m/s, +-1 rad/s, rotors in the lower half of their speed range).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sim.conditions import Grid
from sim.env import NoExpertError
from sim.experts.quad_pid import CascadedPid
from sim.randomize import Array, Delay, Noise, Vary
from sim.robots import robot
from sim.robots.mirrors import quadrotor_mirrors
from sim.robots.quadrotors import GRAVITY
from sim.spec import Group, Signal
from sim.tasks import Recipes, targets
from sim.terms import Bound, Cost, Curriculum, Feature

# The sensor noise of "Learning to Fly in Seconds": m, 1, m/s, rad/s.
NOISE = {"position": 0.001, "rotation": 0.001, "linear_velocity": 0.002, "angular_velocity": 0.002}


def state_estimate(noise: float) -> Group:
    """What the on-board estimator provides, with the published noise times `noise`."""

    def sensed(name: str, shape: int, unit: str, frame: str, limit: float = math.inf) -> Signal:
        imperfections = (Noise(noise * NOISE[name]),)
        return Signal(name, (shape,), unit, frame, low=-limit, high=limit, imperfections=imperfections)

    return (
        sensed("position", 3, "m", "world"),
        sensed("rotation", 9, "1", "body->world", 1.1),
        sensed("linear_velocity", 3, "m/s", "world"),
        sensed("angular_velocity", 3, "rad/s", "body"),
    )


PRIVILEGED: Group = (
    Signal("rotor_speed", (4,), "1"),
    Signal("mass", (1,), "kg"),
    Signal("thrust_scale", (4,), "1"),
    Signal("rotor_lag", (1,), "1"),
    Signal("force", (3,), "N", "world"),
    Signal("torque", (3,), "N m", "body"),
    Signal("delay", (1,), "1"),
)

# Beyond these errors per axis the network sees position and velocity compressed (facts: quad_any, section 1).
POSITION_SCALE = 1.0  # m
VELOCITY_SCALE = 3.0  # m/s
RATE_SCALE = 0.1  # s/rad


REWARDS = ("smooth", "l2f", "precise")
# Half the range of the factors on mass and thrust, the range of that on the time constants of the rotors, the share of
# draws at the ends of these ranges. "wide" is what vehicles of one name show: one identification of the Crazyflie's
# rotors is 0.37 (rising) and 1.66 (falling) times the other (sources: `sim/robots/quadrotors.py`).
VARIATIONS = {"narrow": (0.10, (0.7, 1.4), 0.0), "wide": (0.22, (0.34, 1.9), 0.4)}
# m. A heavy vehicle with weak and slow rotors sinks by 2 m (median of the worst cell) before it recovers: if it counted
# as lost there, it would never be trained on the way back.
FAR = 10.0
ROBUST = (0.25, (0.45, 1.8))  # at least
# The grid: the latencies of a cable, a radio and a network; a quadrotor's least known number; batteries and loads.
LATENCIES = (0.0, 0.010, 0.020)  # s
ROTOR_LAGS = (0.4, 0.6, 1.0, 1.6)
MASS_AND_THRUST = ((1.0, 1.0), (0.85, 0.85), (0.85, 1.15), (1.15, 0.85), (1.15, 1.15))
# What apg needs for the whole grid.
COVERING: dict[str, Any] = {
    "task.variation": "wide",
    "task.delay_high": 0.026,
    "algorithm.hidden": [32, 32],
    "algorithm.learning_rate": 1.2e-2,
    "algorithm.gradient_clip": 0.15,
}


def l2f_reward(hover_action: float) -> tuple[tuple[Cost, ...], tuple[Curriculum, ...]]:
    """Costs and curriculum of "Learning to Fly in Seconds": 2 - 0.5 (5 p^2 + 5 (1 - q_w^2) + 0.01 v^2 + 0.01 a^2).

    Every 100 000 steps the weight of the action grows 1.4 fold (to 1 at most), that of position 1.2 fold (40), that of
    velocity 1.4 fold (1); a is the action's distance from hovering. Source: arplaboratory/learning-to-fly @d07592d5,
    src/config/parameters.h and src/steps/curriculum.h.
    """
    costs = (
        Cost("position", "position", 2.5, minus="target_position"),
        Cost("attitude", "rotation", 2.5, "attitude"),
        Cost("velocity", "linear_velocity", 0.005),
        Cost("action", "action", 0.005, offset=hover_action),
    )
    curriculum = (
        Curriculum("position", 2.5, 1.2, 100_000, 20.0),
        Curriculum("velocity", 0.005, 1.4, 100_000, 0.5),
        Curriculum("action", 0.005, 1.4, 100_000, 0.5),
    )
    return costs, curriculum


def delayed(commands: Group, low: float, high: float) -> Group:
    """The robot's commands, executed with a latency drawn in [low, high] seconds."""
    return tuple(
        Signal(c.name, c.shape, c.unit, c.frame, c.low, c.high, c.max_age, imperfections=(Delay(low, high),))
        for c in commands
    )


def random_tilt(rng: np.random.Generator, n: int, degrees: float) -> Array:
    """Quaternions (n, 4): uniform over the rotations by at most `degrees`."""
    limit = np.radians(degrees)
    share = rng.random(n) * (limit - np.sin(limit))  # a uniform rotation's angle has the density 1 - cos(angle)
    angle = np.cbrt(6.0 * share)
    for _ in range(6):  # Newton; the cube root is the solution for small angles
        angle -= (angle - np.sin(angle) - share) / np.maximum(1.0 - np.cos(angle), 1e-12)
    axis = rng.normal(size=(n, 3))
    axis *= (np.sin(0.5 * angle) / np.linalg.norm(axis, axis=1))[:, None]
    return np.concatenate([np.cos(0.5 * angle)[:, None], axis], axis=1).astype(np.float32)


@dataclass
class HoverConfig:
    """Settings of quad_hover."""

    robot: str = "crazyflie"
    rate_hz: float = 100.0
    episode_s: float = 5.0
    position: float = 0.5  # m, start within +- this of the target, per axis
    tilt: float = 90.0  # degrees, largest rotation at the start
    velocity: float = 1.0  # m/s
    body_rate: float = 1.0  # rad/s
    rotor_speed: float = 0.5  # start anywhere from still to this fraction
    guidance: float = 0.1  # share of episodes that start at rest on the target
    delay_low: float = 0.0  # s, latency between command and rotor
    delay_high: float = 0.022  # s
    history: int = 3  # own past actions that the policy sees
    noise: float = 1.0  # factor on the sensor noise
    # smooth | l2f: the squared costs and the curriculum of "Learning to Fly in Seconds" | precise: for trial and error
    reward: str = "smooth"
    variation: str = "narrow"  # narrow | wide: of mass, thrust and rotor lag; wide covers the grid below
    robust: bool = False  # at least that of ROBUST, more latency, and a constant push

    def __post_init__(self) -> None:
        if self.rate_hz <= 0 or self.episode_s <= 0:
            raise ValueError(f"rate_hz and episode_s must be positive, got {self.rate_hz} and {self.episode_s}")
        if not 0 <= self.delay_low <= self.delay_high:
            low, high = self.delay_low, self.delay_high
            raise ValueError(f"needs 0 <= delay_low <= delay_high, in seconds, got {low} and {high}")
        if not 0 <= self.tilt <= 180:
            raise ValueError(f"tilt must be in 0..180 degrees, got {self.tilt}")
        if self.reward not in REWARDS:
            raise ValueError(f"reward {self.reward!r} is not one of {', '.join(REWARDS)}")
        if self.variation not in VARIATIONS:
            raise ValueError(f"variation {self.variation!r} is not one of {', '.join(VARIATIONS)}")
        if not 1 <= self.history <= 32:
            raise ValueError(f"history must be in 1..32 past actions, got {self.history}")


class QuadHover:
    """Success: within 0.2 m of the target during the whole last second."""

    Config = HoverConfig
    name = "quad_hover"
    algorithm = "apg"
    engine = "flight"
    goal = "target_position"
    # Without gradients and without a recurrent state, the rotors' speeds must be seen in the past actions.
    recipes: ClassVar[Recipes] = {
        "apg": {
            "default": {"algorithm.updates": 1500, **COVERING},
            "quick": {},
            "high": {**COVERING, "algorithm.updates": 5000, "algorithm.learning_rate": 1e-2},
            "robust": {"algorithm.updates": 8000, "algorithm.learning_rate": 1e-2},
        },
        "ppo": {
            "default": {
                "task.history": 8,
                "task.reward": "precise",
                "task.delay_high": 0.024,
                "algorithm.total_steps": 9_000_000,
                "algorithm.final_learning_rate": 5e-5,
                "algorithm.final_gamma": 0.99,
                "algorithm.final_lengths": [0.1, 0.8],
                "algorithm.final_easy": 0.2,
                "algorithm.min_std": 0.045,
            }
        },
        "sac": {
            "default": {
                "task.history": 8,
                "algorithm.total_steps": 3_000_000,
                "algorithm.num_envs": 256,
                "algorithm.warmup_steps": 20_000,
                "algorithm.capacity": 300_000,
                "algorithm.batch_size": 128,
                "algorithm.updates_per_step": 8,
                "algorithm.n_step": 3,
                "algorithm.correlation": 0.7,
                "algorithm.critic_hidden": [64, 64],
                "algorithm.final_learning_rate": 1e-5,
                "algorithm.averaged": 0.3,
            }
        },
        "dagger": {
            "default": {
                "task.history": 16,
                "algorithm.base.kind": "regression",
                "algorithm.base.horizon": 1,
                "algorithm.base.corruption": 0.0,
                "algorithm.base.episodes": 40,
                "algorithm.base.updates": 1000,
                "algorithm.total_steps": 250_000,
                "algorithm.num_envs": 64,
                "algorithm.episodes_per_round": 64,
                "algorithm.updates_per_round": 1000,
                "algorithm.shown": 0.1,
            }
        },
    }
    privileged = PRIVILEGED
    scores = {"success": "1", "position_error": "m", "settling_time": "s", "control_effort": "1"}
    lost_distance = 2.0  # m
    lost_rate = 35.0  # rad/s
    envelope: ClassVar[dict[str, float]] = {"max_body_rate": lost_rate}  # where a gyroscope of 2000 deg/s ends, too
    close = 0.2  # m
    corruption: ClassVar[dict[str, float]] = {"position": 0.1, "linear_velocity": 0.1, "motor_command": 0.05}

    def __init__(self, config: HoverConfig) -> None:
        self.config = config
        self.robot = robot(config.robot)
        self.mirrors = quadrotor_mirrors(self.robot)
        self._pid: CascadedPid | None = None  # that shows how it is done
        # Whoever cannot lift itself (a StampFly 15 % heavier with 15 % less thrust) says nothing about its policy.
        liftable = tuple((m, t) for m, t in MASS_AND_THRUST if self.robot.thrust_to_weight * t > m)
        self.grid: Grid | None = Grid(LATENCIES, ROTOR_LAGS, liftable)
        self.rate_hz = config.rate_hz
        self.episode_steps = round(config.episode_s * config.rate_hz)
        self.policy: Group = (*state_estimate(config.noise), Signal("target_position", (3,), "m", "world", max_age=1.0))
        delay_high = max(config.delay_high, 0.026) if config.robust else config.delay_high
        self.commands = delayed(self.robot.commands, config.delay_low, delay_high)
        self.history = config.history
        self.initial_action = 2.0 * self.robot.hover_command - 1.0
        self.features: tuple[Feature, ...] = (
            Feature("position", minus="target_position", squash=POSITION_SCALE),
            Feature("rotation"),
            Feature("linear_velocity", squash=VELOCITY_SCALE),
            Feature("angular_velocity", scale=RATE_SCALE),
            Feature("history"),
        )
        self.costs: tuple[Cost, ...] = (
            Cost("position", "position", 1.0, "norm", minus="target_position", softening=0.03),
            Cost("velocity", "linear_velocity", 0.05),
            Cost("body_rate", "angular_velocity", 0.002),
            Cost("attitude", "rotation", 0.1, "attitude"),
            Cost("action_change", "action_change", 0.05),
        )
        self.alive_bonus = 2.0
        self.curriculum: tuple[Curriculum, ...] = ()
        if config.reward == "l2f":
            self.costs, self.curriculum = l2f_reward(self.initial_action)
        if config.reward == "precise":
            # With less, learners by trial and error buy precision with the hardest starts. They first learn to live.
            self.alive_bonus = 4.0
            self.curriculum = (Curriculum("position", 1.0, 1.1, 250_000, 3.0),)
        if config.variation == "wide":
            self.lost_distance = max(self.lost_distance, FAR)
        self.bounds: tuple[Bound, ...] = (
            Bound("position", self.lost_distance, minus="target_position"),
            Bound("angular_velocity", self.lost_rate),
        )
        width, (fast, slow), ends = VARIATIONS[config.variation]
        if config.robust:
            width, fast, slow = max(width, ROBUST[0]), min(fast, ROBUST[1][0]), max(slow, ROBUST[1][1])
        self.vary: tuple[Vary, ...] = (
            Vary("mass", 1.0 - width, 1.0 + width, ends=ends),
            Vary("thrust_scale", 1.0 - width, 1.0 + width, ends=ends),
            Vary("rotor_lag", fast, slow, distribution="log_uniform", ends=ends),
        )
        if config.robust:  # a constant push, as the seed: sigma = weight / 20 per axis
            push = self.robot.mass * GRAVITY / 20.0
            self.vary += (Vary("force", 0.0, push, "set", "normal", independent=True),)

    def reset(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        c = self.config
        target = rng.uniform([-1.0, -1.0, 1.0], [1.0, 1.0, 2.0], (n, 3))
        away = (rng.random(n) >= c.guidance)[:, None]
        state = {
            "position": target + away * rng.uniform(-c.position, c.position, (n, 3)),
            "quaternion": np.where(away, random_tilt(rng, n, c.tilt), np.array([1.0, 0.0, 0.0, 0.0])),
            "linear_velocity": away * rng.uniform(-c.velocity, c.velocity, (n, 3)),
            "angular_velocity": away * rng.uniform(-c.body_rate, c.body_rate, (n, 3)),
            "rotor_speed": rng.uniform(0.0, c.rotor_speed, (n, 4)),
            "motion": targets.hold(target.astype(np.float32)),
        }
        return {name: np.ascontiguousarray(value, np.float32) for name, value in state.items()}

    def easier(self, state: Mapping[str, Array], difficulty: Array) -> dict[str, Array]:
        origin = np.zeros(len(difficulty), np.float32)
        start, speed = targets.position_at(state["motion"], origin), targets.velocity_at(state["motion"], origin)
        upright, hover = np.array([1.0, 0.0, 0.0, 0.0], np.float32), np.float32(self.robot.hover_command)
        quaternion = upright + difficulty * (state["quaternion"] - upright)
        return {
            "position": start + difficulty * (state["position"] - start),
            "quaternion": quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True),
            "linear_velocity": speed + difficulty * (state["linear_velocity"] - speed),
            "angular_velocity": difficulty * state["angular_velocity"],
            "rotor_speed": hover + difficulty * (state["rotor_speed"] - hover),
            "motion": state["motion"],
        }

    def reference(self, motion_: Any, time: Any) -> dict[str, Any]:
        return {"target_position": targets.position_at(motion_, time)}

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """The cascaded PID, which is told the rotors' speeds; NoExpertError where vehicles differ too much for one."""
        if self.robot.all_differ:
            raise NoExpertError(f"{self.name} has no expert for the robot {self.robot.name!r}: its vehicles all differ")
        if self._pid is None:
            self._pid = CascadedPid(self.robot, self.rate_hz)
        return self._pid.reflex(signals)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        error = np.linalg.norm(flight["position"] - flight["target_position"], axis=-1)  # (steps, n)
        error = np.where(np.isfinite(error), error, np.inf)
        last_second = error[-round(self.rate_hz) :]
        outside = np.cumsum((error > self.close)[::-1], axis=0)[::-1] > 0  # still to be outside at or after this step
        return {
            "success": (last_second.max(axis=0) < self.close).astype(np.float32),
            "position_error": last_second.mean(axis=0).astype(np.float32),
            "settling_time": (outside.sum(axis=0) / self.rate_hz).astype(np.float32),
            "control_effort": np.abs(np.diff(flight["motor_command"], axis=0)).mean(axis=(0, 2)).astype(np.float32),
        }
