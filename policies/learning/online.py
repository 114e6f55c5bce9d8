"""Improving a cloned base by reinforcement learning in scenes: what all such learners share.

Demonstrations, cloning, warm-up episodes, then a chunk at a time: the learner chooses, the scene executes, the learner
keeps what came of it and updates. Everything is decided by the seed, and continues exactly from a checkpoint.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from policies.algorithms import LearningError
from policies.algorithms.bc import Cloning, check
from policies.collect import DEMONSTRATIONS
from policies.learning.asymmetric import AsymmetricObservation
from policies.learning.base import Given, Origin, Served, origin
from policies.learning.chunk_rollout import ChunkRewards, ChunkRollout, Transition
from policies.learning.demonstrations import Demonstrations, chunked, demonstrated
from policies.learning.hindsight import Hindsight
from policies.learning.networks import Stateful
from policies.models.chunking import Base
from policies.models.networks import Array
from policies.models.success import success_file
from policies.models.vision import ObservationEncoder
from sim import spec
from sim.env import NoExpertError, stream
from sim.rollout import Episode
from sim.spec import Group
from sim.tasks import Task, remembering

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile

TRAINING = int.from_bytes(b"steering")  # mixed into the seed of the episodes
REPORT = 100  # control steps between two rows of metrics


@dataclass
class OnlineConfig:
    """Settings that every learner has which improves a base."""

    base: Origin = field(default_factory=Origin)
    total_steps: int = 25_000  # environment steps in all
    num_envs: int = 4  # scenes flown together
    workers: int = 1  # processes that step worlds of others, such as Meta-World; 0: one per core, if worth it
    warmup_episodes: int = 30  # episodes without learning
    head_start: int = 800  # critic updates after them
    success_reward: float = 10.0
    step_reward: float = 0.0  # per chunk without success
    task_reward: float = 0.0  # what the task's own reward counts, of every control step
    gamma: float = 0.97  # per chunk
    n_step: int = 4  # chunks whose rewards are summed before the critic is asked
    success: str = ""  # file of a classifier that says it in the simulator's place: python -m policies.train_success

    def __post_init__(self) -> None:
        for name in ("total_steps", "num_envs", "n_step", "warmup_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 < self.gamma < 1.0:
            raise ValueError(f"gamma must lie between 0 and 1, got {self.gamma}")


class Learner(Protocol):
    """What improves the base."""

    def choose(self, base: Base, observation: Array, blind: bool) -> tuple[Array, Array]:
        """A choice (n, k) and the chunk (n, horizon * actions) it leads to; `blind` during the warm-up."""

    def keep(self, transition: Transition) -> None:
        """Remember it."""

    def prepare(self, updates: int) -> None:
        """The critic's head start, after the warm-up."""

    def update(self) -> dict[str, float]:
        """Learn after a chunk; metrics."""


