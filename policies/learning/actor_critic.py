"""What all learners share that improve a base: critics in an ensemble, a Gaussian actor with a prior, a memory.

The critics' target is the smallest value of a random few of them (REDQ, Chen et al. 2021), with layer norm (RLPD, Ball
et al. 2023). The actor stays near a Gaussian prior instead of keeping its entropy up, and trusts the critics' mean
minus their spread. The actor that is kept is a running average.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from policies.learning import cosine
from policies.learning.buffers import ReplayBuffer
from policies.learning.chunk_rollout import Transition
from policies.learning.networks import Ensemble, Normalizer, Stateful, descend, ensemble_layers, linear_layers, mlp
from policies.learning.online import OnlineConfig
from policies.models.action_selection import CriticEnsemble
from policies.models.networks.feed_forward import Mlp

WIDEST = math.log(2.0)  # of the actor's log deviation, relative to the prior's
NARROWEST = math.log(0.02)


@dataclass
class ActorCriticConfig(OnlineConfig):
    """Settings of an actor and its critics."""

    magnitude: float = 1.5  # of what the actor chooses, at most, per element
    prior_std: float = 0.6  # of it
    first_log_std: float = 0.0  # of the actor, relative to the prior's
    first_prior: float = 0.12  # weight of the divergence from the prior, at the beginning
    last_prior: float = 0.04  # and at `prior_steps`, from where it stays
    prior_steps: int = 20_000
    critics: int = 4
    target_critics: int = 2  # of them, drawn at random, whose smallest value is the target
    pessimism: float = 0.5  # deviations of the critics below their mean that the actor believes
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    learning_rate: float = 5e-4
    actor_learning_rate_share: float = 1.0  # the actor's learning rate, as a share of that
    final_learning_rate_share: float = 1.0  # in the end, as a share of the first
    batch_size: int = 128
    critic_updates: int = 4  # per chunk
    actor_updates: int = 2
    tau: float = 0.02  # share of the critics that their targets take over per update
    ema_rate: float = 0.01  # share of the actor that its average, which is kept, takes over per update
    capacity: int = 100_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critics < 2:
            raise ValueError(f"critics must be at least 2, since their spread counts, got {self.critics}")
        if not 1 <= self.target_critics <= self.critics:
            raise ValueError(f"target_critics must be in 1..{self.critics} (critics), got {self.target_critics}")
        if not (self.magnitude > 0.0 and self.prior_std > 0.0):
            raise ValueError(f"needs magnitude > 0 and prior_std > 0, got {self.magnitude} and {self.prior_std}")

    def rate(self, env_steps: int) -> float:
        """The learning rate after so many steps."""
        return cosine(
            env_steps / self.total_steps, self.learning_rate, self.final_learning_rate_share * self.learning_rate
        )

    def prior_weight(self, env_steps: int) -> float:
        """Of the divergence in the actor's loss, after so many steps."""
        done = min(1.0, env_steps / self.prior_steps)
        return float(self.first_prior ** (1.0 - done) * self.last_prior**done)


