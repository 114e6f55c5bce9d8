"""SAC that is told what an encoder makes of pictures, which learned from recordings before and stays as it is.

FastRLAP's order (Stachowicz et al. 2023, arXiv 2304.09831): see first, then try. Actor and replay know numbers alone,
so that an update costs what it costs without a camera. What differs: the encoder learned what is privileged, not values
(`policies.learning.state_estimation`), and critics see what is privileged itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from policies.algorithms.sac.fused import Fused
from policies.learning.networks import Stateful
from policies.learning.state_estimation.learner import StateEstimator
from policies.learning.state_estimation.world import told
from policies.models.controller import FeaturePolicy
from sim.tasks import OwnWorld

if TYPE_CHECKING:
    from policies.algorithms.sac import SacConfig

FIRST = 0.2  # share of the progress that is shown, of the encoder


class EstimatedPath(Stateful):
    """The path without torch, of a task that an estimator tells."""

    state_parts = ("estimator", "path")

    def __init__(self, task: OwnWorld, config: SacConfig, seed: int) -> None:
        self.task = task
        self.estimator = StateEstimator(task, config.estimator, config.sight, seed)
        self.path = Fused(told(task, self.estimator), replace(config, mirrors=False), seed)

    def learn(self) -> Iterator[dict[str, float]]:
        """The encoder, then the budget."""
        for row in self.estimator.learn():
            yield row | {"progress": FIRST * row["progress"], "env_steps": 0.0}
        for row in self.path.learn():
            yield row | {"progress": FIRST + (1.0 - FIRST) * row["progress"]}

    def controller(self) -> FeaturePolicy:
        """The policy without exploration, of pictures again."""
        network = self.path.controller().network
        return FeaturePolicy.from_task(self.task, network, encoders=self.estimator.exported())

    def dump_to(self, folder: Path) -> None:
        self.path.dump_to(folder)
