"""What is usual of samples: running mean and variance, as `policies.learning.networks.Normalizer` has them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused import surrogate
from policies.learning.fused.network import Perceptron, room, vectors
from policies.learning.fused.surrogate import Scale
from policies.learning.fused.symmetry import Images
from sim.randomize import Array
from sim.spec import size
from sim.tasks import Task, features_of, history_of
from sim.terms import HISTORY

SMALLEST = 1e-3  # standard deviation


def smallest_std(task: Task) -> NDArray[np.float64]:
    """The smallest standard deviations (features,) that the actor's features are divided by.

    Its own past actions already have a natural scale, [-1, 1]. Exploration is most of their variance: divided by that,
    it would look as large as the signals.
    """
    sizes = {s.name: s.size for s in task.policy} | {HISTORY: history_of(task) * size(task.commands)}
    parts = [np.full(sizes[f.signal], 0.5 if f.signal == HISTORY else SMALLEST) for f in features_of(task)]
    return np.concatenate([np.zeros(0), *parts])


class Usual(NamedTuple):
    """Mean and standard deviation (size,)."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]


def adapt(network: Perceptron, before: Usual, after: Usual) -> None:
    """Let a network say the same when its inputs are normalised otherwise. What Adam remembers follows."""
    ratio, shift = after.std / before.std, (after.mean - before.mean) / before.std
    weight, bias = network.views()[0]
    bias += shift @ weight
    weight *= ratio[:, None]
    for power, remembered in enumerate((network.first, network.second), 1):
        network.views(remembered)[0][0][...] /= ratio[:, None] ** power


class Moments:
    """Of `size` numbers; standard deviations are at least `floors` (size,).

    Each time, what is known already counts `kept` as much as before. With `images` they are those of all mirror images.
    """

    def __init__(self, size: int, floors: NDArray[np.float64], kept: float = 1.0, images: Images | None = None) -> None:
        self.size, self.floors, self.kept, self.images = size, floors, kept, images
        self.mean, self.variance, self.count = np.zeros(size), np.ones(size), 0
        self.scale = Scale(room(vectors(size)), room(vectors(size)))  # what is applied
        self._sums = room(2 * vectors(size))
        self._refresh()

    @property
    def std(self) -> NDArray[np.float64]:
        """(size,)."""
        return np.maximum(np.sqrt(self.variance), self.floors)

    def _refresh(self) -> None:
        self.scale.mean.reshape(-1)[: self.size] = self.mean
        self.scale.factor.reshape(-1)[: self.size] = 1.0 / self.std

    def learn(self, samples: Array, count: int) -> None:
        """Take the first samples of whole vectors into account."""
        surrogate.moments(samples, count, self.scale, self._sums)
        one, square = self._sums.astype(np.float64).reshape(2, -1)[:, : self.size] / count
        shift = self.scale.mean.reshape(-1)[: self.size].astype(np.float64)
        self._merge(shift + one, np.maximum(square - one**2, 0.0), count)

    @property
    def usual(self) -> Usual:
        return Usual(self.mean.copy(), self.std)

    def add(self, samples: Array) -> None:
        """Take samples (n, size) into account."""
        values = samples.astype(np.float64)
        self._merge(values.mean(axis=0), values.var(axis=0), len(values))

    def _merge(self, mean: NDArray[np.float64], variance: NDArray[np.float64], count: int) -> None:
        """The pairwise formula of Chan et al. 1979."""
        if self.images:
            places, signs = self.images
            square = (variance + mean**2)[places].mean(axis=0)
            mean = (mean[places] * signs).mean(axis=0)
            variance = square - mean**2
        total = round(self.kept * self.count) + count
        share, delta = count / total, mean - self.mean
        self.variance = self.variance + share * (variance - self.variance + (1.0 - share) * delta**2)
        self.mean, self.count = self.mean + share * delta, total
        self._refresh()

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.copy(), "variance": self.variance.copy(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.variance = np.array(state["mean"]), np.array(state["variance"])
        self.count = int(state["count"])
        self._refresh()
