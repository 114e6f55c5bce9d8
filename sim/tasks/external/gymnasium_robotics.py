"""Gymnasium-Robotics (Farama; PyPI gymnasium-robotics 1.4.2), unmodified: `task=gymnasium/FetchPush-v4` and others.

Physics, episodes, rewards and success are the benchmark's; its numbers get names and SI units. An episode ends with the
first success, where theirs goes on. FrankaKitchen's signals keep the noise that the benchmark adds to them. Adroit's
dense rewards are those since 1.2.1, other than what earlier results were reported on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim import spec
from sim.env import Array, NoExpertError, Step, outcome_scores, world_of
from sim.experts.gymnasium import MAZE_RADIUS
from sim.robots import Robot
from sim.spec import Group
from sim.tasks import remade
from sim.tasks.external.gymnasium_signals import KINDS, Kind

MUJOCO_PY = "MujocoPy"  # in the name of classes that need the bindings of old, which no longer install
KITCHEN = ("bottom burner", "top burner", "light switch", "slide cabinet", "hinge cabinet", "microwave", "kettle")


@cache
def _table() -> dict[str, int]:
    """Name -> steps of an episode, of the environments that run with today's MuJoCo."""
    with contextlib.redirect_stderr(io.StringIO()):  # every import tells the world about Adroit's dense rewards
        import gymnasium
        import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    return {
        name: int(found.max_episode_steps or 0)
        for name, found in gymnasium.registry.items()
        if "gymnasium_robotics" in str(found.entry_point)
        and MUJOCO_PY not in str(found.entry_point)
        and name.startswith(tuple(KINDS))
    }


@cache
def task(name: str) -> Any:
    """The task class of one environment; ValueError with the nearest name when there is none."""
    table = _table()
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else f"; choices: {', '.join(sorted(table))}"
        raise ValueError(f"unknown task 'gymnasium/{name}'{hint}")
    kitchen = name.startswith("FrankaKitchen")
    kind = next(KINDS[start](name) for start in KINDS if name.startswith(start))
    limit = table[name]
    members: dict[str, Any] = {
        "name": f"gymnasium/{name}",
        "environment": name,
        "kind": kind,
        "Config": dataclasses.make_dataclass(
            "Settings",
            [("steps", int, limit)],
            bases=(KitchenSettings if kitchen else Settings,),
            namespace={"limit": limit},
        ),
        "robot": Robot(kind.robot),
        "commands": kind.commands,
        "policy": (*kind.seen, *((kind.goal,) if kind.goal else ())),
        "algorithm": "diffusion" if kind.expert else "rlpd",
        "goal": kind.goal.name if kind.goal else "",
        "achieved": kind.achieved,
        "corruption": kind.corruption,
        "recipes": {"dsrl_na": {"default": {"algorithm.hindsight": 4}}} if kind.achieved else {},
        "scores": {"success": "%", "duration": "s", **({"tasks": "1"} if kitchen else {})},
        "__doc__": name,
    }
    return type("GymnasiumRobotics", (GymnasiumRobotics,), members)


@dataclass
class Settings:
    """Of a task of Gymnasium-Robotics."""

    steps: int = 1  # of an episode at most; the benchmark's
    limit: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= self.limit:
            raise ValueError(f"steps must be between 1 and {self.limit}, the benchmark's longest, got {self.steps}")

    def arguments(self) -> dict[str, Any]:
        """What the environment is made with."""
        return {}


@dataclass
class KitchenSettings(Settings):
    """Of FrankaKitchen."""

    tasks: list[str] = field(default_factory=lambda: list(KITCHEN))  # success is to have done all of them

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [task for task in self.tasks if task not in KITCHEN]
        if unknown or not self.tasks:
            raise ValueError(f"tasks must be some of {', '.join(KITCHEN)}, got {', '.join(self.tasks) or 'none'}")

    def arguments(self) -> dict[str, Any]:
        return {"tasks_to_complete": list(self.tasks)}


