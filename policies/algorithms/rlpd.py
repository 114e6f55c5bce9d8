"""RLPD: reinforcement learning of actions with prior data (Ball et al. 2023, arXiv 2302.02948).

No base: the actor chooses the chunk itself, from nothing. Half of each batch are demonstrations, whatever they are
worth; an ensemble of critics with layer norm, a random subset of them in the targets, and many updates per chunk make
that work. What differs from the paper: actions come in chunks (`base.horizon`; 1 is the paper's), returns go over
several of them, and a Gaussian prior over actions takes the place of the entropy, as in `steering`.

Of a task that shows pictures actor and critics see what an encoder makes of them that was learned offline before, from
demonstrations of others, and stays as it is: see `policies.learning.offline.eyes`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.algorithms.bc import STILL
from policies.algorithms.dsrl import Dsrl, DsrlConfig
from policies.learning.actor_critic import executed, memory
from policies.learning.base import Measured
from policies.learning.buffers import ReplayBuffer
from policies.learning.chunk_rollout import Transition
from policies.learning.demonstrations import Demonstrations, Shown, demonstrated
from policies.learning.networks import Normalizer
from policies.learning.offline.eyes import Eyes, EyesConfig
from policies.learning.online import OnlineConfig, OnlineFinetuning
from policies.models.chunking import ChunkPolicy, Denoiser, Schedule, Steering
from policies.models.controller import Policy
from policies.models.denoiser import Onward, last_action
from policies.models.networks import Array
from policies.models.vision import ObservationEncoder
from sim import spec
from sim.env import stream
from sim.tasks import Task

EYES = int.from_bytes(b"eyes")  # mixed into the seed: what eyes learn from is nowhere else


@dataclass
class SeenConfig(Shown):
    """Demonstrations, and how actions follow from what is seen."""

    change: float = 0.0  # of an action in [-1, 1] from one control step to the next, at most; 0: any
    eyes: EyesConfig = field(default_factory=EyesConfig)  # of a task that shows pictures

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.change <= 2.0:
            raise ValueError(f"change, of an action in [-1, 1], must be between 0 and 2, got {self.change}")


@dataclass
class RlpdConfig(DsrlConfig):
    """Settings of RLPD. What the actor chooses are actions in [-1, 1]."""

    base: SeenConfig = field(default_factory=SeenConfig)  # type: ignore[assignment]  # demonstrations, and no base
    magnitude: float = 1.0
    prior_std: float = 1.0
    first_prior: float = 0.05
    last_prior: float = 0.02
    prior_steps: int = 10_000
    mixed: bool = False
    warmup_episodes: int = 4
    critic_updates: int = 4  # per chunk
    actor_updates: int = 1
    shown: float = 0.5  # share of the demonstrations in each batch
    every_step: bool = False  # transitions from within chunks, too
    hindsight: int = 0  # copies of each transition with another goal; see `policies.learning.hindsight`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.same_noise:
            raise ValueError("same_noise=true does not go with demonstrations: their chunks are not one action")


class Unaided(Measured):
    """In the place of a base: a chunk is its noise, or each action goes on from the one before by so much."""

    config: SeenConfig  # type: ignore[assignment]  # demonstrations, and no base

    def __init__(self, task: Task, config: Any, generator: torch.Generator) -> None:
        super().__init__(task, config, generator)
        self.seeing: Eyes | None = None
        self.last = last_action(task) if config.change else None
        self.observed = spec.size(spec.numbers(task.policy))
        if spec.pictures(task.policy):
            self.seeing = Eyes(task, config.eyes, self.size, generator)
            self.observed += self.seeing.encoders.size
            smallest = torch.full((self.observed,), 1e-3)
            smallest[-self.seeing.encoders.size :] = STILL
            self.normalizer = Normalizer(self.observed, smallest_std=smallest)
            self.state_parts += ("seeing",)

    def learn(self, data: Demonstrations, report: int = 100) -> Iterator[dict[str, float]]:
        """The normaliser, of what eyes find, too."""
        seen = [torch.from_numpy(data.observation), *([self.seeing.look(data.pictures)] if self.seeing else [])]
        self.normalizer.update(torch.cat(seen, -1))
        self.done = 1
        yield from ()

    def denoiser(self, delay: int = 0) -> Denoiser | Onward:  # type: ignore[override]
        """A sampler of no steps."""
        eye = ObservationEncoder(self.task.policy, self.seeing.encoders.exported()) if self.seeing else None
        if self.last is not None:
            return self._onward(*self.last, eye)
        none, see, look = (np.zeros(shape, np.float32) for shape in (0, (0, self.observed), (0, self.size)))
        never = Schedule(none, none, none, none, clip=False)
        return Denoiser(self.config.horizon, self.actions, never, see, look, bias=none, layers=[], eye=eye)

    def chosen(self, observation: Array, chunk: Array) -> Array:
        """The noise (n, size) that makes these chunks of observations (n, o), or the nearest to them that can be."""
        return chunk if self.last is None else self._onward(*self.last).chosen(observation, chunk)

    def _onward(self, columns: list[int], low: Array, high: Array, eye: ObservationEncoder | None = None) -> Onward:
        return Onward(self.config.horizon, self.observed, self.config.change, columns, low, high, eye)


class Alone(OnlineFinetuning):
    """Practice without a base."""

    cloning: Unaided

    def __init__(self, task: Task, config: OnlineConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(task, config, seed, device, Unaided)

    def begin(self) -> Iterator[dict[str, float]]:
        """Before anything else, eyes learn; of other episodes than anybody practises."""
        eyes = self.cloning.seeing
        if eyes is not None and not eyes.finished:
            horizon, c = self.cloning.config.horizon, eyes.config
            elsewhere = Shown(horizon, c.episodes, c.corruption, c.demonstrations)
            shown = demonstrated(self.task, elsewhere, stream(self.seed, EYES))
            for metrics in eyes.learn(shown, self.rewards, horizon):
                yield {"progress": 0.2 * eyes.done / eyes.config.offline_updates, "env_steps": 0.0, **metrics}
        yield from super().begin()

    def reveal(self) -> None:
        """Actor and critics see the same: pictures through the same eyes."""


class Rlpd(Dsrl):
    """An actor that chooses chunks."""

    Config: type[RlpdConfig] = RlpdConfig
    takes: tuple[str, ...] = ()
    state_parts: tuple[str, ...] = (*Dsrl.state_parts, "before")
    config: RlpdConfig
    run: Alone
    cloning: Unaided
    Run = Alone

    def __init__(self, task: Task, config: RlpdConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(task, config, seed, device)
        self.before = copy.deepcopy(self.training)
        self.run.look_back(config.hindsight)
        self.run.look_within(config.every_step)

    def _remember(self) -> ReplayBuffer:
        return memory(self.config.capacity, self.config.shown)

    def keep(self, transition: Transition) -> None:
        self.memory.add(**self._rows([transition]))

    def _rows(self, made: list[Transition]) -> dict[str, Tensor]:
        x, next_x = (np.stack([getattr(t, name) for t in made]) for name in ("x", "next_x"))
        kept = executed(made)
        w = torch.from_numpy(self.cloning.chosen(x, kept.pop("chunk").numpy()))
        return {"x": self.cloning.see(x), "w": w, "next_x": self.cloning.see(next_x), **kept}

    def prepare(self, updates: int) -> None:
        if self.memory.prior is not None:
            self.memory.prior.add(**self._rows(self.run.transitions()))
        super().prepare(updates)

    def baselines(self) -> dict[str, Policy]:
        """The actor before it practised."""
        before = Steering(self.before.mean(self.cloning.normalizer), self.config.magnitude)
        base = self.cloning.denoiser()
        return {"before practice": ChunkPolicy.from_task(self.task, base, before, base.horizon)}
