"""RLPD: reinforcement learning of actions with prior data (Ball et al. 2023, arXiv 2302.02948).

No base: the actor chooses the chunk itself, from nothing. Half of each batch are demonstrations, whatever they are
worth; an ensemble of critics with layer norm, a random subset of them in the targets, and many updates per chunk make
that work. What differs from the paper: actions come in chunks (`base.horizon`; 1 is the paper's), returns go over
several of them, and a Gaussian prior over actions takes the place of the entropy, as in `steering`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.algorithms.dsrl import Dsrl, DsrlConfig
from policies.learning.actor_critic import executed, memory
from policies.learning.base import Measured
from policies.learning.buffers import ReplayBuffer
from policies.learning.chunk_rollout import Transition
from policies.learning.demonstrations import Shown
from policies.learning.online import OnlineConfig, OnlineFinetuning
from policies.models.chunking import ChunkPolicy, Denoiser, Schedule, Steering
from policies.models.controller import Policy
from sim import spec
from sim.tasks import Task


@dataclass
class RlpdConfig(DsrlConfig):
    """Settings of RLPD. What the actor chooses are actions in [-1, 1]."""

    base: Shown = field(default_factory=Shown)  # type: ignore[assignment]  # demonstrations, and no base
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
    """In the place of a base: a chunk is its noise."""

    def __init__(self, task: Task, config: Any, generator: torch.Generator) -> None:
        if spec.pictures(task.policy):
            raise ValueError(f"{task.name} shows pictures, which only a base can see; see algorithm=dsrl_na")
        super().__init__(task, config, generator)

    def denoiser(self, delay: int = 0) -> Denoiser:
        """A sampler of no steps."""
        none, see, look = (np.zeros(shape, np.float32) for shape in (0, (0, self.observed), (0, self.size)))
        never = Schedule(none, none, none, none, clip=False)
        return Denoiser(self.config.horizon, self.actions, never, see, look, bias=none, layers=[])


class Alone(OnlineFinetuning):
    """Practice without a base."""

    def __init__(self, task: Task, config: OnlineConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(task, config, seed, device, Unaided)

    def reveal(self) -> None:
        """Actor and critics see the same: there are no pictures that something could take the place of."""


class Rlpd(Dsrl):
    """An actor that chooses chunks."""

    Config: type[RlpdConfig] = RlpdConfig
    takes: tuple[str, ...] = ()
    state_parts: tuple[str, ...] = (*Dsrl.state_parts, "before")
    config: RlpdConfig
    Run = Alone

    def __init__(self, task: Task, config: RlpdConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(task, config, seed, device)
        self.before = copy.deepcopy(self.training)
        self.run.look_back(config.hindsight)
        self.run.every_step = config.every_step

    def _remember(self) -> ReplayBuffer:
        return memory(self.config.capacity, self.config.shown)

    def keep(self, transition: Transition) -> None:
        self.memory.add(**self._rows([transition]))

    def _rows(self, made: list[Transition]) -> dict[str, Tensor]:
        x, next_x = (self.cloning.see(np.stack([getattr(t, name) for t in made])) for name in ("x", "next_x"))
        kept = executed(made)
        return {"x": x, "w": kept.pop("chunk"), "next_x": next_x, **kept}

    def prepare(self, updates: int) -> None:
        if self.memory.prior is not None:
            self.memory.prior.add(**self._rows(self.run.transitions()))
        super().prepare(updates)

    def baselines(self) -> dict[str, Policy]:
        """The actor before it practised."""
        before = Steering(self.before.mean(self.cloning.normalizer), self.config.magnitude)
        base = self.cloning.denoiser()
        return {"before practice": ChunkPolicy.from_task(self.task, base, before, base.horizon)}
