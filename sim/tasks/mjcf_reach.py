"""Bring a robot's end effector to a point that it can reach: any arm, from its MJCF or URDF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.env import Array, NoExpertError, outcome_scores
from sim.spec import Signal
from sim.tasks import PLACE
from sim.tasks.mjcf import FileSettings, FileTask, Worlds, robot_of

if TYPE_CHECKING:
    from sim.robots.mjcf import Double

PACE = 1.0  # rad/s (m/s) of a joint, that the expert has in mind
LEAD = 0.2  # rad (m), how far ahead of a joint it aims at most
ITERATIONS = 60  # of the inverse kinematics
REMEMBERED = 10_000  # goals for which it is solved
DAMPING = 0.02  # of the least squares, as a share of the arm's length
RESPONSE = 12.0  # rad/s, of the expert's control of torques
# Of a command's range: the noise of a mediocre expert's hand.
TREMBLE = {"position_target": 0.002, "slide_target": 0.002}
ELSE = 0.05  # of velocities and torques
TRIES = 50  # poses drawn until one collides with nothing
NEAR = 0.05  # of the joints' ranges: how far an episode's start is from the robot's own at most
DEEP = 1e-3  # m, how far things may sink into each other


@dataclass
class ReachConfig(FileSettings):
    """Settings of reach."""

    robot: str = field(default="simple_arm", metadata={PLACE: True})
    end_effector: str = ""  # a site or body of the file (default: the body farthest down the chain)
    spread: float = 0.3  # share of the joints' ranges, around the start, out of which goals are drawn
    close: float = 0.03  # m: success

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.spread <= 1.0 or not 0.0 < self.close <= 1.0:
            raise ValueError(f"needs 0 < spread <= 1 and 0 < close <= 1, got {self.spread:g} and {self.close:g}")


class MjcfReach(FileTask):
    """Success: the end effector within `close` (3 cm) of the goal."""

    Config = ReachConfig
    name = "reach"
    algorithm = "diffusion"
    goal = "goal_position"
    achieved = "tip_position"  # what should become equal to it
    privileged = ()
    scores = {"success": "%", "duration": "s", "final_distance": "m"}
    recipes = {"dsrl_na": {"default": {"algorithm.hindsight": 4}}}

    def __init__(self, config: ReachConfig | None = None) -> None:
        config = config or self.Config()
        self.adopt(config, robot_of(config, config.end_effector))
        self.close = config.close
        self.policy = (
            *self.robot.sensed(),
            Signal("tip_position", (3,), "m", "world"),
            Signal("goal_position", (3,), "m", "world", max_age=1.0),
        )
        trembling = {s.name: TREMBLE.get(s.name, ELSE) * (s.high - s.low) for s in self.commands}
        self.corruption: dict[str, float] = {"goal_position": config.close, **trembling}
        self._length = _length(self.robot)
        self._known: dict[bytes, Double] = {}  # goal -> joint positions

    def open(self, num: int, seed: int) -> Reaching:
        return Reaching(self, num, seed)

    def reached(self, achieved: Array, goal: Array) -> NDArray[np.bool_]:
        """Whether what was achieved (n, 3) m counts as the goal (n, 3) m, (n,)."""
        return np.asarray(np.linalg.norm(achieved - goal, axis=-1) < self.close)

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """Inverse kinematics, and what holds the arm against gravity. NoExpertError for muscles and tendons."""
        from sim.robots.mjcf_control import servo

        if any(a.joint < 0 or a.kind == "other" for a in self.robot.actuators):
            raise NoExpertError(
                f"{self.name} has no scripted expert for {self.robot.name}: not all actuators are plain"
            )
        position, velocity = self.robot.unseen(signals)
        control = np.zeros((len(position), len(self.robot.actuators)))
        for row, (data, _) in enumerate(self.robot.forward(position, velocity)):
            there = self._solved(np.asarray(signals["goal_position"][row], np.float64))
            wanted = position[row] + np.clip(there - position[row], -LEAD, LEAD)
            control[row] = servo(self.robot, data, wanted, PACE * (wanted - position[row]) / LEAD, RESPONSE)
        told = {s.name: control[:, self.robot.groups[s.name]] for s in self.commands}
        return {s.name: np.clip(told[s.name], s.low, s.high).astype(np.float32) for s in self.commands}

    def _solved(self, goal: Double) -> Double:
        """Joint positions (k,) that bring the tip to the goal (3,) m; the best found."""
        key = goal.tobytes()
        if key not in self._known:
            robot, best = self.robot, np.inf
            middle, rng = 0.5 * (robot.low + robot.high), np.random.default_rng(0)
            for begin in (
                robot.home,
                0.5 * (robot.home + middle),
                middle,
                *rng.uniform(robot.low, robot.high, (4, len(middle))),
            ):
                joints, off = self._descend(begin, goal)
                if off < best:
                    best, found = off, joints
                if best < 0.1 * self.close:
                    break
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = found
        return self._known[key]

    def _descend(self, joints: Double, goal: Double) -> tuple[Double, float]:
        """Damped least squares from there: joint positions (k,), and how far, in m, the tip then is from the goal.

        Joints at their limits leave it to the others. What the tip does not determine is drawn to the middle of the
        ranges at first, which leads out of stretched poses.
        """
        robot = self.robot
        moved = np.isin(np.arange(len(joints)), [a.joint for a in robot.actuators])
        off = np.inf
        for number in range(ITERATIONS):
            data, tip = next(robot.forward(joints[None]))
            off = float(np.linalg.norm(goal - tip))
            if off < 0.05 * self.close:
                break
            jacobian, usable = robot.jacobian(data) * moved, np.ones(len(joints), bool)
            rest = (
                (0.05 * (0.5 * (robot.low + robot.high) - joints) * moved) if number < ITERATIONS // 2 else 0.0 * joints
            )
            for _ in range(3):
                part = jacobian * usable
                square = part @ part.T + (DAMPING * self._length) ** 2 * np.eye(3)
                change = rest + part.T @ np.linalg.solve(square, goal - tip - jacobian @ rest)
                ahead = joints + change * min(1.0, LEAD / max(float(np.abs(change).max()), 1e-9))
                beyond = (ahead < robot.low) | (ahead > robot.high)
                if not beyond.any():
                    break
                usable &= ~beyond
            joints = np.clip(ahead, robot.low, robot.high)
        return joints, off

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        distance = np.linalg.norm(flight["tip_position"][-1] - flight["goal_position"][-1], axis=-1)
        return outcome_scores(flight, self.rate_hz) | {"final_distance": distance.astype(np.float32)}


def _length(robot: Any) -> float:
    """How far, in m, the tip is at most from its mean place over random poses: about the arm's reach."""
    poses = np.random.default_rng(0).uniform(robot.low, robot.high, (64, len(robot.joints)))
    tips = np.stack([tip for _, tip in robot.forward(poses)])
    return max(1e-3, float(np.linalg.norm(tips - tips.mean(axis=0), axis=1).max()))


