"""Kick a ball that lies before the feet in a told direction, and stay on them: any legged robot, from its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sim.env import Array, outcome_scores
from sim.randomize import Noise
from sim.robots.legs import Legs
from sim.rotations import rotation_matrices
from sim.spec import Signal
from sim.tasks import PLACE, Recipes
from sim.tasks.legs.legged import SETTINGS, Legged, LeggedConfig
from sim.tasks.legs.walking import LOADED, Walking, square

if TYPE_CHECKING:
    from sim.robots.mjcf import Double

SEEN = 0.01  # m: standard deviation of the noise of where the ball is seen
# Where it lies, m by the height of the robot's base: ahead, beside the middle at most.
AHEAD, BESIDE = (0.5, 0.8), 0.25
# Term -> weight, per control step.
WEIGHTS = {
    "alive": 0.5,  # 1
    "ball": 3.0,  # how fast it rolls as told, as a share of `speed`, at most BEST
    "astray": -1.0,  # the same, across
    "facing": 0.2,  # exp(-rad^2) of the heading
    "upright": -1.0,  # 1, sin^2 of the tilt
    "bounce": -0.2,  # (m/s)^2, up and down
    "pose": -0.05,  # rad^2, all joints, from where they begin
    "calm": -0.2,  # the same, once the ball rolls
    "action_rate": -0.05,  # rad^2, all servos, from one command to the next
    "effort": -0.02,  # rad^2, all servos, between where they are told to be and are
    "slip": -0.1,  # (m/s)^2, of feet on the floor
}
RECIPE = {
    **SETTINGS,
    "algorithm.total_steps": 4_000_000,
    "algorithm.entropy": 0.001,
    "algorithm.initial_std": 0.3,
}
BEST = 1.5
ROLLS = 0.1  # of `speed`: what rolls faster was kicked


@dataclass
class KickConfig(LeggedConfig):
    """Settings of kick."""

    robot: str = field(default="simple_humanoid", metadata={PLACE: True})
    steps: int = 200
    forward: list[float] = field(default_factory=lambda: [0.0, 0.0])
    sideways: float = 0.0
    turn: float = 0.0
    standing: float = 1.0
    reach: float = 1.0
    tilt: float = 45.0
    near: float = 0.03
    thrown: float = 0.0
    push: float = 0.0
    contacts: str = "floor"
    direction: float = 20.0  # degrees to either side of ahead at most: where to
    speed: float = 1.0  # m/s: success is to make it so fast that way,
    off: float = 20.0  # degrees: ... at most so far off it,
    seconds: float = 1.0  # ... and not to fall for so long afterwards

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.direction <= 180.0 or not 0.0 < self.off < 90.0 or not self.speed > 0.0:
            raise ValueError("needs 0 <= direction <= 180, 0 < off < 90 and speed > 0")
        if not 0.0 <= self.seconds < self.steps / self.rate_hz:
            raise ValueError(f"seconds must be less than an episode has: {self.steps / self.rate_hz:g}")

    def legs(self) -> Legs:
        return dataclasses.replace(super().legs(), ball=True)


class Kick(Legged):
    """The same, to kick a ball as told.

    Success: the ball went that way at 1 m/s or faster, and a second later the robot still stands.
    """

    Config = KickConfig
    name = "kick"
    recipes: Recipes = {"ppo": {"default": RECIPE}}
    scores = {"success": "%", "duration": "s", "ball_speed": "m/s", "astray": "deg", "fallen": "%"}
    config: KickConfig

    def __init__(self, config: KickConfig | None = None) -> None:
        super().__init__(config)
        told = (
            Signal("ball_position", (2,), "m", "body", imperfections=(Noise(SEEN),)),  # ahead and to the left of it
            Signal("kick_direction", (2,), "1", "body", -1.0, 1.0),  # a unit vector, likewise
        )
        self.policy = (*(s for s in self.policy if not s.name.startswith("target_")), *told)
        self.privileged += (Signal("ball_velocity", (2,), "m/s", "world"), Signal("ball_target", (2,), "1", "world"))
        names = ("ball_position", "kick_direction", "ball_velocity", "ball_target")
        self.reflect(dict.fromkeys(names, (range(2), (1.0, -1.0))))

    def open(self, num: int, seed: int) -> Walking:
        return Kicking(self, num, seed)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        velocity, target = flight["ball_velocity"], flight["ball_target"]
        fast = np.nan_to_num((velocity * target).sum(axis=-1)).argmax(axis=0)  # when it is fastest that way
        episodes = np.arange(velocity.shape[1])
        best, way = velocity[fast, episodes], target[fast, episodes]
        along, across = (best * way).sum(axis=-1), best[:, 1] * way[:, 0] - best[:, 0] * way[:, 1]
        more = {
            "ball_speed": along,
            "astray": np.degrees(np.abs(np.arctan2(across, along))),
            "fallen": flight["terminated"][..., 0].any(axis=0),
        }
        return outcome_scores(flight, self.rate_hz) | {name: np.asarray(v, np.float32) for name, v in more.items()}


class Kicking(Walking):
    """Worlds of `Kick`."""

    task: Kick

    def __init__(self, task: Kick, num: int, seed: int, threads: int | None = None) -> None:
        super().__init__(task, num, seed, threads)
        self._ball, self._rolling = task.robot.ball
        self._target = np.zeros((num, 2))  # a unit vector in the world
        self._since = np.zeros(num, int)  # control steps since the ball was as fast as it should; 0: it never was
        self.weights = WEIGHTS

    def begin(self, row: int, rng: np.random.Generator) -> tuple[Double, Double]:
        qpos, qvel = super().begin(row, rng)
        at = self._height * np.array([rng.uniform(*AHEAD), BESIDE * rng.uniform(-1.0, 1.0)])
        qpos[self._ball : self._ball + 2] = qpos[self._place : self._place + 2] + at
        angle = np.radians(self.task.config.direction) * rng.uniform(-1.0, 1.0)
        self._target[row], self._since[row] = (np.cos(angle), np.sin(angle)), 0
        return qpos, qvel

    def signals(self) -> dict[str, Array]:
        scene, place = self.scene, self._place
        axes = rotation_matrices(scene.qpos[:, place + 3 : place + 7]) @ self._first.T
        ahead = axes[:, :2, 0] / np.maximum(np.linalg.norm(axes[:, :2, 0], axis=1, keepdims=True), 1e-6)

        def turned(vectors: Double) -> Double:
            """From the world's axes to the body's, which stay level."""
            left = vectors[:, 1] * ahead[:, 0] - vectors[:, 0] * ahead[:, 1]
            return np.stack([(vectors * ahead).sum(axis=1), left], axis=1)

        away = scene.qpos[:, self._ball : self._ball + 2] - scene.qpos[:, place : place + 2]
        known = {name: value for name, value in super().signals().items() if not name.startswith("target_")}
        return {
            **known,
            "ball_position": turned(away),
            "kick_direction": turned(self._target),
            "ball_velocity": scene.qvel[:, self._rolling : self._rolling + 2],
            "ball_target": self._target,
        }

    def judge(self, seen: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        config, reward, fallen = self.task.config, self.weighted(self.terms(seen)), self.fallen(seen)
        along, across = self._rolls(seen)
        kicked = (along >= config.speed) & (np.abs(across) < np.tan(np.radians(config.off)) * along)
        self._since += kicked | (self._since > 0)
        success = self._since > config.seconds * config.rate_hz
        return np.where(fallen, 0.0, np.maximum(reward, 0.0)), success & ~fallen, fallen

    def _rolls(self, seen: Mapping[str, Array]) -> tuple[Array, Array]:
        """How fast the ball is as told, and to the left of that, m/s."""
        velocity, target = seen["ball_velocity"], seen["ball_target"]
        return (velocity * target).sum(axis=1), velocity[:, 1] * target[:, 0] - velocity[:, 0] * target[:, 1]

    def terms(self, seen: Mapping[str, Array]) -> dict[str, Array]:
        speed, robot = self.task.config.speed, self.legs
        along, across = self._rolls(seen)
        joints = self.scene.qpos[:, robot.positions]
        off = square(joints - robot.home)
        velocity = np.linalg.norm(self._felt["velocity"][..., :2], axis=2)
        facing = seen["kick_direction"]
        return {
            "alive": np.ones(self.num),
            "ball": np.clip(along / speed, 0.0, BEST),
            "astray": np.minimum(np.abs(across) / speed, BEST),
            "facing": np.exp(-(np.arctan2(facing[:, 1], facing[:, 0]) ** 2)),
            "upright": square(seen["projected_gravity"][:, :2]),
            "bounce": seen["linear_velocity"][:, 2] ** 2,
            "pose": off,
            "calm": np.where(np.hypot(along, across) > ROLLS * speed, off, 0.0),
            "action_rate": square(self._told[0] - self._told[1]),
            "effort": square(self._told[0] - joints[:, robot.served]),
            "slip": np.where(seen["foot_load"] > LOADED, velocity**2, 0.0).sum(axis=1),
        }