class GymnasiumRobotics:
    """One environment of Gymnasium-Robotics."""

    Config: type = Settings
    name = "gymnasium"
    environment = ""
    kind: Kind
    robot: Robot
    algorithm: str
    engine = "its own physics"
    engines: Mapping[str, str] = {}
    privileged: Group = ()
    policy: Group
    commands: Group
    envelope: dict[str, float] = {}
    scores: dict[str, str]
    corruption: dict[str, float]
    closed = -1.0  # what closes the gripper
    separate = True
    goal = ""  # the signal that says what to achieve, and
    achieved = ""  # the one that says what was: for learners that relabel goals; "" where there is none
    recipes: dict[str, Any] = {}

    def __init__(self, config: Settings | None = None) -> None:
        self.config: Settings = config or self.Config()
        self.episode_steps = self.config.steps
        self._first = self.make()
        self.rate_hz = round(1.0 / float(_physics(self._first).dt), 6)
        self._expert = self.kind.expert(self._first) if self.kind.expert else None

    def make(self) -> Any:
        """A new environment."""
        import gymnasium

        environment = gymnasium.make(self.environment, disable_env_checker=True, **self.config.arguments()).unwrapped
        if hasattr(environment, "tmp_xml_file_path"):
            os.unlink(environment.tmp_xml_file_path)  # a maze leaves its file behind
        return environment

    def __reduce__(self) -> Any:
        return remade(self)

    def open(self, num: int, seed: int) -> Scenes:
        return Scenes(self, num, seed)

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        if self._expert is None:
            raise NoExpertError(f"{self.name} has no scripted expert; demonstrations must come from elsewhere")
        commands = self._expert(signals)
        return {s.name: np.clip(commands[s.name], s.low, s.high).astype(np.float32) for s in self.commands}

    def reached(self, achieved: Array, goal: Array) -> NDArray[np.bool_]:
        """Whether what was achieved (n, k) counts as the goal (n, k), (n,); ValueError where there are no goals."""
        if not self.goal:
            raise ValueError(f"{self.name} has no goals to relabel")
        if hasattr(self._first, "_is_success"):
            return np.asarray(self._first._is_success(np.asarray(achieved), np.asarray(goal)) > 0.0)
        return np.asarray(np.linalg.norm(achieved - goal, axis=-1) <= MAZE_RADIUS)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        found = outcome_scores(flight, self.rate_hz)
        if "tasks" in self.scores:
            found["tasks"] = flight["reward"][..., 0].sum(axis=0)  # 1 for every task, once
        return found


def _physics(environment: Any) -> Any:
    """The part of an environment that holds MuJoCo's model and data."""
    for name in ("robot_env", "point_env"):
        if hasattr(environment, name):
            return getattr(environment, name)
    return environment


class Scenes:
    """`num` environments, stepped one after the other."""

    def __init__(self, task: GymnasiumRobotics, num: int, seed: int) -> None:
        self.task, self.num, self.seed = task, num, seed
        self.environments = [task.make() for _ in range(num)]
        self._physics = [_physics(environment) for environment in self.environments]
        scale = [np.full(s.size, task.rate_hz if s.name in task.kind.per_step else 1.0) for s in task.kind.seen]
        goal = np.ones(task.kind.goal.size if task.kind.goal else 0)
        self._scale = np.concatenate([*scale, goal])
        highs = [np.full(s.size, s.high) for s in task.commands]
        self._limits = np.concatenate([*highs, np.ones(task.kind.padding)])
        self._seen = np.zeros((num, len(self._scale)))
        self._camera: Any = None

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        for row, episode in zip(rows, episodes, strict=True):
            seed = np.random.SeedSequence([self.seed, episode]).generate_state(1, np.uint64)[0]
            with world_of(self.task.name, row):
                self._see(row, self.environments[row].reset(seed=int(seed))[0])

    def _see(self, row: int, observation: Any) -> None:
        if isinstance(observation, dict):
            goal = (observation["desired_goal"],) if self.task.goal else ()
            observation = np.concatenate([observation["observation"], *goal])
        self._seen[row] = observation * self._scale

    def observe(self) -> dict[str, Array]:
        return spec.unpack(self.task.policy, self._seen.astype(np.float32))

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        given = [np.asarray(command[s.name], np.float64).reshape(self.num, s.size) for s in self.task.commands]
        still = np.zeros((self.num, self.task.kind.padding))
        actions = np.clip(np.concatenate([*given, still], axis=1) / self._limits, -1.0, 1.0)
        reward, success, lost = np.zeros(self.num, np.float32), np.zeros(self.num, bool), np.zeros(self.num, bool)
        for row, environment in enumerate(self.environments):
            with world_of(self.task.name, row):
                seen, reward[row], ended, _, info = environment.step(actions[row])
            self._see(row, seen)
            success[row] = _succeeded(info)
            # MuJoCo begins anew by itself when a state blows up, and only counts a warning.
            lost[row] = self._physics[row].data.warning.number.any() or (ended and not success[row])
        return Step(reward, success, lost | np.logical_not(np.isfinite(self._seen).all(axis=1)))

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        from sim.render.camera import Camera

        environment, physics, size = self.environments[row], self._physics[row], (height, width)
        if self._camera is None or self._camera.size != size:
            self._camera = Camera(physics.model, height, width)
        if self.task.environment.startswith(("Fetch", "HandReach")):  # they show the goal only in pictures of their own
            for number, position in enumerate(environment.goal.reshape(-1, 3)):
                physics.data.site(f"target{number}").xpos[:] = position
        picture: NDArray[np.uint8] = self._camera.see(physics.data, _view(physics), physics.model)
        return picture

    def close(self) -> None:
        for environment in self.environments:
            environment.close()


def _succeeded(info: Mapping[str, Any]) -> bool:
    if "tasks_to_complete" in info:
        return not info["tasks_to_complete"]
    return bool(info["is_success"] if "is_success" in info else info["success"])


def _view(physics: Any) -> dict[str, Any]:
    """The camera that the benchmark shows people its environment with."""
    chosen = physics.mujoco_renderer.default_cam_config or {}
    around = {"lookat": np.median(physics.data.geom_xpos, axis=0), "distance": physics.model.stat.extent}
    return {**around, "azimuth": 90.0, "elevation": -45.0, **chosen}
