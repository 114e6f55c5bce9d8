"""What the tasks of an arm at a table share: signals, commands, cameras, control, and the scenes themselves.

The hand points down. With `control=velocity` it is moved by velocity, and the joints follow by least squares; the hand
cannot be told to be further than `LEASH` from where it is, so it presses on things with limited force. With
`control=joint` the joints' positions are commanded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim import spec
from sim.engines import BENCHES
from sim.env import Array, Step, outcome_scores
from sim.registry import load
from sim.robots.panda import DOWN, PANDA, Arm, Double
from sim.rotations import rotation_matrices
from sim.scenes.tabletop import TABLE, Block
from sim.spec import Group, Signal
from sim.tasks import Recipes
from sim.tasks.picture_cache import PictureCache
from sim.terms import Feature

if TYPE_CHECKING:
    from sim.engines.workbench import Variation, Workbench

RATE = 20.0  # Hz
SPEED = 0.5  # m/s of the hand, per axis
LEASH = 0.02  # m
REACH: Double = np.array([[0.3, -0.3, 0.012], [0.7, 0.3, 0.4]])  # m: where the hand can be told to go
CONTROLS = {"velocity": {"hand_velocity": 0.1}, "joint": {"joint_target": 0.005}}  # and the noise of a mediocre expert
CAMERAS = ("wrist_camera", "scene_camera", "front_camera", "side_camera")
PIXELS = 64
NEAR = 10.0  # 1/m, by which differences are scaled for small networks
GAIN = 5.0  # 1/s, of the experts' approach
CLOSE = 0.0  # m: what an expert asks of the gripper to hold something
CUBE = Block((0.02, 0.02, 0.02), 0.1, 0.5, (0.85, 0.2, 0.15))


@dataclass
class Settings:
    """Of a task at the table."""

    control: str = "velocity"
    cameras: list[str] = field(default_factory=list)  # whose pictures the policy sees in place of the object's pose
    robust: bool = False  # block, arm and cameras differ from episode to episode
    steps: int = 100  # of an episode at most

    def __post_init__(self) -> None:
        if self.control not in CONTROLS:
            raise ValueError(f"control {self.control!r} is not one of {', '.join(CONTROLS)}")
        for name in self.cameras:
            if name not in CAMERAS:
                raise ValueError(f"camera {name!r} is not one of {', '.join(CAMERAS)}")
        if len({*self.cameras}) < len(self.cameras):
            raise ValueError(f"cameras are different ones, got {', '.join(self.cameras)}")
        if not 1 <= self.steps <= 1000:
            raise ValueError(f"steps must be between 1 and 1000, got {self.steps}")


class Tabletop(ABC):
    """A task at the table; see `sim.env.Task`. Subclasses draw the start, judge it and show how."""

    Config: type = Settings
    name: str
    robot: Arm = PANDA
    block: Block | None = CUBE
    rate_hz = RATE
    engines = BENCHES
    algorithm = "diffusion"
    engine = "mujoco"
    goal = "goal_position"
    achieved = "object_position"  # what should become equal to it
    scores = {"success": "%", "duration": "s", "final_distance": "m"}
    recipes: ClassVar[Recipes] = {
        "dsrl_na": {"default": {"algorithm.hindsight": 4}},
        "ppo": {
            "default": {
                "algorithm.total_steps": 800_000,
                "algorithm.num_envs": 64,
                "algorithm.rollout_steps": 32,
                "algorithm.epochs": 5,
                "algorithm.learning_rate": 1e-3,
                "algorithm.final_learning_rate": 5e-5,
                "algorithm.critic_hidden": [256, 128],
                "algorithm.lengths": [1.0, 1.0],
                "algorithm.evaluate_every": 20,
                "algorithm.evaluation_episodes": 50,
            }
        },
    }
    offsets: dict[str, float]  # m: how far a mediocre expert misjudges signals
    close: float  # m: success

    def __init__(self, config: Settings | None = None) -> None:
        self.config = config or self.Config()
        self.episode_steps = self.config.steps
        self.corruption = {**self.offsets, **CONTROLS[self.config.control]}
        # An arm that is stopped stays where it is, and holds what it holds.
        place = {"joint_target": "joint_position"} if self.config.control == "joint" else {}
        self.envelope: dict[str, Any] = {"safe": {**place, "gripper_target": "last"}}
        pose = (_position("object_position"), Signal("object_rotation", (9,), "1", "world")) if self.block else ()
        cameras = self.config.cameras
        pictures = tuple(Signal(name, (PIXELS, PIXELS, 3), "1", "", 0.0, 255.0, dtype="uint8") for name in cameras)
        self.policy: Group = (
            Signal("joint_position", (7,), "rad"),
            Signal("joint_velocity", (7,), "rad/s"),
            Signal("gripper_opening", (1,), "m"),
            _position("hand_position"),
            Signal("hand_rotation", (9,), "1", "world"),
            *(() if cameras else pose),
            Signal("goal_position", (3,), "m", "world", max_age=1.0),
            *pictures,
        )
        near = ["hand_position", *(["object_position"] if self.block and not cameras else [])]
        self.features = (
            *(Feature(s.name) for s in self.policy if s not in pictures),
            *(Feature(self.goal, scale=NEAR, minus=name) for name in near),
            *(Feature(name, scale=NEAR, minus="hand_position") for name in near[1:]),
        )
        self.privileged: Group = pose if cameras else ()
        arm = (
            Signal("hand_velocity", (3,), "m/s", "world", -SPEED, SPEED)
            if self.config.control == "velocity"
            else Signal("joint_target", (7,), "rad", "", float(self.robot.low.min()), float(self.robot.high.max()))
        )
        self.commands: Group = (arm, Signal("gripper_target", (1,), "m", "", 0.0, self.robot.gripper.opening))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All that lies on the table."""
        return (self.block,) if self.block else ()

    def open(self, num: int, seed: int) -> Scenes:
        return Scenes(self, num, seed)

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> tuple[Double, Double]:
        """An episode's start: the goal (3,) m, after position and yaw (4,) of the block in m and rad, above the table.

        Where there are several blocks: (blocks, 4).
        """

    @abstractmethod
    def distance(self, signals: Mapping[str, Array]) -> Array:
        """How far (n,) it is from done, in m: below `close` is success."""

    @abstractmethod
    def plan(self, signals: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """What the expert wants: the hand's position (n, 3) m, the gripper's opening (n, 1) m, speed (n, 1) m/s."""

    def reached(self, achieved: Array, goal: Array) -> NDArray[np.bool_]:
        """Whether what was achieved (n, 3) m counts as the goal (n, 3) m, (n,)."""
        return np.asarray(self.distance({self.achieved: achieved, self.goal: goal}) < self.close)

    def reward(self, signals: Mapping[str, Array]) -> Array:
        """What a step is worth, (n,) float32: minus the way that is left, in m."""
        return -self.distance(signals)

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        target, opening, speed = self.plan(signals)
        hand, opening = signals["hand_position"], opening.astype(np.float32)
        velocity = np.clip(GAIN * (target - hand), -speed, speed)
        if self.config.control == "velocity":
            return {"hand_velocity": velocity.astype(np.float32), "gripper_target": opening}
        joints = signals["joint_position"].astype(np.float64)
        there = self.robot.toward(joints, np.clip(hand + velocity / RATE, *REACH), DOWN)
        # The servos lag behind by about one step.
        return {"joint_target": (joints + 1.5 * (there - joints)).astype(np.float32), "gripper_target": opening}

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        last = {name: values[-1] for name, values in flight.items()}
        return outcome_scores(flight, RATE) | {"final_distance": self.distance(last).astype(np.float32)}


def _position(name: str) -> Signal:
    return Signal(name, (3,), "m", "world")


class Scenes:
    """`num` tables; see `sim.env.Env`. A scene that is told NaN is lost."""

    def __init__(self, task: Tabletop, num: int, seed: int, threads: int | None = None) -> None:
        self.task, self.num, self.seed = task, num, seed
        self.bench: Workbench = load("engine", task.engine, BENCHES)(task.robot, task.blocks, num, 1.0 / RATE, threads)
        self._goal, self._target = np.zeros((2, num, 3))
        self._gone = np.zeros(num, bool)  # lost in this episode
        self._seen: dict[str, Array] = {}
        self.pictures = PictureCache(spec.pictures(task.policy), num)

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        from sim.engines.workbench import NOMINAL

        starts, variations = np.zeros((len(rows), len(self.task.blocks), 4)), []
        for k, (row, episode) in enumerate(zip(rows, episodes, strict=True)):
            rng = np.random.default_rng([self.seed, episode])
            starts[k], self._goal[row] = self.task.draw(rng)
            variations.append(self._vary(rng) if self.task.config.robust else NOMINAL)
            starts[k, :, 2] *= variations[-1].size
        poses, half = np.zeros((*starts.shape[:2], 7)), starts[..., 3] / 2.0
        poses[..., :3], poses[..., 3], poses[..., 6] = starts[..., :3], np.cos(half), np.sin(half)
        joints = np.tile(self.task.robot.home, (len(rows), 1))
        self.bench.reset(rows, joints, poses, variations)
        self._gone[list(rows)] = False
        self._target[list(rows)] = self.task.robot.forward(joints)[0]
        self._seen = {}
        self.pictures.moved.update(rows)

    def observe(self) -> dict[str, Array]:
        if not self._seen:
            self._seen = self._state()
        return self._seen | self.pictures.see(self._look)

    def _look(self, row: int) -> dict[str, NDArray[np.uint8]]:
        return {name: self.bench.see(row, name, None, PIXELS, PIXELS) for name in self.pictures.names}

    def _state(self) -> dict[str, Array]:
        """Every signal but the pictures."""
        bench = self.bench
        position, rotation, _ = self.task.robot.forward(bench.joints)
        seen = {
            "joint_position": bench.joints,
            "joint_velocity": bench.joint_speeds,
            "gripper_opening": bench.opening,
            "hand_position": position,
            "hand_rotation": rotation.reshape(-1, 9),
            "goal_position": self._goal,
        }
        if self.task.block:
            pose = bench.block_poses[:, 0]
            seen |= {"object_position": pose[:, :3], "object_rotation": rotation_matrices(pose[:, 3:]).reshape(-1, 9)}
        return {name: values.astype(np.float32) for name, values in seen.items()}

    def _judged(self) -> dict[str, Array]:
        """The signals by which a step is judged."""
        return self._seen

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        arm, opening = (np.asarray(command[s.name], np.float64) for s in self.task.commands)
        for signal, values in zip(self.task.commands, (arm, opening), strict=True):
            if values.shape != (self.num, *signal.shape):
                raise ValueError(f"{signal.name} has shape {values.shape}, not {(self.num, *signal.shape)}")
        if self.task.config.control == "velocity":
            arm = self._follow(np.clip(arm, -SPEED, SPEED))
        self.bench.step(arm, opening)
        self._seen = self._state()
        self.pictures.moved.update(range(self.num))
        judged = self._judged()
        distance = self.task.distance(judged)
        self._gone |= self._lost()
        with np.errstate(invalid="ignore"):
            success = (distance < self.task.close) & ~self._gone
        return Step(self.task.reward(judged), success, self._gone.copy())

    def _follow(self, velocity: Double) -> Double:
        """The joints (num, 7) that move the hand at `velocity` (num, 3) for one step."""
        robot = self.task.robot
        hand = robot.forward(self.bench.joints)[0]
        near = np.clip(self._target, hand - LEASH, hand + LEASH)
        self._target = np.clip(near + velocity / RATE, *REACH)
        return robot.toward(self.bench.reference, self._target, DOWN)

    def _lost(self) -> NDArray[np.bool_]:
        finite = np.isfinite(self._seen["joint_position"]).all(axis=1)
        with np.errstate(invalid="ignore"):
            x, y, z = np.moveaxis(self.bench.block_poses[..., :3], 2, 0)
            (left, right), (near, far) = TABLE
            lying = (x > left) & (x < right) & (y > near) & (y < far) & (z > -0.05)
        return np.asarray(~(finite & lying.all(axis=1)))

    def _vary(self, rng: np.random.Generator) -> Variation:
        """What is different in one episode of a robust task."""
        return vary(rng)

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        return self.bench.see(row, "scene_camera", self._goal[row], height, width, fine=True)

    def close(self) -> None:
        self.bench.close()


def vary(rng: np.random.Generator) -> Variation:
    """What is different in one episode of a robust task."""
    from sim.engines.workbench import Variation

    return Variation(
        size=rng.uniform(0.8, 1.2),
        mass=_factor(rng, 2.0),
        friction=_factor(rng, 1.5),
        grip=_factor(rng, 1.3),
        stiffness=_factor(rng, 1.3),
        damping=_factor(rng, 1.5),
        colour=tuple(rng.uniform(0.05, 0.95, 3)),
        view=(*rng.normal(0.0, 0.01, 3), *rng.normal(0.0, 0.02, 3)),
    )


def _factor(rng: np.random.Generator, most: float) -> float:
    """Log-uniform between 1 / `most` and `most`."""
    return float(most ** rng.uniform(-1.0, 1.0))
