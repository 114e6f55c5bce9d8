"""Get up from the floor and stand still: any legged robot, from its MJCF or URDF file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.env import Array, NoExpertError, outcome_scores
from sim.registry import load
from sim.robots.legs import HOLD, ROPE, Legs
from sim.spec import Signal
from sim.tasks import PLACE, Recipes
from sim.tasks.legs.legged import SETTINGS, Legged, LeggedConfig
from sim.tasks.legs.motions import LYING, REFERENCE, Script, Timetable, motions_of
from sim.tasks.legs.walking import Walking, square
from sim.tasks.opponents import Play

if TYPE_CHECKING:
    from sim.engines.scene import Scene
    from sim.robots.mjcf import Double
    from sim.tasks.legs.disturbances import Vehicle

# The quarter turns from standing to lying on the back, the front, the left and the right side: axis (in the base's axes
# at the start), and the sign of 90 degrees.
SIDES = ((1, -1.0), (1, 1.0), (0, -1.0), (0, 1.0))
ROLLED = 0.4  # rad: how far it is from lying so at most, about each axis
SETTLES = 0.6  # s, before a motion begins whose states are starts
TREMBLE = 0.02  # of a command's range: what makes the expert mediocre
BENT = 0.5  # rad (m): how far joints are from where they begin otherwise at most
# Term -> weight, per control step.
WEIGHTS = {
    "upright": 0.5,  # ((1 + cosine of the tilt) / 2)^2
    "height": 1.0,  # of the base, as a share of where it stands
    "feet": 1.0,  # exp(-(distance / BELOW)^2) of the base from the middle of its feet, along the floor; times `upright`
    "pose": 1.0,  # exp(-rad^2), all joints, from where they begin; what it is upright and high times that
    "standing": 2.0,  # 1, whether it stands still
    "action_rate": -0.05,  # rad^2, all servos, from one command to the next
    "effort": -0.02,  # rad^2, all servos, between where they are told to be and are
    "spin": -0.02,  # (rad/s)^2, of the base
}

RECIPE = {
    **SETTINGS,
    "algorithm.total_steps": 1_000_000,
    "algorithm.num_envs": 256,
    "algorithm.epochs": 3,
    "algorithm.minibatches": 8,
    "algorithm.gamma": 0.995,
    "algorithm.learning_rate": 5e-5,
    "algorithm.final_learning_rate": 1e-5,
    "algorithm.entropy": 0.0,
    "algorithm.initial_std": 0.03,  # in actions of +-2.2 rad: who trembles more never stands still
    "algorithm.min_std": 0.015,
    "algorithm.imitation": 3.0,
    "algorithm.final_imitation": 0.1,
    "algorithm.alone": 0.1,
    "algorithm.alone_rate": 1e-3,
    "algorithm.guided": 0.05,
    "task.lying": 0.5,
}
BELOW = 0.8  # of the base's height where it stands


@dataclass
class GetUpConfig(LeggedConfig):
    """Settings of get_up. `lowest`, `tilt`: how it stands at last."""

    robot: str = field(default="simple_humanoid", metadata={PLACE: True})
    steps: int = 400
    forward: list[float] = field(default_factory=lambda: [0.0, 0.0])
    sideways: float = 0.0
    turn: float = 0.0
    standing: float = 1.0
    reach: float = 2.2
    lowest: float = 0.9
    tilt: float = 15.0
    thrown: float = 0.0
    push: float = 0.0
    contacts: str = "floor"
    lying: float = 1.0  # share of the episodes that begin lying; others anywhere between that and standing
    # shares of its weight that a spring from above holds, at least and at most, in an episode
    held: list[float] = field(default_factory=lambda: [0.0, 0.0])
    seconds: float = 1.0  # for which it is to stand
    motions: str = field(default="", metadata={PLACE: True})  # file of keyframes; "": ours, of a robot that has some
    clock: bool = True  # whether the policy is told where in a motion it is: the `reference` of now
    speed: float = 0.2  # m/s: less is to stand still; of turning, rad/s, five times that

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.lying <= 1.0:
            raise ValueError(f"lying is a share, 0 to 1, got {self.lying:g}")
        if len(self.held) != 2 or not 0.0 <= self.held[0] <= self.held[1] <= 1.0:
            raise ValueError(f"held are two shares, 0 to 1, the lowest first, got {self.held}")
        if self.contacts == "feet":
            raise ValueError("contacts must be floor or all: whoever lies touches the floor with more than feet")
        if not 0.0 <= self.seconds < self.steps / self.rate_hz or not self.speed > 0.0:
            raise ValueError(f"needs 0 <= seconds < {self.steps / self.rate_hz:g} (an episode) and speed > 0")

    def legs(self) -> Legs:
        return dataclasses.replace(super().legs(), held=self.held[1] > 0.0)


class GetUp(Legged):
    """The same, to get up from the floor.

    Success: it has stood upright, at its full height and still, for a second.
    """

    Config = GetUpConfig
    name = "get_up"
    recipes: Recipes = {"ppo": {"default": RECIPE}}
    scores = {"success": "%", "duration": "s", "height": "%", "tilt": "deg"}
    config: GetUpConfig

    def __init__(self, config: GetUpConfig | None = None) -> None:
        super().__init__(config)
        config, robot = self.config, self.robot
        self.policy = tuple(s for s in self.policy if not s.name.startswith("target_"))
        joints = robot.servos
        self.motions = motions_of(robot.name, config.motions, joints)
        reference = (Signal(REFERENCE, (len(joints),), "rad"),)  # what its expert tells the servos now
        clock = bool(self.motions) and config.clock
        self.policy += reference if clock else ()
        self.privileged += (Signal("held", (1,), "1", "", 0.0, 1.0),)  # share of its weight
        self.privileged += () if clock else reference
        if robot.mirror is not None:
            self.reflect({"held": (range(1), [1.0]), REFERENCE: robot.reflected(True)})
        self.corruption: dict[str, float] = {s.name: TREMBLE * (s.high - s.low) for s in self.commands}

    def elements(self) -> dict[str, tuple[str, ...]]:
        return super().elements() | {REFERENCE: tuple(self.robot.servos)}

    @property
    def baselines(self) -> Mapping[str, Play]:
        """The expert."""
        return {"keyframes": self.expert}

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """Goes through the motion for how it lies (`sim.tasks.legs.motions`). NoExpertError where there is none."""
        if not self.motions:
            raise NoExpertError(
                f"there are no keyframes by which {self.robot.name} gets up: find some (policies.find_motions) for "
                "task.motions=FILE, or learn without: algorithm.imitation=0 algorithm.final_imitation=0 "
                "algorithm.alone=0 algorithm.alone_rate=0 algorithm.guided=0"
            )
        return {name: signals[REFERENCE][:, list(numbers)] for name, numbers in self.moves.items()}

    def script(self, num: int) -> Script:
        """Of so many rows; there must be motions."""
        mirror = self.robot.reflected(True) if self.robot.mirror is not None else None
        return Script(self.motions, self.rate_hz, num, mirror)

    @property
    def timetable(self) -> Timetable | None:
        """By which the policy finds out what its signal `reference` says, if it is told that."""
        return self.script(0).timetable if self.motions and self.config.clock else None

    def open(self, num: int, seed: int) -> Walking:
        return Lying(self, num, seed)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        tilt = np.degrees(np.arccos(np.clip(-flight["projected_gravity"][-1, :, 2], -1.0, 1.0)))
        height = flight["height"][-1, :, 0] / np.float32(self.robot.height)
        return outcome_scores(flight, self.rate_hz) | {"height": height, "tilt": tilt.astype(np.float32)}


class Lying(Walking):
    """Worlds of `GetUp`."""

    task: GetUp

    def __init__(self, task: GetUp, num: int, seed: int, threads: int | None = None) -> None:
        super().__init__(task, num, seed, threads)
        self._stands = np.zeros(num, int)  # control steps for which it has stood still
        self._held = np.zeros(num)  # share of its weight
        self._holds = task.config.held[1] > 0.0
        self.weights = WEIGHTS
        self._script = task.script(num) if task.motions else None
        self._along = self._go_along() if self._script and task.config.lying < 1.0 else []

    def _go_along(self) -> list[tuple[Double, Double]]:
        """Joint positions (steps, nq) and velocities (steps, nv) of the nominal robot in each of its motions."""
        robot, count = self.legs, len(LYING)
        scene: Scene = load("engine", "mujoco", self.task.engines)(robot.physics, count, 1.0 / self.task.rate_hz, 1)
        script = Script(self.task.motions, self.task.rate_hz, count)
        starts = []
        for side in range(count):
            qpos = robot.start.copy()
            self._lay(qpos, side, np.zeros(3))
            robot.put_down(qpos)
            starts.append(qpos)
        scene.reset(range(count), np.stack(starts))
        for _ in range(round(SETTLES * self.task.rate_hz)):
            scene.step(np.tile(robot.rest, (count, 1)))
        script.begin(np.arange(count), np.arange(count))
        past = []
        for _ in range(int(script.steps.max())):
            past.append((scene.qpos.copy(), scene.qvel.copy()))
            scene.step(robot.rest + script.reference())
            script.move()
        scene.close()
        qpos, qvel = (np.stack(values, axis=1) for values in zip(*past, strict=True))
        return [(qpos[k, :steps], qvel[k, :steps]) for k, steps in enumerate(script.steps)]

    def change(self, model: Any, row: int, drawn: Vehicle) -> None:
        super().change(model, row, drawn)
        if self._holds:
            model.tendon_stiffness[model.tendon(HOLD).id] = self._held[row] * self._weight / ROPE

    def begin(self, row: int, rng: np.random.Generator) -> tuple[Double, Double]:
        robot, script = self.legs, self._script
        if self._holds:
            least, most = self.task.config.held
            self._held[row] = rng.uniform(least, most)
        qpos, qvel = super().begin(row, rng)
        self._stands[row] = 0
        side, lies = int(rng.integers(len(SIDES))), rng.uniform() < self.task.config.lying
        if script and not lies:
            motion = int(rng.integers(len(self._along)))
            step = int(rng.integers(len(self._along[motion][0])))
            script.begin(row, motion, step)
            if step:
                self._told[:, row] += script.told(row)
            return self._along[motion][0][step].copy(), self._along[motion][1][step].copy()
        far = 1.0 if lies else rng.uniform()
        self._lay(qpos, side, ROLLED * rng.uniform(-1.0, 1.0, 3), far, rng.uniform(-np.pi, np.pi))
        bent = BENT * far * rng.uniform(-1.0, 1.0, len(robot.joints))
        qpos[robot.positions] = np.clip(robot.home + bent, robot.low, robot.high)
        robot.put_down(qpos)
        if script:
            script.begin(row, script.timetable.nearest(self._down(qpos[None]))[0])
        return qpos, qvel

    def _lay(self, qpos: Double, side: int, rolled: Double, far: float = 1.0, yaw: float = 0.0) -> None:
        """Turn joint positions (nq,) from standing so `far` towards lying on that side, and by `rolled` rad beside."""
        place, turned = self._place + 3, np.zeros(3)
        axis, sign = SIDES[side]
        turned[axis] = sign * 0.5 * np.pi
        attitude = _turned(self.legs.start[place : place + 4], far * (turned + rolled))
        qpos[place : place + 4] = _turned(attitude, np.array([0.0, 0.0, yaw]))

    def _down(self, qpos: Double) -> Double:
        """The direction of gravity (n, 3) in the body's axes."""
        return -self.to_body(qpos)[:, :, 2]

    def carry_out(self, control: Double) -> None:
        super().carry_out(control)
        if self._script:
            self._script.go_on(self._down(self.scene.qpos))

    def signals(self) -> dict[str, Array]:
        reference = self._script.reference() if self._script else np.zeros_like(self._told[0])
        known = {name: value for name, value in super().signals().items() if not name.startswith("target_")}
        return known | {"held": self._held[:, None], REFERENCE: reference}

    def judge(self, seen: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        config, terms = self.task.config, self.terms(seen)
        self._stands = np.where(terms["standing"] > 0.0, self._stands + 1, 0)
        success = self._stands >= max(1, round(config.seconds * config.rate_hz))
        return np.maximum(self.weighted(terms), 0.0), success, np.zeros(self.num, bool)

    def terms(self, seen: Mapping[str, Array]) -> dict[str, Array]:
        config, robot = self.task.config, self.legs
        cosine = -seen["projected_gravity"][:, 2]
        upright, height = (0.5 + 0.5 * cosine) ** 2, np.clip(seen["height"][:, 0] / self._height, 0.0, 1.0)
        joints = self.scene.qpos[:, robot.positions]
        moving, turning = (np.linalg.norm(seen[f"{name}_velocity"], axis=1) for name in ("linear", "angular"))
        base = self.scene.qpos[:, self._place : self._place + 2]
        away = np.linalg.norm(self._felt["position"][..., :2].mean(axis=1) - base, axis=1) / (BELOW * self._height)
        stands = (cosine > np.cos(np.radians(config.tilt))) & (height > config.lowest)
        stands &= (moving < config.speed) & (turning < 5.0 * config.speed)
        return {
            "upright": upright,
            "height": height,
            "feet": upright * np.exp(-(away**2)),
            "pose": upright * height * np.exp(-square(joints - robot.home)),
            "standing": stands.astype(float),
            "action_rate": square(self._told[0] - self._told[1]),
            "effort": square(self._told[0] - joints[:, robot.served]),
            "spin": turning**2,
        }


def _turned(quaternion: Double, by: Double) -> Double:
    """The attitude (4,), turned by a rotation vector (3,) rad in the world's axes."""
    angle = float(np.linalg.norm(by))
    w, v = np.cos(0.5 * angle), np.sin(0.5 * angle) * by / max(angle, 1e-12)
    scalar, vector = quaternion[0], quaternion[1:]
    return np.concatenate([[w * scalar - v @ vector], w * vector + scalar * v + np.cross(v, vector)])
