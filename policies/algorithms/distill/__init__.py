"""Distillation: many teachers, each for one random vehicle, teach one recurrent student that flies them all.

The recipe of "RAPTOR" (Eschmann et al. 2025, arXiv 2509.11481), for comparison with `apg`, which needs no teachers, and
for engines without gradients. First every teacher learns its own vehicle with another algorithm (`teacher`). Then the
student flies copies of all these vehicles, and at each step the vehicle's own teacher says what it would have done
there (DAgger, Ross et al. 2011). The student sees what the robot senses and has to find out by flying what its teacher
knows; the teacher sees the truth. Per round: fly a segment, learn from it with gradients through time, forget it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.algorithms import algorithm_class
from policies.algorithms.distill.fused_student import Segment, Student, to_segment
from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from policies.runner.config import RunError
from sim.engines.vector.simd import LANES
from sim.randomize import Array
from sim.robots.quadrotors import Quadrotor
from sim.spec import Signal, size
from sim.tasks import EngineTask
from sim.vec_env import Observation, VecEnv

VEHICLE = Signal("vehicle", (1,))  # number of the vehicle in the table: a parameter without physical meaning

LENGTHS = (0.2, 1.0)  # of the student's flights, as shares of an episode: so that all its parts are in each round

HOPELESS = 20  # refused teachers, per accepted one and in the beginning, after which a run ends with an error

COUNTS = ("refused", "attempt", "round", "flight_seed", "measure_seed")  # attributes, saved as they are

# Who may teach: the name of its budget, how large that is for one vehicle, other settings.
TEACHERS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "apg": ("updates", 1000, {"network": "mlp"}),
    "ppo": ("total_steps", 12_000_000, {}),
    "sac": ("total_steps", 300_000, {}),
}


@dataclass
class DistillConfig:
    """Settings of distill."""

    teachers: int = 50  # accepted ones, each for another vehicle
    teacher: str = "apg"  # the algorithm that makes them: apg | ppo | sac
    teacher_budget: int = 0  # updates of apg, total_steps of ppo and sac; 0: as in `TEACHERS`
    teacher_hidden: list[int] = field(default_factory=lambda: [32, 32])
    teacher_history: int = 8  # own past actions that a teacher sees
    accept: float = 0.9  # the least success rate of a teacher
    attempts: int = 2  # per vehicle, each with another seed; then the vehicle is given up and another one drawn
    hidden: list[int] = field(default_factory=lambda: [16, 16])  # of the student: encoder and recurrent state
    rounds: int = 200
    guided: int = 10  # rounds at the beginning in which the teachers fly and the student watches
    num_envs: int = 1024
    rollout_steps: int = 64  # control steps of each environment per round
    epochs: int = 4  # passes over each rollout
    batch_size: int = 64  # environments per gradient step
    learning_rate: float = 5e-3
    final_learning_rate: float = 2e-4  # reached exponentially
    gradient_clip: float = 0.3  # norm of the whole gradient
    evaluations: int = 5  # success rates reported on the way
    evaluation_episodes: int = 200

    def __post_init__(self) -> None:
        counts = ("teachers", "teacher_history", "attempts", "rounds", "num_envs", "rollout_steps", "epochs")
        if self.teacher not in TEACHERS:
            raise ValueError(f"algorithm.teacher {self.teacher!r} is not one of {', '.join(TEACHERS)}")
        for name in (*counts, "batch_size", "evaluations", "evaluation_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"algorithm.{name} must be at least 1, got {getattr(self, name)}")
        if self.batch_size % LANES or self.num_envs % self.batch_size:
            raise ValueError(
                f"needs batch_size a multiple of {LANES} and num_envs a multiple of batch_size, got "
                f"{self.batch_size}, {self.num_envs}"
            )
        if not 0.0 <= self.accept <= 1.0:
            raise ValueError(f"algorithm.accept is a success rate, 0..1, got {self.accept}")
        for name in ("guided", "teacher_budget"):
            if getattr(self, name) < 0:
                raise ValueError(f"algorithm.{name} must not be negative, got {getattr(self, name)}")
        if not 0.0 < self.final_learning_rate <= self.learning_rate:
            raise ValueError(
                f"needs 0 < final_learning_rate <= learning_rate, got {self.final_learning_rate}, {self.learning_rate}"
            )
        if len(self.hidden) != 2:
            raise ValueError(f"algorithm.hidden takes two sizes (encoder, state), got {self.hidden}")


@dataclass(frozen=True)
class Table(Quadrotor):
    """A robot that is always one of the vehicles in `rows`, parameter name -> (vehicles, k)."""

    rows: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, robot: Quadrotor, rows: Mapping[str, Array]) -> Table:
        """Variants of `robot` with these parameters, numbered by the parameter "vehicle"."""
        count = len(next(iter(rows.values())))
        number = np.arange(count, dtype=np.float32)[:, None]
        known = {f.name: getattr(robot, f.name) for f in dataclasses.fields(Quadrotor)}
        return cls(**known, rows={**rows, VEHICLE.name: number})

    def parameters(self) -> dict[str, Array]:
        return super().parameters() | {name: value[0] for name, value in self.rows.items()}

    def draw(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        """n of the vehicles, each as likely as another: name -> (n, k)."""
        chosen = rng.integers(len(self.rows[VEHICLE.name]), size=n)
        return {name: value[chosen] for name, value in self.rows.items()}


def with_robot(task: EngineTask, robot: Quadrotor, history: int) -> EngineTask:
    """The same task for another robot and another number of past actions in its features."""
    changed = copy.copy(task)
    changed.robot, changed.history = robot, history
    return changed


def consult(teachers: Sequence[Mlp], features: Array, vehicle: NDArray[np.int64]) -> Array:
    """What the teacher of each `vehicle` (n,) does on `features` (n, f): actions (n, k)."""
    answer = np.empty((len(features), teachers[0].outputs), np.float32)
    order = np.argsort(vehicle, kind="stable")
    ends = np.cumsum(np.bincount(vehicle, minlength=len(teachers)))
    for teacher, rows in zip(teachers, np.split(order, ends[:-1]), strict=True):
        if len(rows):
            answer[rows], _ = teacher.forward(features[rows], {})
    return answer


def _joined(observations: Sequence[Observation]) -> Observation:
    """Observations (n, ...) one below the other, without what the policy sees: (T n, ...)."""

    def named(group: str) -> dict[str, Tensor]:
        names = observations[0][group]  # type: ignore[literal-required]
        return {name: torch.cat([o[group][name] for o in observations]) for name in names}  # type: ignore[literal-required]

    history = torch.cat([o["history"] for o in observations])
    truth, privileged = named("truth"), named("privileged")
    return Observation(policy={}, truth=truth, privileged=privileged, pictures={}, history=history)


class Distill:
    """See the module."""

    Config = DistillConfig
    needs: tuple[type, ...] = (EngineTask,)
    takes: tuple[str, ...] = ()

    def __init__(self, task: EngineTask, config: DistillConfig, seed: int, device: str = "cpu") -> None:
        if device != "cpu":
            raise ValueError(f"distill runs on the CPU only, got device={device}; use device=cpu")
        self.task, self.config = task, config
        weights, vehicles, self.flight_seed, self.measure_seed = map(
            int, np.random.SeedSequence(seed).generate_state(4)
        )
        self.rng = np.random.default_rng(vehicles)  # the vehicles and the seeds of their teachers
        self.rows: dict[str, list[Array]] = {}  # of the accepted vehicles, name -> (k,) each
        self.networks: list[Mlp] = []  # of their teachers
        self.refused = 0  # trained teachers that do not fly well enough
        self.vehicle: dict[str, Array] = self._draw()  # the one whose teacher is next, name -> (1, k)
        self.attempt = 0
        self.teacher_steps = 0.0
        self._teacher(0)  # to say at once what is wrong with the settings
        width = size(task.commands)
        sizes = {s.name: s.size for s in task.policy} | {"history": task.history * width}
        features = sum(sizes[f.signal] for f in task.features)
        rng = np.random.default_rng(weights)
        self.student = Student(features, config.hidden, width, rng, task.initial_action, config.rollout_steps)
        self.hidden = np.zeros((config.num_envs, config.hidden[1]), np.float32)  # the student's, in its environments
        self.round = 0
        self.dump_dir: Path | None = None
        self.env: VecEnv | None = None  # the student's; there is none before all teachers are there

    def learn(self) -> Iterator[dict[str, float]]:
        """Train the teachers, one per yield, then the student, one round per yield."""
        c = self.config
        while len(self.networks) < c.teachers:
            yield self._teach() | self._progress()
        if self.env is None:
            self.env = self._flights()
        measure = {math.ceil(c.rounds * (k + 1) / c.evaluations) for k in range(c.evaluations)}
        while self.round < c.rounds:
            metrics = self._study(self._fly(self.env))
            self.round += 1
            if self.round in measure:
                metrics["success"] = float(self.evaluate(c.evaluation_episodes)["success"].mean())
            yield metrics | self._progress()

    def _progress(self) -> dict[str, float]:
        c = self.config
        return {
            "progress": (len(self.networks) + self.round) / (c.teachers + c.rounds),
            "env_steps": self.teacher_steps + self.round * c.num_envs * c.rollout_steps,
            "teachers": float(len(self.networks)),
            "refused": float(self.refused),
        }

    def _draw(self) -> dict[str, Array]:
        """The next vehicle, name -> (1, k). The task's robot may be a single one: then they are all the same."""
        return self.task.robot.draw(self.rng, 1) or {"mass": self.task.robot.parameters()["mass"][None]}

    def _teacher(self, seed: int) -> Any:
        """A learner for the next vehicle."""
        c = self.config
        budget, default, others = TEACHERS[c.teacher]
        made = algorithm_class(c.teacher)
        config = made.Config(hidden=[*c.teacher_hidden], **{budget: c.teacher_budget or default}, **others)
        task = with_robot(self.task, Table.of(self.task.robot, self.vehicle), c.teacher_history)
        return made(task, config, seed)

    def _teach(self) -> dict[str, float]:
        """Train one teacher; keep it if it flies well."""
        c = self.config
        teacher = self._teacher(int(self.rng.integers(2**31)))
        success = 0.0
        for metrics in teacher.learn():
            success = metrics.get("success", success)
        self.teacher_steps += metrics["env_steps"]
        self.attempt += 1
        if success >= c.accept:
            self.networks.append(teacher.controller().network)
            for name, value in self.vehicle.items():
                self.rows.setdefault(name, []).append(value[0])
        else:
            self.refused += 1
            if self.refused >= HOPELESS * (1 + len(self.networks)):
                raise RunError(
                    f"{self.refused} teachers fly too badly, {len(self.networks)} well enough (success of at least "
                    f"{c.accept:g}): give them a larger budget (algorithm.teacher_budget) or set algorithm.accept"
                )
        if success >= c.accept or self.attempt == c.attempts:
            self.vehicle, self.attempt = self._draw(), 0
        kept = {name: metrics[name] for name in ("loss", "reward") if name in metrics}
        return {**kept, "teacher_success": success}

    def _flights(self) -> VecEnv:
        """Where the student flies: every episode is one of the vehicles that have a teacher."""
        c = self.config
        robot = Table.of(self.task.robot, {name: np.stack(values) for name, values in self.rows.items()})
        task = with_robot(self.task, robot, max(self.task.history, c.teacher_history))
        task.privileged = (VEHICLE,)
        return VecEnv(task, c.num_envs, task.engine, self.flight_seed, dump_dir=self.dump_dir, lengths=LENGTHS)

    def _features(self, signals: Mapping[str, Tensor], history: Tensor, length: int) -> Array:
        """The task's features (..., f) of these signals and of the `length` newest actions in `history` (..., m)."""
        values = {**signals, "history": history[..., : length * size(self.task.commands)]}
        found: Array = torch.cat([feature.evaluate(values) for feature in self.task.features], -1).numpy()
        return found

    def sees(self, observation: Observation) -> Array:
        """The student's features (..., f)."""
        return self._features(observation["policy"], observation["history"], self.task.history)

    def label(self, observation: Observation) -> Array:
        """What each vehicle's own teacher would do, without noise and delay of the sensors: actions (n, k)."""
        features = self._features(observation["truth"], observation["history"], self.config.teacher_history)
        return consult(self.networks, features, observation["privileged"][VEHICLE.name][:, 0].long().numpy())

    def _fly(self, env: VecEnv) -> Segment:
        """One segment in all environments; the teachers fly, or the student does."""
        student, guided = self.student.network(), self.round < self.config.guided
        before, observation = self.hidden, env.observation
        seen: list[Array] = []
        goes_on: list[Array] = []
        watched: list[Observation] = []
        for _ in range(self.config.rollout_steps):
            seen.append(self.sees(observation))
            watched.append(observation)
            action, state = student.forward(seen[-1], {"hidden": self.hidden})
            if guided:
                action = self.label(observation)
            step = env.step(torch.from_numpy(action))
            goes_on.append((~step.done).numpy().astype(np.float32)[:, None])
            self.hidden, observation = state["hidden"] * goes_on[-1], step.observation
        label = self.label(_joined(watched)).reshape(len(seen), len(before), -1)
        return to_segment(np.stack(seen), label, np.stack(goes_on), before)

    def _study(self, segment: Segment) -> dict[str, float]:
        """Learn from a segment; the loss is that of the first pass."""
        c = self.config
        rate = c.learning_rate * (c.final_learning_rate / c.learning_rate) ** (self.round / c.rounds)
        passes = [self.student.study(segment, c.batch_size // LANES, rate, c.gradient_clip) for _ in range(c.epochs)]
        return {"loss": passes[0][0], "gradient_norm": passes[-1][1], "learning_rate": rate}

    def evaluate(self, episodes: int) -> dict[str, Array]:
        """The task's scores (episodes,) of the student on vehicles of the task, not only on those with a teacher."""
        env = VecEnv(self.task, episodes, self.task.engine, self.measure_seed)
        student = self.student.network()
        state = student.initial_state(episodes)

        def act(observation: Observation) -> Tensor:
            nonlocal state
            action, state = student.forward(self.sees(observation), state)
            return torch.from_numpy(action)

        return env.fly(act)

    def controller(self) -> FeaturePolicy:
        """The student."""
        return FeaturePolicy.from_task(self.task, self.student.network())

    def dump_to(self, folder: Path) -> None:
        self.dump_dir = folder
        if self.env is not None:
            self.env.dump_dir = folder

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        return {
            "rng": self.rng.bit_generator.state,
            "rows": {name: [value.copy() for value in values] for name, values in self.rows.items()},
            "networks": [
                {"layers": [list(layer) for layer in n.layers], "activation": n.activation} for n in self.networks
            ],
            "vehicle": {name: value.copy() for name, value in self.vehicle.items()},
            "teacher_steps": self.teacher_steps,
            **{name: getattr(self, name) for name in COUNTS},
            "student": self.student.state_dict(),
            "hidden": self.hidden.copy(),
            "env": self.env.state_dict() if self.env is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same task and settings."""
        self.rng.bit_generator.state = state["rng"]
        self.rows = {name: [np.array(value) for value in values] for name, values in state["rows"].items()}
        self.networks = [Mlp([tuple(layer) for layer in n["layers"]], n["activation"]) for n in state["networks"]]
        self.vehicle = {name: np.array(value) for name, value in state["vehicle"].items()}
        for name in COUNTS:
            setattr(self, name, int(state[name]))
        self.teacher_steps = float(state["teacher_steps"])
        self.student.load_state_dict(state["student"])
        self.hidden = np.array(state["hidden"])
        self.env = None
        if state["env"] is not None:
            self.env = self._flights()
            self.env.load_state_dict(state["env"])
