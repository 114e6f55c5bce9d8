"""The value of a moment, by who sees everything but the pictures: a small perceptron that learns in a second."""

from __future__ import annotations

import torch
from torch import Tensor

from policies.learning.networks import Stateful, descend, mlp

BATCH = 256


class Critic(Stateful):
    """The discounted sum of the rewards to come, for what is seen, what was asked for and the share of the time."""

    state_parts = ("network", "optimizer")

    def __init__(self, inputs: int, hidden: list[int], rate: float, generator: torch.Generator) -> None:
        self.network = mlp([inputs, *hidden, 1], generator, last_gain=0.1)
        self.optimizer = torch.optim.Adam(self.network.parameters(), rate)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """(n,) of inputs (n, k)."""
        value: Tensor = self.network(x)[:, 0]
        return value

    def fit(self, x: Tensor, target: Tensor, passes: int, generator: torch.Generator) -> None:
        """So many passes over inputs (n, k) and what came of them (n,)."""
        for _ in range(passes):
            for index in torch.randperm(len(x), generator=generator).split(BATCH):
                descend(self.optimizer, (self.network(x[index])[:, 0] - target[index]).square().mean())


def explained(target: Tensor, value: Tensor) -> float:
    """The share of the variance of `target` (n,) that `value` (n,) explains; 0 where there is none."""
    spread = float(target.var(unbiased=False))
    return 1.0 - float((target - value).var(unbiased=False)) / spread if spread > 0.0 else 0.0