class OnlineFinetuning:
    """Base and scenes of one run."""

    def __init__(
        self, task: Task, config: OnlineConfig, seed: int, device: str = "cpu", kind: type[Cloning] = Cloning
    ) -> None:
        """`kind`: of the base, unless the settings name one that is given."""
        check(task, device)
        kind = origin(config.base, kind)
        if spec.tokens(task.policy) and not issubclass(kind, Given):
            raise ValueError(
                f"{task.name} tells its policy in words, and no such base is cloned here: set algorithm.base.policy to "
                "a file of algorithm=vla with algorithm.head=flow"
            )
        task = task if issubclass(kind, Served) else remembering(task)
        self.task, self.config, self.seed = task, config, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.cloning = kind(task, config.base, self.generator)
        self.hindsight: Hindsight | None = None
        self.judge: PolicyFile | None = None  # says what succeeded in the simulator's place
        self.every_step = False  # transitions from within chunks, too, of which nothing was chosen
        self.insight = self._insight(())
        self.env_steps = 0
        self.learning = False  # the warm-up is over
        self.scenes: ChunkRollout | None = None
        self._resumed: Mapping[str, Any] | None = None  # of the scenes, until they are open

    @functools.cached_property
    def demonstrations(self) -> list[Episode]:
        """Those that the settings ask for; LearningError when none of them succeeds."""
        return demonstrated(self.task, self.config.base, self.seed)

    def transitions(self) -> list[Transition]:
        """From every step of the demonstrations, as the scenes would have made them; what was chosen is empty.

        A failure's last chunks are left out: what came after them was not seen.
        """
        made: list[Transition] = []
        horizon = self.config.base.horizon
        for episode in self.demonstrations:
            data = Demonstrations.of([episode], self.task, horizon)
            data.observation = self.see(episode.signals)
            success = int(episode.success.argmax()) if episode.succeeded else None
            made += transitions(data, success, self.rewards, horizon, episode.reward)
            if self.hindsight is not None:
                starts = [*enumerate(data.chunk[:-1])]
                made += self.hindsight.transitions((DEMONSTRATIONS, episode.number), data.observation, starts)
        return made

    def between(self, seen: Array, action: Array, succeeded: bool) -> list[Transition]:
        """Of an episode's steps at which no chunk began, as of a demonstration."""
        horizon = self.config.base.horizon
        data = Demonstrations(seen[:-1], chunked(action, horizon))
        made = transitions(data, len(action) - 1 if succeeded else None, self.rewards, horizon)
        return [transition for first, transition in enumerate(made) if first % horizon]

    def look_within(self, every_step: bool) -> None:
        """Make transitions from every step of an episode, not from the beginnings of chunks alone."""
        if every_step and self.config.task_reward:
            raise ValueError("every_step=true keeps no task's own reward: set task_reward=0")
        self.every_step = every_step

    def look_back(self, count: int) -> None:
        """Make so many transitions more of each, with other goals; ValueError when the task has none."""
        if count < 0:
            raise ValueError(f"hindsight, the copies of each transition, must be at least 0, got {count}")
        if count and self.config.task_reward:
            raise ValueError("nobody knows what a task pays under another goal: set hindsight=0, or task_reward=0")
        if count:
            horizon, where = self.config.base.horizon, self.insight.where()
            self.hindsight = Hindsight(self.task, count, self.rewards, horizon, self.seed, where)

    def believe(self, file: str) -> None:
        """Let that classifier say what succeeded; "" leaves it to the simulator."""
        self.judge = success_file(file, self.task) if file else None

    def reveal(self) -> None:
        """Let critics see what is privileged, if anything is."""
        self.insight = self._insight(self.task.privileged)

    def _insight(self, privileged: Group) -> AsymmetricObservation:
        clone = self.cloning
        return AsymmetricObservation(self.task.policy, clone.observed, privileged, clone.words)

    @functools.cached_property
    def base(self) -> Base:
        """The base, once it has been trained."""
        return self.cloning.denoiser()

    @functools.cached_property
    def see(self) -> Callable[[Mapping[str, Any]], Array]:
        """What learners see (n, o) of the task's signals, through the base's eye if it has one."""
        return functools.partial(self.insight.see, self.base.eye or ObservationEncoder(self.task.policy))

    def normalised(self, x: Array) -> Tensor:
        """What learners see (n, o), normalised."""
        return self.insight.normalised(x, self.cloning.normalizer)

    @property
    def rewards(self) -> ChunkRewards:
        """What the settings say of them."""
        config = self.config
        return ChunkRewards(config.success_reward, config.step_reward, config.gamma, config.n_step, config.task_reward)

    def begin(self) -> Iterator[dict[str, float]]:
        """Clone the base, unless that is done."""
        clone = self.cloning
        if not self.insight.ready:
            self._ask_what_is_usual()
        if not clone.finished:
            shown = Demonstrations.of(self.demonstrations, self.task, clone.config.horizon)
            for metrics in clone.learn(shown):
                yield {"progress": 0.2 * clone.done / clone.config.updates, "env_steps": 0.0, **metrics}

    def _ask_what_is_usual(self) -> None:
        try:
            self.insight.learn(self.demonstrations)
        except NoExpertError as error:
            raise LearningError(
                f"{error}; critics learn from demonstrations what privileged signals are like: "
                "set algorithm.asymmetric=false, or name data in algorithm.base.demonstrations"
            ) from error

    def learn(self, learner: Learner) -> Iterator[dict[str, float]]:
        """The first fifth of the progress bar is the base."""
        yield from self.begin()
        config, base = self.config, self.base
        metrics: dict[str, float] = {}
        own = stream(self.seed, TRAINING)
        rest = (self.rewards, self.see, self.hindsight, self.judge, self.between if self.every_step else None)
        scenes = ChunkRollout(self.task, own, config.num_envs, base.horizon, *rest, config.workers)
        self.scenes = scenes
        if self._resumed is not None:
            scenes.load_state_dict(self._resumed)
        try:
            while self.env_steps < config.total_steps:
                metrics = self._step(learner, base, scenes) or metrics
                if self.env_steps % (REPORT * config.num_envs) == 0 or self.env_steps >= config.total_steps:
                    done = 0.2 + 0.8 * min(1.0, self.env_steps / config.total_steps)
                    yield {"progress": done, "env_steps": float(self.env_steps), **metrics, **scenes.rates()}
        finally:
            scenes.close()

    def _step(self, learner: Learner, base: Base, scenes: ChunkRollout) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for row in map(int, scenes.idle()):
            choice, chunk = learner.choose(base, scenes.seen[row : row + 1], not self.learning)
            scenes.plan(row, choice[0], chunk[0])
            if self.learning:
                metrics = learner.update()
        for transition in scenes.step():
            learner.keep(transition)
        self.env_steps += scenes.num
        if not self.learning and scenes.finished >= self.config.warmup_episodes:
            self.learning = True
            learner.prepare(self.config.head_start)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "cloning": self.cloning.state_dict(),
            "env_steps": self.env_steps,
            "learning": self.learning,
            "generator": self.generator.get_state(),
            "scenes": None if self.scenes is None else self.scenes.state_dict(),
            **({"insight": self.insight.normalizer.state_dict()} if self.insight.privileged else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seed = int(state["seed"])
        self.cloning.load_state_dict(state["cloning"])
        self.env_steps, self.learning = int(state["env_steps"]), bool(state["learning"])
        self.generator.set_state(state["generator"])
        self._resumed = state["scenes"]
        if self.insight.privileged:
            self.insight.normalizer.load_state_dict(state["insight"])


class OnlineLearner(Stateful):
    """What all share that improve a base: it is a part of their state, and of where their policy comes from."""

    needs: tuple[type, ...] = ()
    takes: tuple[str, ...] = ()
    run: OnlineFinetuning

    def provenance(self) -> dict[str, Any]:
        """Of the base, if it was given."""
        return self.run.cloning.provenance

    def dump_to(self, folder: Path) -> None:
        """Nothing is dumped: a scene that is not finite ends its episode."""


def transitions(
    shown: Demonstrations, success: int | None, rewards: ChunkRewards, horizon: int, paid: Array | None = None
) -> Iterator[Transition]:
    """Of one episode, which ends at the step `success`, if it does well; `paid` (steps,): the task's own reward."""
    end = len(shown.observation) if success is None else success + 1
    for first in range(end):
        after = first + rewards.n_step * horizon
        over = after >= end
        if over and success is None:
            return
        left = math.ceil((end - first) / horizon)
        earned = None
        if paid is not None and rewards.task:
            earned = np.add.reduceat(paid[first:end], np.arange(0, end - first, horizon))
        value = rewards.worst if success is None else rewards.over(left, True, earned)
        chunks = left if over else rewards.n_step
        reward = rewards.over(chunks, over, earned)
        discount = 0.0 if over else rewards.gamma**chunks
        x, next_x = shown.observation[first], shown.observation[min(after, end - 1)]
        yield Transition(x, np.zeros(0, np.float32), shown.chunk[first], reward, discount, next_x, value)
