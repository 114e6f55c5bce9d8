"""What critics and potentials see, in training alone: what is measured and what is privileged, no pictures, no words.

Where things are from one another says more than where they are: the differences of all positions are beside them.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.learning.networks import Normalizer, Stateful
from policies.models.controller import Array
from sim import spec
from sim.rollout import Episode
from sim.tasks import Task

FARTHEST = 5.0  # deviations from the mean that are told apart


def unseen(task: Task) -> Task:
    """The task without its pictures, which take most of the time of a demonstration."""
    made = copy.copy(task)
    made.policy = tuple(s for s in task.policy if not s.is_picture)
    return made


class Insight(Stateful):
    """A vector (n, size) of a task's numbers, with mean 0 and deviation 1 in its demonstrations."""

    state_parts = ("normalizer",)

    def __init__(self, task: Task) -> None:
        self.signals = spec.numbers((*task.policy, *task.privileged))
        places = [s for s in self.signals if s.unit == "m" and s.shape in ((2,), (3,))]
        pairs = itertools.combinations(places, 2)
        self.pairs = [(a.name, b.name) for a, b in pairs if (a.shape, a.frame) == (b.shape, b.frame)]
        sizes = {s.name: s.size for s in places}
        self.size = spec.size(self.signals) + sum(sizes[a] + 1 for a, _ in self.pairs)
        self.normalizer = Normalizer(self.size)

    def see(self, signals: Mapping[str, Any]) -> Array:
        """(n, size) of signals (n, *shape), as they are."""
        apart = [np.asarray(signals[b] - signals[a], np.float32) for a, b in self.pairs]
        far = [np.linalg.norm(difference, axis=-1, keepdims=True) for difference in apart]
        seen: Array = np.concatenate([spec.pack(self.signals, signals), *apart, *far], axis=-1)
        return seen

    def learn(self, episodes: list[Episode]) -> None:
        """What is usual."""
        for episode in episodes:
            self.normalizer.update(torch.from_numpy(self.see(episode.signals)))

    def __call__(self, seen: Array) -> Tensor:
        """What was seen (n, size), normalised."""
        return self.normalizer(torch.from_numpy(seen)).clamp(-FARTHEST, FARTHEST)
