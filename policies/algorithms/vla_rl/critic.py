"""The value of a moment, by who sees everything but the pictures: a small perceptron that learns in a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from policies.algorithms.vla_rl.returns import estimated
from policies.learning.networks import Stateful, descend, mlp

if TYPE_CHECKING:
    from policies.algorithms.vla_rl import VlaRlConfig

BATCH = 256


class Critic(Stateful):
    """The discounted sum of the rewards to come, for what is seen, what was asked for and the share of the time."""

    state_parts = ("network", "optimizer")
    state_values = ("recent",)

    def __init__(self, inputs: int, config: VlaRlConfig, generator: torch.Generator) -> None:
        self.config = config
        self.network = mlp([inputs, *config.critic_hidden, 1], generator, last_gain=0.1)
        self.optimizer = torch.optim.Adam(self.network.parameters(), config.critic_learning_rate)
        self.recent: list[dict[str, Tensor]] = []  # of each iteration: x (n, k), reward (n,), last (n,)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """(n,) of inputs (n, k)."""
        value: Tensor = self.network(x)[:, 0]
        return value

    def learn(self, x: Tensor, reward: Tensor, last: Tensor, generator: torch.Generator) -> None:
        """From the chunks of an iteration, episode after episode, and of those before it: x (n, k), the others (n,)."""
        kept = [*self.recent, {"x": x, "reward": reward, "last": last}]
        self.recent = kept[-self.config.critic_iterations :]
        x, reward, last = (torch.cat([some[name] for some in self.recent]) for name in ("x", "reward", "last"))
        value = self(x)
        target = value + estimated(reward, value, last, self.config.gamma, self.config.gae_lambda)
        for _ in range(self.config.critic_passes):
            for index in torch.randperm(len(x), generator=generator).split(BATCH):
                descend(self.optimizer, (self.network(x[index])[:, 0] - target[index]).square().mean())


def explained(target: Tensor, value: Tensor) -> float:
    """The share of the variance of `target` (n,) that `value` (n,) explains; 0 where there is none."""
    spread = float(target.var(unbiased=False))
    return 1.0 - float((target - value).var(unbiased=False)) / spread if spread > 0.0 else 0.0
