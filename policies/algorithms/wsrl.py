"""WSRL: offline reinforcement learning, then practice without the offline data (Zhou et al. 2024, arXiv 2412.07762).

Actor and critics of `rlpd` learn from the demonstrations alone, see `offline`. Then the actor, frozen, does the
warm-up, whose transitions take the place of the demonstrations, and practice goes on from them as in SAC, without
pessimism about what was not recorded. Against forgetting, the actor believes nearly the lowest critic, and learns more
slowly than they do; its prior is weak, and every step of an episode begins a transition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from policies.algorithms.rlpd import Rlpd, RlpdConfig
from policies.learning.buffers import ReplayBuffer
from policies.learning.offline import Pretraining, offline
from policies.learning.online import REPORT
from policies.models.chunking import Base
from policies.models.networks import Array


@dataclass
class WsrlConfig(RlpdConfig, Pretraining):
    """Settings of WSRL."""

    shown: float = 0.0  # nothing of the demonstrations is kept
    first_prior: float = 0.01
    last_prior: float = 0.005
    warmup_episodes: int = 40
    head_start: int = 400
    critics: int = 6
    pessimism: float = 2.5
    actor_learning_rate_share: float = 0.2
    every_step: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Pretraining.__post_init__(self)


class Wsrl(Rlpd):
    """An actor that chooses chunks, learned offline before it practises."""

    Config = WsrlConfig
    state_parts = (*Rlpd.state_parts, "pretraining")
    state_values = ("offline",)
    config: WsrlConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.offline = 0  # updates
        self.pretraining = offline(self.config, self.training, self.critics, self.generator)

    def learn(self) -> Iterator[dict[str, float]]:
        yield from self.run.begin()
        yield from self._learn_offline()
        yield from self.run.learn(self)

    def _learn_offline(self) -> Iterator[dict[str, float]]:
        config, generator = self.config, self.generator
        if self.offline == config.offline_updates:
            return
        shown = self.run.transitions()
        past = ReplayBuffer(len(shown))
        past.add(**self._rows(shown), value=torch.tensor([[t.value] for t in shown], dtype=torch.float32))
        while self.offline < config.offline_updates:
            metrics = self.pretraining.update(past.sample(config.batch_size, generator))
            self.offline += 1
            if self.offline == config.offline_updates:
                self.before.load_state_dict(self.training.state_dict())
            if self.offline % REPORT == 0 or self.offline == config.offline_updates:
                done = {"progress": 0.2 * self.offline / config.offline_updates, "env_steps": 0.0}
                yield done | {name: float(value) for name, value in metrics.items()}

    def choose(self, base: Base, observation: Array, blind: bool) -> tuple[Array, Array]:
        return super().choose(base, observation, False)  # the warm-up is the actor's
