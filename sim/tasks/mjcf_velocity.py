"""Stay upright and walk as told, or stand: any legged robot, from its MJCF or URDF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sim.env import Array, outcome_scores
from sim.rotations import rotation_matrices
from sim.spec import Signal
from sim.tasks import PLACE
from sim.tasks.mjcf import FileSettings, FileTask, Worlds, robot_of

if TYPE_CHECKING:
    from sim.robots.mjcf import Double

WIDTH = 0.25  # m/s and rad/s: errors of which the reward is 1/e
TREMBLE = 0.01  # of a command's range: the noise of a mediocre expert's legs
NEAR = 0.02  # of the joints' ranges: how far an episode's start is from the robot's own at most


@dataclass
class VelocityConfig(FileSettings):
    """Settings of velocity."""

    robot: str = field(default="simple_quadruped", metadata={PLACE: True})
    rate_hz: float = 50.0
    steps: int = 250
    speed: float = 0.5  # m/s: the largest that is told, forward and sideways
    turn: float = 0.5  # rad/s
    standing: float = 0.2  # share of the episodes in which it is told to stand
    lowest: float = 0.6  # of the base's height at the start: lower, it has fallen
    tilt: float = 60.0  # degrees: more, it has fallen
    error: float = 0.25  # m/s: success is to be closer than this to the told velocity, on average, and not to fall

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.speed, self.turn) < 0.0 or not 0.0 <= self.standing <= 1.0:
            raise ValueError("needs speed >= 0, turn >= 0 and 0 <= standing <= 1")
        if not 0.0 <= self.lowest < 1.0 or not 0.0 < self.tilt <= 180.0 or not self.error > 0.0:
            raise ValueError("needs 0 <= lowest < 1, 0 < tilt <= 180 and error > 0")


class MjcfVelocity(FileTask):
    """Success: an episode without a fall, in which the velocity was `error` (0.25 m/s) off at most, on average."""

    Config = VelocityConfig
    name = "velocity"
    algorithm = "ppo"
    scores = {"success": "%", "duration": "s", "velocity_error": "m/s"}

    def __init__(self, config: VelocityConfig | None = None) -> None:
        config = config or self.Config()
        self.adopt(config, robot_of(config, free=True))
        speed, turn = max(config.speed, 1e-6), max(config.turn, 1e-6)
        self.policy = (
            Signal("projected_gravity", (3,), "1", "body"),  # the direction of gravity: (0, 0, -1) at the start
            Signal("angular_velocity", (3,), "rad/s", "body"),
            *self.robot.sensed(),
            Signal("target_velocity", (2,), "m/s", "body", -speed, speed, max_age=1.0),  # forward, left
            Signal("target_turn_rate", (1,), "rad/s", "body", -turn, turn, max_age=1.0),
        )
        self.privileged = (
            Signal("linear_velocity", (3,), "m/s", "body"),
            Signal("height", (1,), "m", "world"),
        )

        trembling = {s.name: TREMBLE * (s.high - s.low) for s in self.commands}
        self.corruption: dict[str, float] = trembling

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """Stands, whatever it is told: nobody here can walk with every robot. Learners begin with that."""
        from sim.robots.mjcf_control import hold

        control = hold(self.robot, *self.robot.unseen(signals))
        told = {s.name: control[:, self.robot.groups[s.name]] for s in self.commands}
        return {s.name: np.clip(told[s.name], s.low, s.high).astype(np.float32) for s in self.commands}

    def open(self, num: int, seed: int) -> Walking:
        return Walking(self, num, seed)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        error = np.linalg.norm(flight["linear_velocity"][..., :2] - flight["target_velocity"], axis=-1)
        alive = flight["terminated"][..., 0].cumsum(axis=0) == 0  # what comes after a fall says nothing
        mean = np.where(alive, error, 0.0).sum(axis=0) / np.maximum(alive.sum(axis=0), 1)
        return outcome_scores(flight, self.rate_hz) | {"velocity_error": mean.astype(np.float32)}


class Walking(Worlds):
    """Worlds of `MjcfVelocity`. The body's axes are the base's, turned so that they are the world's at the start."""

    def __init__(self, task: MjcfVelocity, num: int, seed: int, threads: int | None = None) -> None:
        super().__init__(task, num, seed, threads)
        self.task = task
        model, robot = task.robot.model, task.robot
        self._place = int(model.jnt_qposadr[model.body_jntadr[robot.base]])
        self._first = rotation_matrices(robot.start[None, self._place + 3 : self._place + 7])[0]
        self._height = float(robot.start[self._place + 2])
        self._told = np.zeros((num, 3))
        self._error = np.zeros(num)  # m/s, summed over the episode

    def begin(self, row: int, rng: np.random.Generator) -> tuple[Double, Double]:
        config, robot = self.task.config, self.robot
        stands = rng.uniform() < config.standing
        told = rng.uniform(-1.0, 1.0, 3) * (config.speed, config.speed, config.turn)
        self._told[row] = 0.0 if stands else told
        self._error[row] = 0.0
        qpos = robot.start.copy()
        shift = NEAR * (robot.high - robot.low) * rng.uniform(-0.5, 0.5, len(robot.joints))
        qpos[robot.positions] = np.clip(robot.home + shift, robot.low, robot.high)
        return qpos, np.zeros(robot.model.nv)

    def signals(self) -> dict[str, Array]:
        scene, robot = self.scene, self.robot
        position, axes = scene.pose("body", robot.base)
        moving, turning = scene.velocity("body", robot.base)
        to_body = self._first @ axes.transpose(0, 2, 1)  # from the world's axes
        in_body = {
            "projected_gravity": np.broadcast_to((0.0, 0.0, -1.0), moving.shape),
            "angular_velocity": turning,
            "linear_velocity": moving,
        }
        return {
            **{name: (to_body @ values[..., None])[..., 0] for name, values in in_body.items()},
            **robot.seen(scene.qpos[:, robot.positions], scene.qvel[:, robot.velocities]),
            "target_velocity": self._told[:, :2],
            "target_turn_rate": self._told[:, 2:],
            "height": position[:, 2:],
        }

    def judge(self, seen: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        config = self.task.config
        error = np.linalg.norm(seen["linear_velocity"][:, :2] - seen["target_velocity"], axis=-1)
        turned = np.abs(seen["angular_velocity"][:, 2] - seen["target_turn_rate"][:, 0])
        fallen = -seen["projected_gravity"][:, 2] < np.cos(np.radians(config.tilt))
        fallen |= seen["height"][:, 0] < config.lowest * self._height
        self._error += error
        reward = np.exp(-((error / WIDTH) ** 2)) + 0.5 * np.exp(-((turned / WIDTH) ** 2))
        over = self._count >= config.steps
        success = over & ~fallen & (self._error < config.error * self._count)
        return np.where(fallen, 0.0, reward), success, fallen