class Actor(torch.nn.Module):
    """A Gaussian: mean magnitude * tanh(.), deviation relative to the prior's; both from what is seen."""

    def __init__(self, config: ActorCriticConfig, observed: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.magnitude, self.prior, self.size = config.magnitude, config.prior_std, size
        self.network = mlp([observed, *config.hidden, 2 * size], generator, "relu", last_gain=0.1)
        with torch.no_grad():
            [*self.network.parameters()][-1][size:] = config.first_log_std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log deviation relative to the prior's (n, size)."""
        mean, log_std = self.network(x).chunk(2, -1)
        return self.magnitude * torch.tanh(mean), log_std.clamp(NARROWEST, WIDEST)

    def sample(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A choice (n, size), cut off at the magnitude, and the divergence of its distribution from the prior (n,)."""
        mean, log_std = self(x)
        choice = mean + self.prior * torch.exp(log_std) * noise
        divergence = 0.5 * ((mean / self.prior) ** 2 + torch.exp(2.0 * log_std) - 1.0) - log_std
        return choice.clamp(-self.magnitude, self.magnitude), divergence.sum(-1)


class ActorTrainer(Stateful):
    """An actor in training, and its average."""

    state_parts = ("actor", "average", "optimizer")

    def __init__(self, actor: Actor, config: ActorCriticConfig) -> None:
        self.actor, self.average, self.config = actor, copy.deepcopy(actor), config
        self.optimizer = torch.optim.Adam(actor.parameters(), config.learning_rate, fused=True)

    def climb(
        self, x: Tensor, noise: Tensor, believed: Callable[[Tensor], Tensor], prior_weight: float
    ) -> dict[str, Tensor]:
        """One step up what is `believed` of the choices (n, size) for `x`, less the divergence; metrics."""
        choice, divergence = self.actor.sample(x, noise)
        value = believed(choice)
        self.descend((prior_weight * divergence - value).mean())
        return {"divergence": divergence.detach().mean(), "value": value.detach().mean()}

    def descend(self, loss: Tensor) -> None:
        """One update, which the average follows."""
        descend(self.optimizer, loss)
        with torch.no_grad():
            torch._foreach_lerp_([*self.average.parameters()], [*self.actor.parameters()], self.config.ema_rate)

    def mean(self, inputs: Normalizer) -> Mlp:
        """The average's mean choice, over its magnitude, with the normaliser of its inputs folded in."""
        layers = linear_layers(self.average.network, inputs)
        weight, bias = layers[-1]
        size = len(bias) // 2  # the rest are deviations
        layers[-1] = weight[:size], bias[:size]
        return Mlp(layers, "relu")


class Critics(Stateful):
    """An ensemble of `count`, the targets that follow it, and its optimizer. One alone is believed as it is."""

    state_parts = ("ensemble", "target", "optimizer")

    def __init__(self, config: ActorCriticConfig, inputs: int, generator: torch.Generator, count: int) -> None:
        self.config, self.pessimism = config, config.pessimism if count > 1 else 0.0
        self.ensemble = Ensemble(count, [inputs, *config.hidden], generator, layer_norm=True)
        self.target = copy.deepcopy(self.ensemble).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.ensemble.parameters(), config.learning_rate, fused=True)

    def fit(self, inputs: Tensor, wanted: Tensor) -> Tensor:
        """One update per batch of (n, inputs) and what is wanted of it (n,).

        The targets follow once, as far as after each. Returns the last loss.
        """
        batches = [
            *zip(torch.split(inputs, self.config.batch_size), torch.split(wanted, self.config.batch_size), strict=True)
        ]
        for x, y in batches:
            loss: Tensor = (self.ensemble(x) - y).square().mean(1).sum()
            self.descend(loss)
        self.follow(len(batches))
        return loss.detach()

    def descend(self, loss: Tensor) -> None:
        """One update."""
        descend(self.optimizer, loss)

    @torch.no_grad()
    def follow(self, updates: int) -> None:
        """The targets, after so many."""
        rate = 1.0 - (1.0 - self.config.tau) ** updates
        torch._foreach_lerp_([*self.target.parameters()], [*self.ensemble.parameters()], rate)

    def believed(self, inputs: Tensor) -> Tensor:
        """The mean minus `pessimism` deviations (n,), with gradients to the inputs alone."""
        self.ensemble.requires_grad_(False)
        values = self.ensemble(inputs)
        self.ensemble.requires_grad_(True)
        believed: Tensor = values.mean(0)
        return believed - self.pessimism * values.std(0) if self.pessimism else believed

    def lowest(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """The smallest value of some target critics (n,)."""
        some = torch.randperm(self.config.critics, generator=generator)[: self.config.target_critics]
        values: Tensor = self.target(inputs, some)
        return values.amin(0)


def set_rate(rate: float, *parts: ActorTrainer | Critics) -> None:
    """Let them learn at that rate from now on."""
    for part in parts:
        part.optimizer.param_groups[0]["lr"] = rate * (
            part.config.actor_learning_rate_share if isinstance(part, ActorTrainer) else 1.0
        )


def judges(critics: Critics, normalizer: Normalizer) -> CriticEnsemble:
    """Critics of what is seen and a choice as numpy data, with the normaliser of what is seen folded in."""
    return CriticEnsemble(*ensemble_layers(critics.ensemble, normalizer), critics.pessimism)


def memory(capacity: int, shown: float) -> ReplayBuffer:
    """Of own experience; where demonstrations are to be a share of what is drawn, with a `prior` for them."""
    if not 0.0 <= shown < 1.0:
        raise ValueError(f"shown, the share of the demonstrations, lies between 0 and 1, got {shown}")
    return ReplayBuffer(capacity, ReplayBuffer(capacity) if shown > 0.0 else None, shown)


def executed(made: Sequence[Transition]) -> dict[str, Tensor]:
    """What every memory keeps of transitions: the chunks (n, k), rewards and discounts (n, 1)."""
    columns = {"chunk": [t.chunk for t in made], "reward": [[t.reward] for t in made]}
    columns["discount"] = [[t.discount] for t in made]
    return {name: torch.from_numpy(np.array(values, np.float32)) for name, values in columns.items()}
