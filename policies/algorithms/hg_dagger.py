"""HG-DAgger: who watches takes over when it gets bad, and the policy learns what was done then (Kelly et al. 2019).

Only states in which the intervener acted are learned from: it is asked for nothing else, so that a human can do it
(`algorithm.intervener=keyboard`). A chunk that begins under its hands goes on with what was executed afterwards, which
nobody objected to. What the paper adds for safety, a threshold on an ensemble's doubt, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.algorithms import LearningError
from policies.algorithms.dagger import Corrected, CorrectionConfig
from policies.learning.demonstrations import chunked
from policies.learning.interveners import Opening, opening
from policies.learning.interventions import InterventionEpisode
from policies.models.networks import Array


class HgDagger(Corrected):
    """A cloned policy, corrected where somebody took over."""

    Config = CorrectionConfig

    def _opening(self) -> Opening:
        return opening(self.task, self.config, self.config.num_envs)

    def learn(self) -> Iterator[dict[str, float]]:
        yield from super().learn()
        if not len(self.seen):
            raise LearningError(
                f"nobody took over in {self.config.total_steps} steps, so nothing was learned beyond the "
                "demonstrations: lower algorithm.threshold or algorithm.patience, or make the base worse"
            )

    def corrections(self, lesson: InterventionEpisode) -> tuple[Array, Array]:
        chunks = chunked(lesson.action, self.cloning.config.horizon)
        return lesson.seen[:-1][lesson.taken], chunks[lesson.taken]
