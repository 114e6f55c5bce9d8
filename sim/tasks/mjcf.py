"""What the tasks of a robot from a file share: its settings, its signals and commands, and its worlds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.env import Array, Step
from sim.registry import load
from sim.spec import Group
from sim.tasks import PLACE, Recipes

if TYPE_CHECKING:
    from sim.engines.scene import Scene
    from sim.robots.mjcf import Double, MjcfRobot

Robot = TypeVar("Robot", bound="MjcfRobot")

SCENES = {"mujoco": "sim.engines.scene:Scene"}
VIEW = {"azimuth": 120.0, "elevation": -20.0}  # degrees, of the pictures for people


@dataclass
class FileSettings:
    """Of a task for a robot from a file."""

    robot: str = field(default="simple_arm", metadata={PLACE: True})  # a .xml, .mjcf or .urdf file, or one of ours
    sha256: str = ""  # of the robot's files: filled in, and held to when the policy is used
    start: list[float] = field(default_factory=list)  # rad (m) of the joints, in the file's order (default: its own)
    rate_hz: float = 20.0
    steps: int = 100  # of an episode at most

    def __post_init__(self) -> None:
        if not 1.0 <= self.rate_hz <= 1000.0:
            raise ValueError(f"rate_hz must be between 1 and 1000, got {self.rate_hz:g}")
        if not 1 <= self.steps <= 10_000:
            raise ValueError(f"steps must be between 1 and 10000, got {self.steps}")


def robot_of(config: FileSettings, tip: str = "", free: bool = False) -> MjcfRobot:
    """The robot that the settings name: see `identified`."""
    from sim.robots.mjcf import load as load_robot

    return identified(config, load_robot(config.robot, tip, config.start, free))


def identified(config: FileSettings, robot: Robot) -> Robot:
    """The robot, of whose files the settings learn the hash. ValueError when they have another one already."""
    if config.sha256 not in ("", robot.sha256):
        raise ValueError(
            f"robot {config.robot}: this is not the model that the policy was made for: its SHA-256 is "
            f"{robot.sha256[:12]}..., not {config.sha256[:12]:.12}... (transfer=true takes it all the same)"
        )
    config.sha256 = robot.sha256
    return robot


class FileTask(ABC):
    """A task of a robot from a file; see `sim.tasks.Task`."""

    Config: type
    name: str
    config: Any
    robot: MjcfRobot
    algorithm: str
    engines: Mapping[str, str] = SCENES
    engine = "mujoco"
    policy: Group
    privileged: Group
    commands: Group
    moves: Mapping[str, Sequence[int]]  # command -> the actuators that it moves
    goal = ""
    recipes: Recipes = {}
    scores: dict[str, str]

    def adopt(self, config: Any, robot: MjcfRobot) -> None:
        """Take over what settings and robot say."""
        self.config, self.robot = config, robot
        self.rate_hz, self.episode_steps = float(config.rate_hz), int(config.steps)
        self.commands, self.moves = robot.commands, robot.groups
        self.envelope: dict[str, Any] = {}  # a real one's limits are its owner's: docs/safety.md

    def elements(self) -> dict[str, tuple[str, ...]]:
        """See `sim.tasks.abilities.HasJoints`."""
        joints, actuators = self.robot.joints, self.robot.actuators
        told = {
            name: tuple(joints[actuators[i].joint].name for i in numbers)
            for name, numbers in self.moves.items()
            if all(actuators[i].joint >= 0 for i in numbers)
        }
        return self.robot.elements() | told | {f"last_{name}": names for name, names in told.items()}

    def zero(self, command: str) -> Double:
        """See `sim.tasks.abilities.HasJoints`."""
        return np.zeros(len(self.moves[command]))

    @abstractmethod
    def open(self, num: int, seed: int) -> Worlds:
        """The live worlds."""

    @abstractmethod
    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """See `sim.tasks.Task`."""


class Worlds(ABC):
    """`num` worlds with one robot each; see `sim.env.Env`. One that is told NaN is lost."""

    def __init__(self, task: FileTask, num: int, seed: int, threads: int | None = None, physics: Any = None) -> None:
        """`physics`: the model that is stepped, if it is not the one that pictures show."""
        self.num, self.seed, self.robot, self._commands = num, seed, task.robot, task.commands
        model, shown = (task.robot.model, None) if physics is None else (physics, task.robot.model)
        self.scene: Scene = load("engine", task.engine, task.engines)(model, num, 1.0 / task.rate_hz, threads, shown)
        self._moves = task.moves
        self._gone = np.zeros(num, bool)  # lost in this episode
        self._count = np.zeros(num, int)  # steps in this episode
        self._seen: dict[str, Array] = {}

    @abstractmethod
    def begin(self, row: int, rng: np.random.Generator) -> tuple[Double, Double]:
        """Draw an episode for that row: joint positions (nq,) and velocities (nv,)."""

    @abstractmethod
    def signals(self) -> dict[str, Array]:
        """Every signal now (num, *shape)."""

    @abstractmethod
    def judge(self, seen: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Reward, success and whether it cannot be done any more, each (num,)."""

    def carry_out(self, control: Double) -> None:
        """Advance by a control step under what the commands say, by actuator (num, nu)."""
        low, high = ([getattr(a, side) for a in self.robot.actuators] for side in ("low", "high"))
        self.scene.step(np.clip(control, low, high))

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        starts = [self.begin(row, np.random.default_rng([self.seed, e])) for row, e in zip(rows, episodes, strict=True)]
        if starts:
            qpos, qvel = (np.stack(values) for values in zip(*starts, strict=True))
            self.scene.reset(rows, qpos, qvel)
        self._gone[list(rows)], self._count[list(rows)] = False, 0
        self._seen = {}

    def observe(self) -> dict[str, Array]:
        return self.truth()

    def truth(self) -> dict[str, Array]:
        if not self._seen:
            self._seen = {name: values.astype(np.float32) for name, values in self.signals().items()}
        return dict(self._seen)

    def step(self, command: Mapping[str, Array]) -> Step:
        control = np.zeros((self.num, len(self.robot.actuators)))
        for signal in self._commands:
            values = np.asarray(command[signal.name], np.float64)
            if values.shape != (self.num, *signal.shape):
                raise ValueError(f"{signal.name} has shape {values.shape}, not {(self.num, *signal.shape)}")
            control[:, self._moves[signal.name]] = np.clip(values, signal.low, signal.high)
        self.carry_out(control)
        self._count += 1
        self._seen = {}
        with np.errstate(invalid="ignore"):
            reward, success, gone = self.judge(self.truth())
        finite = np.isfinite(self.scene.qpos).all(axis=1)
        self._gone |= ~finite | np.asarray(gone, bool)
        return Step(
            np.nan_to_num(reward).astype(np.float32), np.asarray(success, bool) & ~self._gone, self._gone.copy()
        )

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        base = self.robot.base
        at = self.scene.pose("body", base)[0][row] if base else np.asarray(self.robot.model.stat.center)
        at = np.nan_to_num(at) if base else at
        camera = {"lookat": at, "distance": 2.0 * float(self.robot.model.stat.extent), **VIEW}
        return self.scene.see(row, camera, height, width, fine=True)

    def close(self) -> None:
        self.scene.close()
