"""DSRL: reinforcement learning that steers a frozen diffusion policy through its noise (Wagenmaker et al. 2025).

The actor chooses the noise w of a chunk; the base, a black box, makes actions of it. One step of the decision process
is one chunk, discounted by the time it really took. This is SAC in noise space with four changes, each a setting: a
Gaussian prior over w instead of an entropy bonus (`prior_std`), an actor that trusts the critics' mean minus their
spread (`doubt`), returns over several chunks (`backup`), and a reward for success alone. An episode ends with success;
running out of time is no end, the value of what followed still counts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.chunked import Base, Chunked, Drawn, Steering
from policies.controller import Array, Exportable, Mlp
from policies.improvement import Improvement, Practice
from policies.networks import Ensemble, cosine, linear_layers, mlp, restore, saved
from policies.scenes import Transition
from sim.workcell import Manipulation

WIDEST = math.log(2.0)  # of the actor's log deviation, relative to the prior's
NARROWEST = math.log(0.02)


@dataclass
class Settings(Practice):
    """Settings of DSRL."""

    magnitude: float = 1.5  # of w, at most, per element
    prior_std: float = 0.6  # of w
    mixed: bool = False  # the warm-up's noise is from none to the prior's
    first_log_std: float = 0.0  # of the actor, relative to the prior's
    final_rate: float = 1.0  # of the learning rate, in the end, as a share of the first
    same_noise: bool = False  # one w for all actions of a chunk
    first_prior: float = 0.12  # weight of the divergence from the prior, at the beginning
    last_prior: float = 0.04  # and at `prior_steps`, from where it stays
    prior_steps: int = 20_000
    critics: int = 4
    subset: int = 2  # of them, drawn at random, whose smallest value is the target
    doubt: float = 0.5  # deviations of the critics below their mean that the actor believes
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    learning_rate: float = 5e-4
    batch: int = 128
    critic_updates: int = 4  # per chunk
    actor_updates: int = 2
    target_rate: float = 0.02
    ema: float = 0.01  # of the actor that is kept, per update
    capacity: int = 100_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.subset <= self.critics:
            raise ValueError(f"subset is between 1 and the {self.critics} critics, got {self.subset}")
        if not (self.magnitude > 0.0 and self.prior_std > 0.0):
            raise ValueError(f"needs magnitude > 0 and prior_std > 0, got {self.magnitude} and {self.prior_std}")


class Actor(torch.nn.Module):
    """A Gaussian over w: mean magnitude * tanh(.), deviation relative to the prior's; both from the observation."""

    def __init__(self, config: Settings, observed: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.magnitude, self.prior = config.magnitude, config.prior_std
        self.network = mlp([observed, *config.hidden, 2 * size], generator, "relu", last_gain=0.1)
        with torch.no_grad():
            [*self.network.parameters()][-1][size:] = config.first_log_std

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log deviation relative to the prior's (n, size)."""
        mean, log_std = self.network(x).chunk(2, -1)
        return self.magnitude * torch.tanh(mean), log_std.clamp(NARROWEST, WIDEST)

    def sample(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """w (n, size), cut off at the magnitude, and the divergence of its distribution from the prior (n,)."""
        mean, log_std = self(x)
        w = mean + self.prior * torch.exp(log_std) * noise
        divergence = 0.5 * ((mean / self.prior) ** 2 + torch.exp(2.0 * log_std) - 1.0) - log_std
        return w.clamp(-self.magnitude, self.magnitude), divergence.sum(-1)


class Replay:
    """Transitions (x, w, reward, discount, next_x) over several chunks, ready to learn from."""

    def __init__(self, capacity: int, observed: int, size: int) -> None:
        self.rows = {"x": observed, "w": size, "reward": 1, "discount": 1, "next_x": observed}
        self.data = torch.zeros(capacity, sum(self.rows.values()))
        self.count = 0

    def add(self, *values: Any) -> None:
        """One transition; the oldest is overwritten."""
        row = np.concatenate([np.atleast_1d(v) for v in values]).astype(np.float32)
        self.data[self.count % len(self.data)] = torch.from_numpy(row)
        self.count += 1

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """`n` of them, with replacement."""
        index = torch.randint(min(self.count, len(self.data)), (n,), generator=generator)
        return dict(zip(self.rows, torch.split(self.data[index], [*self.rows.values()], -1), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"data": self.data[: self.count].clone(), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])
        self.data[: len(state["data"])] = state["data"]


class Steer:
    """An actor that steers a base which was cloned before; see `policies.improvement`."""

    Config = Settings

    def __init__(
        self, task: Manipulation, config: Settings, seed: int, device: str = "cpu", engine: str = "flight"
    ) -> None:
        self.run = Improvement(task, config, seed, device)
        self.task, self.config, self.generator = task, config, self.run.generator
        self.cloning = self.run.cloning
        self.size = self.cloning.actions * (1 if config.same_noise else config.base.horizon)
        observed = self.cloning.observed
        self.actor = Actor(config, observed, self.size, self.generator)
        self.average = copy.deepcopy(self.actor)
        sizes = [observed + self.size, *config.hidden]
        self.critic = Ensemble(config.critics, sizes, self.generator, layer_norm=True)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), config.learning_rate, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), config.learning_rate, fused=True)
        self.replay = Replay(config.capacity, observed, self.size)

    def learn(self) -> Iterator[dict[str, float]]:
        yield from self.run.learn(self)

    def choose(self, base: Base, observation: Array, blind: bool) -> tuple[Array, Array]:
        noise = torch.randn(len(observation), self.size, generator=self.generator)
        limit = self.config.magnitude
        with torch.no_grad():
            less = torch.rand(len(observation), 1, generator=self.generator) if self.config.mixed else 1.0
            drawn = (less * self.config.prior_std * noise).clamp(-limit, limit)
            w = (drawn if blind else self.actor.sample(self._see(observation), noise)[0]).numpy()
        whole = np.tile(w, (1, base.horizon)) if self.config.same_noise else w
        return w, base.sample(observation, whole)

    def keep(self, transition: Transition) -> None:
        x, next_x = (self._see(v) for v in (transition.x, transition.next_x))
        self.replay.add(x, transition.choice, transition.reward, transition.discount, next_x)

    def prepare(self, updates: int) -> None:
        for _ in range(updates // self.config.critic_updates):
            self._update_critic(self.config.critic_updates)

    def _see(self, observation: Array) -> Tensor:
        return self.cloning.normalizer(torch.from_numpy(observation))

    def update(self) -> dict[str, float]:
        config = self.config
        done = self.run.env_steps / config.env_steps
        for optimizer in (self.actor_optimizer, self.critic_optimizer):
            optimizer.param_groups[0]["lr"] = cosine(done, config.learning_rate, config.final_rate * config.learning_rate)
        loss, batch = self._update_critic(config.critic_updates)
        for _ in range(config.actor_updates):
            metrics = self._update_actor(batch)
        return {"loss": float(loss), **{name: float(value) for name, value in metrics.items()}}

    def _update_critic(self, updates: int) -> tuple[Tensor, Tensor]:
        """The last update's loss, and what was seen in its batch (batch, o).

        The targets of all updates are worked out at once, which is quicker; the target critics follow once, as far.
        """
        config = self.config
        batch = self.replay.sample(updates * config.batch, self.generator)
        wanted = torch.split(self._targets(batch), config.batch)
        inputs = torch.split(torch.cat([batch["x"], batch["w"]], -1), config.batch)
        for x, y in zip(inputs, wanted, strict=True):
            loss: Tensor = (self.critic(x) - y).square().mean(1).sum()
            self.critic_optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self.critic_optimizer.step()
        with torch.no_grad():
            rate = 1.0 - (1.0 - config.target_rate) ** updates
            torch._foreach_lerp_([*self.target.parameters()], [*self.critic.parameters()], rate)
        return loss.detach(), batch["x"][-config.batch :]

    @torch.no_grad()
    def _targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        config = self.config
        noise = torch.randn(len(batch["x"]), self.size, generator=self.generator)
        w, _ = self.actor.sample(batch["next_x"], noise)
        values: Tensor = self.target(torch.cat([batch["next_x"], w], -1))
        some = torch.randperm(config.critics, generator=self.generator)[: config.subset]
        return batch["reward"][:, 0] + batch["discount"][:, 0] * values[some].amin(0)

    def _update_actor(self, x: Tensor) -> dict[str, Tensor]:
        config = self.config
        noise = torch.randn(len(x), self.size, generator=self.generator)
        w, divergence = self.actor.sample(x, noise)
        self.critic.requires_grad_(False)
        values = self.critic(torch.cat([x, w], -1))
        self.critic.requires_grad_(True)
        believed = values.mean(0) - config.doubt * values.std(0)
        loss = (self.prior_weight() * divergence - believed).mean()
        self.actor_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.actor_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_([*self.average.parameters()], [*self.actor.parameters()], config.ema)
        return {"divergence": divergence.detach().mean(), "value": values.detach().mean()}

    def prior_weight(self) -> float:
        """Of the divergence in the actor's loss, now."""
        done = min(1.0, self.run.env_steps / self.config.prior_steps)
        return float(self.config.first_prior ** (1.0 - done) * self.config.last_prior**done)

    def controller(self) -> Exportable:
        """The averaged actor's mean on the base."""
        config = self.config
        layers = linear_layers(self.average.network, self.cloning.normalizer)
        weight, bias = layers[-1]
        layers[-1] = weight[: self.size], bias[: self.size]
        horizon = self.cloning.config.horizon
        steering = Steering(Mlp(layers, "relu"), config.magnitude, horizon if config.same_noise else 1)
        return Chunked.from_task(self.task, self.cloning.denoiser(), steering, horizon)

    def baselines(self) -> dict[str, Exportable]:
        """What nobody trained: the base with random noise, with noise cut off at the actor's bound, and with none."""
        base = self.cloning.denoiser()
        random = Drawn.normal(base.noise_size)
        bound = self.config.magnitude
        chosen = {
            "random noise": random,
            "cut noise": Drawn(random.table.clip(-bound, bound)),
            "no noise": Drawn.none(base.noise_size),
        }
        return {n: Chunked.from_task(self.task, base, c, base.horizon) for n, c in chosen.items()}

    def dump_to(self, folder: Path) -> None:
        """Nothing is dumped: a scene that is not finite ends its episode."""

    def state_dict(self) -> dict[str, Any]:
        return saved(self._parts())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        restore(self._parts(), state)

    def _parts(self) -> dict[str, Any]:
        names = ("run", "actor", "average", "critic", "target", "actor_optimizer", "critic_optimizer", "replay")
        return {name: getattr(self, name) for name in names}
