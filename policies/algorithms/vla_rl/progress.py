"""A process reward: how far the task is done, as demonstrations have it, is a potential whose rise is rewarded.

Rewarding gamma * potential(next) - potential(now), with none at an episode's end, changes what is learned first and not
what is best (Ng et al. 1999, "Policy invariance under reward transformations").
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from policies.algorithms.vla_rl.insight import Insight
from policies.learning.networks import Stateful, descend, mlp
from policies.models.networks import Array
from sim.rollout import Episode

HIDDEN = (128, 128)
UPDATES, BATCH = 600, 256
RATE = 2e-3
JITTER = 0.1  # of what is seen, in deviations: demonstrations cover little


class Progress(Stateful):
    """The potential: 0 at the beginning, 1 where the task is done."""

    state_parts = ("network",)

    def __init__(self, inputs: int, generator: torch.Generator) -> None:
        self.network = mlp([inputs, *HIDDEN, 1], generator, last_gain=0.1)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """(n,) of what is seen (n, inputs), normalised."""
        share: Tensor = self.network(x)[:, 0].clamp(0.0, 1.0)
        return share

    def learn(self, episodes: list[Episode], insight: Insight, generator: torch.Generator) -> float:
        """From those that succeeded; the mean squared error, in the end, of what was fitted."""
        done = [episode for episode in episodes if episode.succeeded]
        x = torch.cat([insight(insight.see(episode.signals)) for episode in done])
        target = torch.from_numpy(np.concatenate([shares(episode) for episode in done]))
        optimizer = torch.optim.AdamW(self.network.parameters(), RATE, weight_decay=1e-3)
        for _ in range(UPDATES):
            index = torch.randint(len(x), (BATCH,), generator=generator)
            seen = x[index] + JITTER * torch.randn(BATCH, x.shape[1], generator=generator)
            descend(optimizer, (self.network(seen)[:, 0] - target[index]).square().mean())
        return float((self(x) - target).square().mean())


def shares(episode: Episode) -> Array:
    """How much of an episode has passed at each step (steps,), of one that succeeds: 1 from then on."""
    first = int(episode.success.argmax()) + 1
    passed: Array = np.minimum(np.arange(len(episode.success), dtype=np.float32) / first, np.float32(1.0))
    return passed
