"""What critics and potentials see, in training alone: what is measured and what is privileged, no pictures, no words.

Where things are from one another says more than where they are: the differences of all positions are beside them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from policies.algorithms import LearningError
from policies.learning.demonstrations import lacking
from policies.learning.networks import Normalizer, Stateful
from policies.models.networks import Array
from sim import spec
from sim.engines.learned import differences, seen
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
        self.pairs = differences(self.signals)
        self.size = spec.size(self.signals) + sum(size + 1 for *_, size in self.pairs)
        self.normalizer = Normalizer(self.size)

    def see(self, signals: Mapping[str, Any]) -> Array:
        """(n, size) of signals (n, *shape), as they are."""
        return seen(self.pairs, spec.pack(self.signals, signals))

    def displaced(self, seen_: Array, name: str, by: Array) -> Array:
        """What would be seen (n, size) in place of that, if this signal were another by so much (n, k)."""
        told = seen_[:, : spec.size(self.signals)].copy()
        told[:, spec.slices(self.signals)[name]] += by
        return seen(self.pairs, told)

    def learn(self, episodes: list[Episode]) -> None:
        """What is usual. LearningError where demonstrations lack something of it."""
        if found := lacking(episodes, [s.name for s in self.signals]):
            number, missing = found
            raise LearningError(
                f"demonstration {number} does not tell {', '.join(missing)}, which critics see: take what "
                "policies.collect recorded, or a task that tells them less"
            )
        for episode in episodes:
            self.normalizer.update(torch.from_numpy(self.see(episode.signals)))

    def __call__(self, seen: Array) -> Tensor:
        """What was seen (n, size), normalised."""
        return self.normalizer(torch.from_numpy(seen)).clamp(-FARTHEST, FARTHEST)
