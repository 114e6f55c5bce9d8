"""What the tasks of a legged robot share: settings, signals, commands, mirrors; worlds are in `walking`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.engines import LEGS
from sim.randomize import Noise
from sim.robots.legs import Legs
from sim.spec import Group, Signal
from sim.tasks import PLACE, Recipes
from sim.tasks.mjcf import FileSettings, FileTask, identified
from sim.terms import Mirror

if TYPE_CHECKING:
    from sim.robots.mjcf import Double
    from sim.robots.mjcf_legged import LeggedRobot

FASTEST = 5.0  # m/s and rad/s: the largest velocities that the signals can tell
# Standard deviations of what is sensed, half the uniform noise of MuJoCo Playground's go1/joystick.
NOISE = {"projected_gravity": 0.025, "angular_velocity": 0.1, "joint_position": 0.015, "joint_velocity": 0.75}
SETTINGS = {
    "algorithm.total_steps": 16_000_000,
    "algorithm.num_envs": 512,
    "algorithm.rollout_steps": 24,
    "algorithm.epochs": 4,
    "algorithm.minibatches": 4,
    "algorithm.gamma": 0.99,
    "algorithm.learning_rate": 1e-3,
    "algorithm.final_learning_rate": 1e-4,
    "algorithm.entropy": 0.003,
    "algorithm.initial_std": 0.4,
    "algorithm.min_std": 0.1,
    "algorithm.hidden": [128, 128],
    "algorithm.critic_hidden": [128, 128],
    "algorithm.staggered": True,
    "algorithm.evaluate_every": 0,
}


@dataclass
class LeggedConfig(FileSettings):
    """Settings of a legged robot's task: what it is told, what counts as a fall, how it differs and is carried out."""

    robot: str = field(default="simple_quadruped", metadata={PLACE: True})
    rate_hz: float = 50.0
    steps: int = 500
    forward: list[float] = field(default_factory=lambda: [-0.5, 1.0])  # m/s: what is told
    sideways: float = 0.3  # m/s at most
    turn: float = 0.8  # rad/s at most
    standing: float = 0.1  # share of what it is told to stand
    reach: float = 0.5  # rad (m): how far it may tell its joints to go from where they begin
    lowest: float = 0.6  # of the base's height at the start: lower, it has fallen
    tilt: float = 60.0  # degrees: more, it has fallen
    error: float = 0.25  # m/s: success is to be closer than this to the told velocity, on average, and not to fall
    vary: float = 1.0  # how much friction, masses, servos, latency and sensors vary, and how hard it is pushed
    near: float = 0.1  # of the joints' ranges: how far from one another starts may be, with `vary` 1 or more
    thrown: float = 0.5  # m/s and rad/s: how fast it is at the start at most, per axis, with `vary` 1
    push: float = 0.5  # m/s: how much faster a push makes it at most, per axis, with `vary` 1
    gait: bool = False  # whether a rhythm is told, and feet are to keep to it
    frequency: float = 0.0  # Hz, of each foot's steps in that rhythm; 0: as is natural for a robot of its height
    stiffness: float = 0.0  # the rest: see `sim.robots.legs.Legs`
    damping: float = 0.0
    contacts: str = "feet"
    timestep: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.forward) != 2 or not -FASTEST <= self.forward[0] <= self.forward[1] <= FASTEST:
            raise ValueError(f"forward are two velocities of at most {FASTEST:g} m/s, the lowest first")
        if not (0.0 <= self.sideways <= FASTEST and 0.0 <= self.turn <= FASTEST and 0.0 <= self.standing <= 1.0):
            raise ValueError(f"needs sideways and turn of 0 to {FASTEST:g}, and 0 <= standing <= 1")
        if not 0.0 <= self.lowest < 1.0 or not 0.0 < self.tilt <= 180.0 or not self.error > 0.0:
            raise ValueError("needs 0 <= lowest < 1, 0 < tilt <= 180 and error > 0")
        if not 0.0 < self.reach <= 10.0 or not 0.0 <= self.vary <= 3.0:
            raise ValueError("needs 0 < reach <= 10 and 0 <= vary <= 3")
        if not 0.0 <= self.near <= 1.0 or not 0.0 <= self.thrown <= FASTEST:
            raise ValueError(f"needs 0 <= near <= 1 and 0 <= thrown <= {FASTEST:g}")
        if not 0.0 <= self.push <= FASTEST or not 0.0 <= self.frequency <= 0.5 * self.rate_hz:
            raise ValueError(f"needs 0 <= push <= {FASTEST:g} and 0 <= frequency <= {0.5 * self.rate_hz:g}")
        self.legs()

    def legs(self) -> Legs:
        """How the robot is carried out."""
        return Legs(self.stiffness, self.damping, self.contacts, self.timestep)


