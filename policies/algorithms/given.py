"""A base that is not cloned here: `algorithm.base.policy=FILE` takes the one in a policy file, as it is.

Whoever improves it knows its samples alone, and what its observations were like when it learned: learners see theirs
in that measure. Demonstrations are only wanted by learners that learn from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from policies.algorithms import LearningError
from policies.algorithms.diffusion import BaseConfig, Cloning
from policies.bases import Stored
from policies.networks import Normalizer
from sim.workcell import Manipulation


@dataclass
class Origin(BaseConfig):
    """Where a base comes from that is to be improved."""

    policy: str = ""  # the policy file whose base is taken; none: one is cloned, as the rest says


class Given(Cloning):
    """In the place of cloning: the base of a policy file."""

    config: Origin

    def __init__(self, task: Manipulation, config: Any, generator: torch.Generator) -> None:
        self.task, self.config, self.generator = task, config, generator
        self.base = Stored.load(config.policy, task, config.horizon)
        self.actions, self.observed, self.size = self.base.actions, self.base.observed, self.base.size
        self.normalizer = Normalizer(self.observed)
        mean, deviation = (torch.from_numpy(m).double() for m in (self.base.mean, self.base.deviation))
        self.normalizer.load_state_dict({"mean": mean, "variance": deviation**2, "count": 1})

    @property
    def provenance(self) -> dict[str, Any]:  # type: ignore[override]
        policy = self.base.policy
        return {"base": {"sha256": policy.sha256, "training": policy.metadata["training"]}}

    @property
    def finished(self) -> bool:
        return True

    def denoiser(self, delay: int = 0) -> Stored:  # type: ignore[override]
        return self.base

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.base.policy.sha256}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["policy"] != self.base.policy.sha256:
            raise LearningError(f"{self.config.policy} is not the file any more whose base this run improves")
