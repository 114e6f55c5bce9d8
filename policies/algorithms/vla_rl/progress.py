"""A process reward: how far the task is done, as demonstrations have it, is a potential whose rise is rewarded.

Rewarding gamma * potential(next) - potential(now), with none at an episode's end, changes what is learned first and not
what is best (Ng et al. 1999, "Policy invariance under reward transformations").

Demonstrations end where they succeed: they do not say that who goes on from there comes away from it, and what is
fitted to them alone is 1 beyond, too. So the hand may be led astray: by as much of its way it is further from the end.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.algorithms.vla_rl.insight import Insight
from policies.learning.networks import Stateful, descend, mlp
from policies.models.networks import Array
from sim.rollout import Episode

HIDDEN = (128, 128)
UPDATES, BATCH = 600, 256
RATE = 2e-3
JITTER = 0.1  # of what is seen, in deviations: demonstrations cover little
HAND = "hand_position"  # that is led astray
LEAST = 0.05  # m of a hand's way, at least


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

    def learn(
        self, episodes: list[Episode], insight: Insight, generator: torch.Generator, astray: float = 0.0
    ) -> float:
        """From those that succeeded, with the hand up to `astray` (m) off in half of what is learned from.

        The mean squared error, in the end, of what was fitted.
        """
        done = [episode for episode in episodes if episode.succeeded]
        told = np.concatenate([insight.see(episode.signals) for episode in done])
        x = insight(told)
        target = torch.from_numpy(np.concatenate([shares(episode) for episode in done]))
        way = torch.from_numpy(np.concatenate([_way(episode) for episode in done])) if astray else None
        optimizer = torch.optim.AdamW(self.network.parameters(), RATE, weight_decay=1e-3)
        for _ in range(UPDATES):
            index = torch.randint(len(x), (BATCH,), generator=generator)
            here, share = x[index], target[index]
            if way is not None:
                off = astray * _offsets(BATCH, done[0].signals[HAND].shape[1], generator)
                here = insight(insight.displaced(told[index.numpy()], HAND, off.numpy()))
                share = (share - off.norm(dim=1) / way[index]).clamp_min(0.0)
            seen = here + JITTER * torch.randn(BATCH, x.shape[1], generator=generator)
            descend(optimizer, (self.network(seen)[:, 0] - share).square().mean())
        return float((self(x) - target).square().mean())


def _way(episode: Episode) -> NDArray[np.float64]:
    """How far (m) the hand went until it succeeded, at each step (steps,)."""
    hand = episode.signals[HAND][: int(episode.success.argmax()) + 1]
    gone = float(np.linalg.norm(np.diff(hand, axis=0), axis=1).sum())
    return np.full(len(episode.success), max(LEAST, gone))


def _offsets(n: int, size: int, generator: torch.Generator) -> Tensor:
    """(n, size): none for half of them, else any way and any distance up to 1."""
    way = torch.nn.functional.normalize(torch.randn(n, size, generator=generator), dim=1)
    return torch.rand(n, 1, generator=generator).mul(2.0).sub(1.0).clamp_min(0.0) * way


def shares(episode: Episode) -> Array:
    """How much of an episode has passed at each step (steps,), of one that succeeds: 1 from then on."""
    first = int(episode.success.argmax()) + 1
    passed: Array = np.minimum(np.arange(len(episode.success), dtype=np.float32) / first, np.float32(1.0))
    return passed
