"""DSRL: reinforcement learning that steers a frozen diffusion policy through its noise (Wagenmaker et al. 2025).

The actor chooses the noise w of a chunk; the base, a black box, makes actions of it. One step of the decision process
is one chunk, discounted by the time it really took. This is SAC in noise space with four changes, each a setting: a
Gaussian prior over w instead of an entropy bonus (`prior_std`), an actor that trusts the critics' mean minus their
spread (`pessimism`), returns over several chunks (`n_step`), and a reward for success alone. An episode ends with
success; running out of time is no end, the value of what followed still counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from policies.learning.actor_critic import Actor, ActorCriticConfig, ActorTrainer, Critics, executed, judges, set_rate
from policies.learning.buffers import ReplayBuffer
from policies.learning.chunk_rollout import Transition
from policies.learning.online import OnlineFinetuning, OnlineLearner
from policies.models.action_selection import BestOfNNoise
from policies.models.chunking import Base, NoiseTable, Steering
from policies.models.controller import Policy
from policies.models.networks import Array
from sim.tasks import Task

DRAWN = 16  # noises that the critics choose from, in the baseline


@dataclass
class DsrlConfig(ActorCriticConfig):
    """Settings of DSRL. What the actor chooses is w."""

    mixed: bool = True  # the warm-up's noise is from none to the prior's
    first_log_std: float = -0.3
    critic_updates: int = 2
    actor_updates: int = 1
    same_noise: bool = False  # one w for all actions of a chunk
    asymmetric: bool = True  # critics see what is privileged, where anything is, and no pictures


class Dsrl(OnlineLearner):
    """An actor that steers a base which was cloned before; see `policies.learning.online`."""

    Config: type[DsrlConfig] = DsrlConfig
    takes: tuple[str, ...] = ("tokens",)  # of a base out of a file that is told in words
    Run: type[OnlineFinetuning] = OnlineFinetuning
    state_parts: tuple[str, ...] = ("run", "training", "critics", "memory")

    def __init__(self, task: Task, config: DsrlConfig, seed: int, device: str = "cpu") -> None:
        self.run = self.Run(task, config, seed, device)
        self.run.believe(config.success)
        self.task, self.config, self.generator = self.run.task, config, self.run.generator
        self.cloning = self.run.cloning
        rows, width = self.cloning.noise
        self.repeat = rows if config.same_noise else 1
        self.size = rows * width // self.repeat
        if config.asymmetric:
            self.run.reveal()
        self.insight = self.run.insight
        observed = self.cloning.observed
        self.training = ActorTrainer(Actor(config, observed, self.size, self.generator), config)
        self.critics = self._judge()
        self.memory = self._remember()

    def _judge(self) -> Critics:
        """Whom the actor believes, about what is seen and w."""
        return Critics(self.config, self.insight.judged + self.size, self.generator, self.config.critics)

    def _remember(self) -> ReplayBuffer:
        """What transitions are kept in."""
        return ReplayBuffer(self.config.capacity)

    def learn(self) -> Iterator[dict[str, float]]:
        yield from self.run.learn(self)

    def choose(self, base: Base, observation: Array, blind: bool) -> tuple[Array, Array]:
        observation = self.insight.policy(observation)
        with torch.no_grad():
            if blind:
                w = self._drawn(len(observation)).numpy()
            else:
                w = self.training.actor.sample(self.cloning.see(observation), self._noise(len(observation)))[0].numpy()
        return w, base.sample(observation, self._whole(w))

    def _drawn(self, n: int) -> Tensor:
        """w (n, size) from the prior, cut off at the magnitude."""
        config, noise = self.config, self._noise(n)
        less = torch.rand(n, 1, generator=self.generator) if config.mixed else 1.0
        return (less * config.prior_std * noise).clamp(-config.magnitude, config.magnitude)

    def _noise(self, n: int) -> Tensor:
        return torch.randn(n, self.size, generator=self.generator)

    def _whole(self, w: Array) -> Array:
        """The base's noise (n, size * repeat) for w."""
        return np.tile(w, (1, self.repeat))

    def keep(self, transition: Transition) -> None:
        x, next_x = self.run.normalised(np.stack([transition.x, transition.next_x]))
        w = torch.from_numpy(transition.choice)
        self.memory.add(x=x[None], w=w[None], next_x=next_x[None], **executed([transition]))

    def prepare(self, updates: int) -> None:
        for _ in range(updates // self.config.critic_updates):
            self._update_critics()

    def update(self) -> dict[str, float]:
        set_rate(self.config.rate(self.run.env_steps), self.training, self.critics)
        loss, x = self._update_critics()
        weight = self.config.prior_weight(self.run.env_steps)
        judged = self.insight.judge(x)
        for _ in range(self.config.actor_updates):
            metrics = self.training.climb(
                self.insight.policy(x),
                self._noise(len(x)),
                lambda w: self.critics.believed(torch.cat([judged, w], -1)),
                weight,
            )
        return {"loss": float(loss), **{name: float(value) for name, value in metrics.items()}}

    def _update_critics(self) -> tuple[Tensor, Tensor]:
        """The last update's loss, and what learners saw in its batch (batch, o).

        The targets of all updates are worked out at once, which is quicker.
        """
        config = self.config
        batch = self.memory.sample(config.critic_updates * config.batch_size, self.generator)
        loss = self.critics.fit(torch.cat([self.insight.judge(batch["x"]), batch["w"]], -1), self._targets(batch))
        return loss, batch["x"][-config.batch_size :]

    @torch.no_grad()
    def _targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        next_x = batch["next_x"]
        w, _ = self.training.actor.sample(self.insight.policy(next_x), self._noise(len(next_x)))
        value = self.critics.lowest(torch.cat([self.insight.judge(next_x), w], -1), self.generator)
        return batch["reward"][:, 0] + batch["discount"][:, 0] * value

    def controller(self) -> Policy:
        """The averaged actor's mean on the base."""
        actor = self.training.mean(self.cloning.normalizer)
        return self.cloning.controller(Steering(actor, self.config.magnitude, self.repeat))

    def baselines(self) -> dict[str, Policy]:
        """Without the actor: random noise, cut off at the actor's bound, none; the critics' choice from the prior.

        Critics that see what is privileged cannot choose in a file.
        """
        config, made, size = self.config, self.cloning.controller, self.size * self.repeat
        random = NoiseTable.normal(size)
        policies: dict[str, Policy] = {
            "random noise": made(random),
            "cut noise": made(random.cut(config.magnitude)),
            "no noise": made(NoiseTable.none(size)),
        }
        if not self.insight.privileged:
            prior = NoiseTable.normal(DRAWN * self.size, 64, config.prior_std).cut(config.magnitude)
            picked = BestOfNNoise(judges(self.critics, self.cloning.normalizer), DRAWN, self.repeat)
            policies[f"best of {DRAWN}"] = made(prior, picked)
        return policies
