"""Learning what SUMO's vehicles emit from moments that SUMO judged: speed, acceleration and grade.

Half of the moments are anywhere in RANGES; the others are as in traffic: near a steady speed on a gentle grade,
creeping in a queue, or standing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from policies.learning import cosine
from policies.learning.emissions.network import Emission
from policies.learning.networks import Normalizer, descend, linear_layers, mlp
from sim.engines.sumo.surrogate import FEATURES, features

# m/s, m/s^2, rise over run. To 130 km/h; SUMO's usual cars brake with 4.5 and start with 2.6 m/s^2.
RANGES = np.array([(0.0, 36.0), (-4.5, 2.6), (-0.1, 0.1)])
STEADY, CREEPING, STANDING = 0.25, 0.2, 0.05  # shares of the moments
CREEP = 2.0  # m/s
SPREADS = (0.5, 0.03)  # of acceleration and grade in traffic


@dataclass
class Fitting:
    """Settings of the learning."""

    hidden: int = 64  # units in each of two layers
    updates: int = 12_000
    batch_size: int = 256
    learning_rate: float = 3e-3


def anywhere(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Moments (count, 3) anywhere in RANGES."""
    return rng.uniform(RANGES[:, 0], RANGES[:, 1], (count, 3))


def moments(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Moments (count, 3) to learn from."""
    found = anywhere(count, rng)
    standing, creeping, usual = np.cumsum([round(share * count) for share in (STANDING, CREEPING, STEADY)])
    found[:usual, 1:] = np.clip(rng.normal(0.0, SPREADS, (usual, 2)), RANGES[1:, 0], RANGES[1:, 1])
    found[standing:creeping, 0] = rng.uniform(0.0, CREEP, creeping - standing)
    found[:standing, :2] = 0.0
    return found


class Fit:
    """One network in training, from moments (n, 3) and what is emitted there (n, q), g/s."""

    def __init__(self, where: NDArray[np.float64], emitted: NDArray[np.float64], config: Fitting, seed: int) -> None:
        self.config = config
        self.generator = torch.Generator().manual_seed(seed)
        self.most = np.maximum(1.05 * emitted.max(axis=0), 1e-12)
        self.x = torch.from_numpy(features(where)).float()
        self.y = torch.from_numpy(emitted / self.most).float()
        self.normalizer = Normalizer(len(FEATURES))
        self.normalizer.update(self.x)
        quantities = emitted.shape[1]
        self.network = mlp([len(FEATURES), config.hidden, config.hidden, 2 * quantities], self.generator)
        self.unit = self.y.mean(0).clamp_min(1e-6)  # errors are shares of the mean

    def learn(self) -> Iterator[dict[str, float]]:
        """All updates; a yield after each hundred."""
        config = self.config
        optimizer = torch.optim.Adam(self.network.parameters(), config.learning_rate, fused=True)
        for update in range(config.updates):
            optimizer.param_groups[0]["lr"] = cosine(update / config.updates, config.learning_rate, 0.0)
            index = torch.randint(len(self.x), (config.batch_size,), generator=self.generator)
            loss = self._loss(self.normalizer(self.x[index]), self.y[index])
            descend(optimizer, loss)
            if (update + 1) % 100 == 0 or update + 1 == config.updates:
                yield {"progress": (update + 1) / config.updates, "loss": loss.item()}

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Of amounts where there is something, and of the gates."""
        amount, gate = self.network(x).chunk(2, -1)
        some = (y > 0.0).float()
        off = functional.smooth_l1_loss(amount / self.unit, y / self.unit, reduction="none", beta=0.5)
        return (some * off).mean() + functional.binary_cross_entropy_with_logits(gate, some)

    def exported(self) -> Emission:
        """A copy that takes features as they are."""
        low, high = features(RANGES.T).astype(np.float32)
        return Emission(linear_layers(self.network, self.normalizer), low, high)