class Legged(FileTask):
    """A task of a legged robot from a file. Commands are offsets from where its servos begin."""

    Config = LeggedConfig
    algorithm = "ppo"
    engines = LEGS
    recipes: Recipes = {"ppo": {"default": SETTINGS}}
    config: LeggedConfig
    robot: LeggedRobot

    def __init__(self, config: LeggedConfig | None = None) -> None:
        from sim.robots.mjcf_legged import load

        config = config or self.Config()
        robot = load(config.robot, config.start, config.legs())
        self.adopt(config, identified(config, robot))
        names = {"position_target": "position_offset", "slide_target": "slide_offset"}
        # From where the servos are told to be at the start: settings of the policy's task say where that is.
        self.moves = {names[name]: numbers for name, numbers in robot.groups.items()}
        config.start = robot.home.tolist()
        self.commands: Group = tuple(
            Signal(name, (len(numbers),), "rad" if name == "position_offset" else "m", "", -config.reach, config.reach)
            for name, numbers in self.moves.items()
        )
        self.policy = (
            _noisy(Signal("projected_gravity", (3,), "1", "body")),  # the direction of gravity: (0, 0, -1) at the start
            _noisy(Signal("angular_velocity", (3,), "rad/s", "body")),
            *(_noisy(signal) for signal in robot.sensed()),
            *(Signal(f"last_{s.name}", s.shape, s.unit, "", s.low, s.high) for s in self.commands),
            Signal("target_velocity", (2,), "m/s", "body", -FASTEST, FASTEST, max_age=1.0),  # forward, left
            Signal("target_turn_rate", (1,), "rad/s", "body", -FASTEST, FASTEST, max_age=1.0),
            *((Signal("gait_phase", (2,), "1", "", -1.0, 1.0),) if config.gait else ()),  # cosine and sine; standing: 0
        )
        self.privileged = (
            Signal("linear_velocity", (3,), "m/s", "body"),
            Signal("height", (1,), "m", "world"),
            Signal("foot_height", (len(robot.feet),), "m", "world"),
            Signal("foot_load", (len(robot.feet),), "1", "", 0.0, 10.0),  # of its weight
            Signal(
                "vehicle", (4,), "1"
            ),  # factors: friction, mass of the base, stiffness, and latency in physics steps
        )
        self.mirrors = _mirrors(self)

    def zero(self, command: str) -> Double:
        return self.robot.rest[list(self.moves[command])]

    def reflect(self, changes: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> None:
        """Tell its mirrors, if there are any, what becomes of signals of its own."""
        self.mirrors = tuple(Mirror({**mirror.changes, **changes}) for mirror in self.mirrors)


def _noisy(signal: Signal) -> Signal:
    if signal.name not in NOISE:
        return signal
    return Signal(signal.name, signal.shape, signal.unit, signal.frame, imperfections=(Noise(NOISE[signal.name]),))


def _mirrors(task: Legged) -> tuple[Mirror, ...]:
    """The plane between left and right, if the robot is its own mirror image."""
    robot = task.robot
    if robot.mirror is None:
        return ()
    vector, axial = (range(3), (1.0, -1.0, 1.0)), (range(3), (-1.0, 1.0, -1.0))
    joints, actuators = robot.reflected(False), robot.reflected(True)
    feet = (robot.mirror[2].tolist(), [1.0] * len(robot.feet))
    return (
        Mirror(
            {
                **dict.fromkeys(("projected_gravity", "linear_velocity"), vector),
                "angular_velocity": axial,
                **dict.fromkeys(("joint_position", "joint_velocity"), joints),
                **dict.fromkeys(("position_offset", "last_position_offset"), actuators),
                "target_velocity": (range(2), (1.0, -1.0)),
                "target_turn_rate": (range(1), (-1.0,)),
                "gait_phase": (range(2), (-1.0, -1.0)),  # a foot's partner is half a period away from it
                **dict.fromkeys(("foot_height", "foot_load"), feet),
                "vehicle": (range(4), [1.0] * 4),
            }
        ),
    )
