"""SAC that is told what an encoder makes of pictures, which learned from recordings before and stays as it is.

FastRLAP's order (Stachowicz et al. 2023, arXiv 2304.09831): see first, then try. Actor and replay memory know numbers
alone, so that a step costs what it costs without a camera. What differs: the encoder learned what is privileged, not
values (`policies.learning.state_estimation`), and critics see what is privileged itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from policies.algorithms.sac.torch_path import TorchPath
from policies.learning.encoders import PictureActor
from policies.learning.state_estimation.learner import StateEstimator
from policies.models.vision import PictureEncoder
from sim.tasks import Task
from sim.vec_env import Observation

if TYPE_CHECKING:
    from policies.algorithms.sac import SacConfig

FIRST = 0.2  # share of the progress that is shown, of the encoder


class EstimatedPath(TorchPath):
    """SAC's path through torch, whose actor sees no pictures."""

    state_parts = (*TorchPath.state_parts, "estimator")

    def __init__(self, task: Task, config: SacConfig, seed: int, device: str = "cpu") -> None:
        if device != "cpu":
            raise ValueError(f"algorithm.estimator.updates learns on the CPU: take device=cpu, not {device}")
        self.estimator = StateEstimator(task, config.estimator, config.sight, seed)
        self.estimated = self.estimator.size
        super().__init__(task, config, seed, device)

    def learn(self) -> Iterator[dict[str, float]]:
        """The encoder, then the budget."""
        for told in self.estimator.learn():
            yield told | {"progress": FIRST * told["progress"], "env_steps": 0.0}
        for metrics in super().learn():
            yield metrics | {"progress": FIRST + (1.0 - FIRST) * metrics["progress"]}

    def _seen(self, observation: Observation) -> tuple[Tensor, Mapping[str, Tensor]]:
        told = self.estimator.look(observation["pictures"])
        return torch.cat([self.env.features(observation), told], -1), {}

    def _encoders(self, actor: PictureActor) -> Mapping[str, PictureEncoder]:
        return self.estimator.exported()
