"""Any task in a world learned from its episodes (`policies.train_world`): `task=learned/TASK task.world=FILE.npz`.

Nothing is simulated. An episode begins at a moment that was recorded. It ends with what looks like success, and as lost
where the members of the ensemble disagree: nothing near was recorded, so nothing may be gained there. What is learned
inside has to be evaluated outside. After World-Env (Xiao et al. 2025, arXiv 2509.24948) and PETS (Chua et al. 2018).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim import spec
from sim.engines.learned import LearnedWorld, WorldFileError
from sim.env import Array, Env, Step, outcome_scores
from sim.render.scatter import scattered
from sim.spec import Group
from sim.tasks import PLACE, make, recipes_of, task_class
from sim.terms import Feature

RELABELS = "algorithm.hindsight"  # whose task can be told again with another goal, which a learned one cannot


@dataclass
class Settings:
    """Of a task in a learned world."""

    world: str = field(default="", metadata={PLACE: True})  # the file
    steps: int = 60  # of an episode at most
    anywhere: float = 0.5  # share of episodes that begin at any recorded moment; others where an episode began
    penalty: bool = True  # whether to be where nothing was recorded is to be lost
    agree: float = 0.6  # share of the members that must also have seen success once, sent the same commands

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0.0 <= self.anywhere <= 1.0:
            raise ValueError(f"needs steps >= 1 and 0 <= anywhere <= 1, got {self.steps} and {self.anywhere}")
        if not 0.0 <= self.agree <= 1.0:
            raise ValueError(f"agree, a share of the members, lies between 0 and 1, got {self.agree}")


@functools.cache
def task(name: str) -> Any:
    """The task class of that task in a learned world."""
    real = task_class(name)
    recipes = {
        algorithm: {
            kind: {k: v for k, v in told.items() if not k.startswith("task.") and k != RELABELS}
            for kind, told in recipes_of(real, algorithm).items()
        }
        for algorithm in getattr(real, "recipes", {})
    }
    members = {"name": name, "recipes": recipes, "__doc__": name}
    return type("Learned", (Learned,), members)


class Learned:
    """A task whose world was learned. Name, signals and settings are the task's own, and so are its policy files'."""

    Config = Settings
    name = "learned"
    engine = "a learned world"
    engines: Mapping[str, str] = {}
    goal = ""
    envelope: dict[str, float] = {}
    scores = {"success": "%", "duration": "s"}
    separate = True
    recipes: Mapping[str, Any] = {}

    def __init__(self, config: Settings | None = None) -> None:
        self.inside = config or Settings()
        self.episode_steps = self.inside.steps
        if not self.inside.world:
            raise ValueError(
                f"learned/{self.name} needs task.world=FILE.npz; make it with: python -m policies.train_world"
            )
        real: Any = make(self.name)
        self.config = real.config
        self.robot, self.rate_hz, self.algorithm = real.robot, real.rate_hz, real.algorithm
        self.policy: Group = real.policy
        self.privileged: Group = real.privileged
        self.commands: Group = real.commands
        if hasattr(real, "features"):
            self.features: tuple[Feature, ...] = real.features
        told = told_of(real)
        self.world = LearnedWorld.load(self.inside.world, told, spec.size(self.commands))
        if self.world.task != self.name:
            raise WorldFileError(f"{self.inside.world}: it was learned of {self.world.task}, not of {self.name}")
        self.told = told

    def __reduce__(self) -> Any:
        return functools.partial(make, f"learned/{self.name}", **dataclasses.asdict(self.inside)), ()

    def open(self, num: int, seed: int) -> Env:
        return Imagined(self, num, seed)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        return outcome_scores(flight, self.rate_hz)


def told_of(task: Any) -> Group:
    """The signals that make up a task's state; ValueError for one whose world cannot be learned."""
    told: Group = (*task.policy, *task.privileged)
    if spec.numbers(told) != told:
        raise ValueError(f"{task.name} shows pictures or is told words: a learned world predicts numbers only")
    return told


class Imagined:
    """`num` episodes in a learned world."""

    def __init__(self, task: Learned, num: int, seed: int) -> None:
        self.task, self.num, self.seed = task, num, seed
        members = len(task.world.moves.weights[0])
        self._state = np.zeros((num, spec.size(task.told)), np.float32)
        self._last = np.zeros_like(self._state)  # how it changed
        self._member = np.zeros(num, np.int64)
        self._each = np.zeros((members, *self._state.shape), np.float32)  # where each member alone would be by now
        self._each_last = np.zeros_like(self._each)
        self._agreed = np.zeros((members, num), bool)  # who of them has seen success when the episode did, once
        self._needed = math.ceil(task.inside.agree * members - 1e-6)
        self._apart = np.zeros(num, np.float32)
        self._believed = np.zeros(num, np.int64)  # frames in a row that looked like success
        low, high = spec.limits(task.commands)
        self._middle, self._half = 0.5 * (low + high), 0.5 * (high - low)

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        world = self.task.world
        for row, episode in zip(rows, episodes, strict=True):
            rng = np.random.default_rng([self.seed, episode])
            any_moment = rng.random() < self.task.inside.anywhere
            moment = rng.integers(len(world.moments)) if any_moment else rng.choice(world.first)
            self._state[row], self._last[row], self._apart[row] = world.moments[moment], world.changes[moment], 0.0
            self._member[row] = rng.integers(len(world.moves.weights[0]))
            self._believed[row], self._agreed[:, row] = 0, False
            self._each[:, row], self._each_last[:, row] = self._state[row], self._last[row]

    def observe(self) -> dict[str, Array]:
        return spec.unpack(self.task.told, self._state.copy())

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        world, told = self.task.world, spec.pack(self.task.commands, command)
        action = np.clip((told - self._middle) / self._half, -1.0, 1.0).astype(np.float32)
        moved, self._apart = world.after(self._state, self._last, action, self._member)
        self._state, self._last = moved, moved - self._state
        if self._needed > 1:
            each = world.apart(self._each, self._each_last, action)
            self._each, self._each_last = each, each - self._each
        unknown: NDArray[np.bool_] = self._apart > world.cut
        believed = (world.believed(self._state) > world.bar) & ~unknown
        self._believed = np.where(believed, self._believed + 1, 0)
        success = self._believed >= world.frames
        if self._needed > 1:
            for row in map(int, np.flatnonzero(believed)):
                self._agreed[:, row] |= world.believed(self._each[:, row]) > world.bar
            success &= self._agreed.sum(axis=0) >= self._needed
        lost = unknown if self.task.inside.penalty else np.zeros(self.num, bool)
        return Step(success.astype(np.float32), success, lost)

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        where, world = spec.slices(self.task.told), self.task.world
        shown = [where[s.name] for s in spec.places(self.task.told)]
        places, low, high = ([edge[at] for at in shown] for edge in (self._state[row], world.low, world.high))
        return scattered(places, low, high, height, width)

    def close(self) -> None:
        """Nothing is held."""
