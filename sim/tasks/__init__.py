"""The table of tasks: name -> "module:Class", imported when asked for; and the protocol that a task file follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from sim.randomize import Array, Vary
from sim.registry import load
from sim.robots.quadrotors import Quadrotor
from sim.spec import Group
from sim.terms import Cost, Curriculum, Feature

TASKS = {
    "quad_hover": "sim.tasks.quad_hover:QuadHover",
    "quad_track": "sim.tasks.quad_track:QuadTrack",
    "quad_any": "sim.tasks.quad_any:QuadAny",
}
# Tasks that bring their own physics: see `sim.workcell`.
MANIPULATION = {
    "arm_reach": "sim.tasks.arm_reach:ArmReach",
    "arm_push": "sim.tasks.arm_push:ArmPush",
    "arm_pick_place": "sim.tasks.arm_pick_place:ArmPickPlace",
}
# Collections of such tasks by others, FAMILY/NAME: each entry is a function, NAME -> the task class.
FAMILIES = {
    "metaworld": "sim.tasks.external.metaworld:task",
    "gymnasium": "sim.tasks.external.gymnasium_robotics:task",
}


# Algorithm -> name of the recipe -> setting -> value; see `policies.algorithms.Algorithm`.
Recipes = dict[str, dict[str, dict[str, Any]]]


class Task(Protocol):
    """What a robot should do. A task declares; the environment, the trainers and the exported graph carry it out.

    `policy` are the signals that the robot can measure, `privileged` those that only a critic may see (engine state or
    parameters by name, and "delay" in control steps). `motion` below describes the moving target of one episode.
    """

    Config: type
    name: str
    robot: Quadrotor
    rate_hz: float
    episode_steps: int
    policy: Group
    privileged: Group
    commands: Group
    features: tuple[Feature, ...]
    history: int  # how many of its own past actions the policy sees
    initial_action: float  # [-1, 1]: what the history holds, and the robot executes, before the first command
    costs: tuple[Cost, ...]
    alive_bonus: float  # added to the reward per step, for learners that care about termination
    curriculum: tuple[Curriculum, ...]
    vary: tuple[Vary, ...]
    envelope: dict[str, float]  # limits at which a real robot is stopped: fields of deploy.safety.envelope.Envelope
    scores: dict[str, str]  # name -> unit of what `score` returns

    def reset(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        """Initial states by engine name, (n, k), and "motion" (n, 3, m)."""

    def easier(self, state: Mapping[str, Array], difficulty: Array) -> dict[str, Array]:
        """The starts that `reset` drew, moved toward the easiest one: `difficulty` (n, 1) from 0 to 1, unchanged.

        For learners without gradients, to which the hardest starts alone teach nothing.
        """

    def reference(self, motion: Any, time: Any) -> dict[str, Any]:
        """The target signals (n, k) at `time` (n,) seconds into the episode; numpy arrays or torch tensors."""

    def terminated(self, signals: Mapping[str, Any]) -> Any:
        """(n,) bool: lost, given noise-free signals by name (n, k). Time limits are the environment's business."""

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        """What users care about, per episode: name -> (n,), from recordings (steps, n, k); "success" is 0 or 1."""


def task_class(name: str) -> Any:
    """The task class of that name, of "family/name" or of "module:Class"; ValueError lists the choices."""
    family, _, member = name.partition("/")
    if family in FAMILIES and member:
        return load("family of tasks", family, FAMILIES)(member)
    return load("task", name, TASKS | MANIPULATION)


def make(name: str, **config: Any) -> Task:
    """A task by name, with fields of its `Config` set by keyword."""
    cls = task_class(name)
    try:
        made: Task = cls(cls.Config(**config))
    except TypeError as error:
        choices = ", ".join(cls.Config.__dataclass_fields__)
        raise ValueError(f"task {name!r}: {error}; its settings are: {choices}") from None
    return made
