"""Learning from recorded choices alone: CQL, Cal-QL and IQL, for an actor and critics that practise afterwards.

CQL (Kumar et al. 2020, arXiv 2006.04779) pushes down the critics' values of what was not recorded, namely random
choices and the actor's, for the state and for the next one, and pushes those of what was recorded up. Cal-QL (Nakamoto
et al. 2023, arXiv 2303.05479) pushes the actor's no further down than to what was really got from there on. IQL
(Kostrikov et al. 2021, arXiv 2110.06169) never asks for the value of anything that was not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from policies.learning.actor_critic import ActorTrainer, Critics
from policies.learning.networks import Ensemble, Stateful, descend, gaussian_log_prob

KINDS = ("calql", "cql", "iql")
MOST = 100.0  # weight of a recorded choice in IQL


@dataclass
class Pretraining:
    """Settings of learning offline."""

    pretrain: str = "calql"  # or "cql", "iql"
    offline_updates: int = 2000
    conservatism: float = 1.0  # of CQL and Cal-QL, weight of pushing values down and up
    samples: int = 2  # choices of each kind that are pushed down, per state
    offline_prior: float = 0.05  # of both, weight of the actor's divergence from its prior
    imitation: float = 0.3  # of both, weight of the actor's squared distance from what was recorded; 0 in the papers
    expectile: float = 0.7  # of IQL
    temperature: float = 0.5  # of IQL, per unit of value: how much better choices are imitated more

    def __post_init__(self) -> None:
        if self.pretrain not in KINDS:
            raise ValueError(f"pretrain {self.pretrain!r} is not one of {', '.join(KINDS)}")
        if self.offline_updates < 1 or self.samples < 1:
            raise ValueError(
                f"needs offline_updates >= 1 and samples >= 1, got {self.offline_updates} and {self.samples}"
            )
        if not 0.5 <= self.expectile < 1.0:
            raise ValueError(f"needs 0.5 <= expectile < 1, got {self.expectile}")


class Offline(Protocol):
    """A way to learn from recorded choices."""

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of rows x, w (the choice), reward, discount, next_x and value (what was got, at least); metrics."""

    def state_dict(self) -> dict[str, Any]:
        """What it holds besides actor and critics."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""


def offline(config: Pretraining, training: ActorTrainer, critics: Critics, generator: torch.Generator) -> Offline:
    """The way that the settings ask for."""
    kind = Iql if config.pretrain == "iql" else Cql
    return kind(config, training, critics, generator)


class Cql(Stateful):
    """CQL and Cal-QL. Choices are not weighted by their density, which in a chunk's many dimensions leaves one."""

    def __init__(
        self, config: Pretraining, training: ActorTrainer, critics: Critics, generator: torch.Generator
    ) -> None:
        self.config, self.training, self.critics, self.generator = config, training, critics, generator

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        x, w, imitation = batch["x"], batch["w"], self.config.imitation
        chosen, following = self._chosen(x), self._chosen(batch["next_x"])
        wanted = self._targets(batch, following[0])
        values = self.critics.ensemble(torch.cat([x, w], -1))  # (critics, n)
        gap = self.gap(batch, torch.cat([chosen, following]), values)
        loss = (values - wanted).square().mean(1).sum() + self.config.conservatism * gap
        self.critics.descend(loss)
        self.critics.follow(1)

        def believed(choice: Tensor) -> Tensor:
            value = self.critics.believed(torch.cat([x, choice], -1))
            return value - imitation * (choice - w).square().sum(-1)

        noise = torch.randn(w.shape, generator=self.generator)
        climbed = self.training.climb(x, noise, believed, self.config.offline_prior)
        return {"loss": loss.detach(), **climbed}

    @torch.no_grad()
    def _chosen(self, x: Tensor) -> Tensor:
        """The actor's choices (samples, n, k)."""
        count, actor = self.config.samples, self.training.actor
        noise = torch.randn(count * len(x), actor.size, generator=self.generator)
        return actor.sample(x.repeat(count, 1), noise)[0].view(count, len(x), -1)

    @torch.no_grad()
    def _targets(self, batch: Mapping[str, Tensor], following: Tensor) -> Tensor:
        value = self.critics.lowest(torch.cat([batch["next_x"], following], -1), self.generator)
        return batch["reward"][:, 0] + batch["discount"][:, 0] * value

    def gap(self, batch: Mapping[str, Tensor], chosen: Tensor, values: Tensor) -> Tensor:
        """How far choices (m, n, k) and random ones are valued above the recorded, whose `values` are (critics, n).

        The soft maximum of all, the recorded included; the sum over the critics.
        """
        x, m = batch["x"], len(chosen)
        random = torch.rand(self.config.samples, *chosen.shape[1:], generator=self.generator)
        options = torch.cat([chosen, self.training.actor.magnitude * (2.0 * random - 1.0)])
        inputs = torch.cat([x.expand(len(options), *x.shape), options], -1).flatten(0, 1)
        pushed = self.critics.ensemble(inputs).view(len(values), len(options), len(x))
        if self.config.pretrain == "calql":
            pushed = torch.cat([torch.maximum(pushed[:, :m], batch["value"][:, 0]), pushed[:, m:]], 1)
        everything = torch.cat([pushed, values[:, None]], 1)
        highest = torch.logsumexp(everything, 1) - math.log(everything.shape[1])
        gap: Tensor = (highest - values).mean(1).sum()
        return gap


class Iql(Stateful):
    """IQL: what follows a choice is worth an expectile of what was recorded; what was better is imitated more."""

    state_parts = ("value", "optimizer")

    def __init__(
        self, config: Pretraining, training: ActorTrainer, critics: Critics, generator: torch.Generator
    ) -> None:
        self.config, self.training, self.critics, self.generator = config, training, critics, generator
        observed = critics.ensemble.weights[0].shape[1] - training.actor.size
        self.value = Ensemble(1, [observed, *critics.config.hidden], generator, layer_norm=True)
        self.optimizer = torch.optim.Adam(self.value.parameters(), critics.config.learning_rate, fused=True)

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        config, x, w = self.config, batch["x"], batch["w"]
        recorded = torch.cat([x, w], -1)
        with torch.no_grad():
            wanted = batch["reward"][:, 0] + batch["discount"][:, 0] * self.value(batch["next_x"])[0]
            value = self.critics.lowest(recorded, self.generator)
        better = value - self.value(x)[0]
        share = torch.where(better > 0.0, config.expectile, 1.0 - config.expectile)
        descend(self.optimizer, (share * better.square()).mean())
        mean, log_std = self.training.actor(x)
        likely = gaussian_log_prob(w, mean, log_std + math.log(self.training.actor.prior))
        weight = torch.exp(config.temperature * better.detach()).clamp_max(MOST)
        self.training.descend(-(weight * likely).mean())
        return {"loss": self.critics.fit(recorded, wanted), "value": value.mean()}
