"""Who sees what in training: the policy its signals, critics what is privileged in place of pictures.

Critics are needed in training alone, where the simulator knows where things are (Pinto et al. 2018, "Asymmetric Actor
Critic", arXiv 1710.06542). A learner's vector is what the policy sees, followed by what is privileged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.algorithms import LearningError
from policies.learning.demonstrations import lacking
from policies.learning.networks import Normalizer
from policies.models.networks import Array
from policies.models.vision import ObservationEncoder
from sim import spec
from sim.rollout import Episode
from sim.spec import Group


class AsymmetricObservation:
    """The parts of a learner's vector: numbers, then points in pictures, which the policy sees; privileged signals."""

    def __init__(self, signals: Group, observed: int, privileged: Group = (), words: int = 0) -> None:
        """`signals`: the policy's, numbers and pictures; `observed`: how many elements it sees, of which `words`, after
        the numbers, say what it was told: critics see those, too.
        """
        self.signals, self.observed, self.privileged = spec.numbers(signals), observed, privileged
        self.measured = spec.size(self.signals) + words
        self.normalizer = Normalizer(spec.size(privileged))

    @property
    def size(self) -> int:
        """Of a learner's vector."""
        return self.observed + spec.size(self.privileged)

    @property
    def judged(self) -> int:
        """Of the part that critics see."""
        return self.size - self.observed + self.measured if self.privileged else self.observed

    @property
    def ready(self) -> bool:
        """Whether it knows what is usual."""
        return not self.privileged or self.normalizer.count > 0

    def where(self) -> dict[str, slice]:
        """The columns of each signal in a learner's vector."""
        found, start = spec.slices(self.signals), self.observed
        return found | {s: slice(start + w.start, start + w.stop) for s, w in spec.slices(self.privileged).items()}

    def see(self, eye: ObservationEncoder, signals: Mapping[str, Any]) -> Array:
        """A learner's vectors (n, size) of signals."""
        seen = eye.see(signals)
        return np.concatenate([seen, spec.pack(self.privileged, signals)], axis=1) if self.privileged else seen

    def policy(self, x: Any) -> Any:
        """The part (n, observed) that the policy sees."""
        return x[:, : self.observed]

    def judge(self, x: Tensor) -> Tensor:
        """The part (n, judged) that critics see."""
        return torch.cat([x[:, : self.measured], x[:, self.observed :]], -1) if self.privileged else x

    def normalised(self, x: Array, usual: Normalizer) -> Tensor:
        """A learner's vectors, of whose first part `usual` knows what is usual."""
        seen = usual(torch.from_numpy(self.policy(x)))
        if not self.privileged:
            return seen
        return torch.cat([seen, self.normalizer(torch.from_numpy(x[:, self.observed :]))], -1)

    def learn(self, episodes: list[Episode]) -> None:
        """What is usual, from demonstrations. LearningError when they do not tell what is privileged."""
        if found := lacking(episodes, [s.name for s in self.privileged]):
            number, missing = found
            raise LearningError(
                f"demonstration {number} does not tell {missing[0]!r}, which critics are to see: "
                "set algorithm.asymmetric=false (and algorithm.hindsight=0), or let the task's expert demonstrate"
            )
        for episode in episodes:
            self.normalizer.update(torch.from_numpy(spec.pack(self.privileged, episode.signals)))