class Reaching(Worlds):
    """Worlds of `MjcfReach`."""

    def __init__(self, task: MjcfReach, num: int, seed: int, threads: int | None = None) -> None:
        super().__init__(task, num, seed, threads)
        self.task = task
        self._goal = np.zeros((num, 3))
        self._names = [joint.name for joint in task.robot.joints]
        self._sunk = self._depth(task.robot.home)  # where the file itself lets things touch

    def begin(self, row: int, rng: np.random.Generator) -> tuple[Double, Double]:
        robot = self.robot
        start = self._draw(rng, NEAR)[0]
        tip = next(tip for _, tip in robot.forward(start[None]))
        for _ in range(TRIES):
            self._goal[row] = self._draw(rng, self.task.config.spread)[1]
            if np.linalg.norm(self._goal[row] - tip) > 2.0 * self.task.close:
                break
        qpos = robot.start.copy()
        qpos[robot.positions] = start
        return qpos, np.zeros(robot.model.nv)

    def _draw(self, rng: np.random.Generator, share: float) -> tuple[Double, Double]:
        """Joint positions (k,) in that share of the ranges around the start, colliding with nothing; the tip (3,) m."""
        robot = self.robot
        half = 0.5 * share * (robot.high - robot.low)
        low, high = robot.home - half, robot.home + half
        # A range that the start's limits cut is moved, so that it keeps its width.
        low, high = low + np.maximum(robot.low - low, 0.0), high + np.maximum(robot.low - low, 0.0)
        low, high = low - np.maximum(high - robot.high, 0.0), np.minimum(high, robot.high)
        for _ in range(TRIES):
            joints = rng.uniform(low, high)
            if self._depth(joints) <= self._sunk + DEEP:
                break
        else:
            joints = robot.home
        return joints, next(tip for _, tip in robot.forward(joints[None]))

    def _depth(self, joints: Double) -> float:
        """How deep, in m, the worst of the collisions in this pose (k,) is."""
        from sim.robots.mjcf_control import depth

        return depth(self.robot, joints)

    def signals(self) -> dict[str, Array]:
        return {
            **self.robot.seen(self.scene.qpos[:, self.robot.positions], self.scene.qvel[:, self.robot.velocities]),
            "tip_position": self.scene.pose(*self.robot.tip)[0],
            "goal_position": self._goal,
        }

    def judge(self, seen: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        distance = np.linalg.norm(seen["tip_position"] - seen["goal_position"], axis=-1)
        return -distance, distance < self.task.close, np.zeros(self.num, bool)
