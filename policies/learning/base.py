"""Bases that are not cloned here: `algorithm.base.policy=FILE` takes the one in a policy file, as it is, and
`algorithm.base.server=HOST:PORT` one that a policy server runs (`deploy.remote.client`).

Whoever improves them knows their samples alone, and what their observations were like when they learned: learners see
theirs in that measure. A server that does not say so is stood in for by the demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from deploy.remote.client import Client
from policies.algorithms import LearningError
from policies.algorithms.bc import BaseConfig, Cloning
from policies.learning.demonstrations import Demonstrations, Shown
from policies.learning.networks import Normalizer
from policies.learning.vla.steered import ToldPolicy
from policies.models.chunking import ChunkPolicy, NoiseTable, Planner, Steering
from policies.models.controller import Policy
from policies.models.pretrained import Look, ServerBase, Stored, fit, front
from sim import spec
from sim.tasks import Task


@dataclass
class Origin(BaseConfig):
    """Where a base comes from that is to be improved. Without policy and server one is cloned, as the rest says."""

    policy: str = ""  # a policy file that has one
    server: str = ""  # HOST:PORT of a policy server
    timeout: float = 10.0  # s that the server's answer may take
    noise: list[int] = field(default_factory=list)  # rows and columns that the server takes, if it does not say

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy and self.server:
            raise ValueError(f"one base is improved, not both policy={self.policy} and server={self.server}")
        if not self.timeout > 0.0 or len(self.noise) not in (0, 2) or min(self.noise, default=1) < 1:
            raise ValueError(f"needs timeout > 0 and noise as [rows, columns], got {self.timeout} and {self.noise}")


def origin(config: Shown, kind: type[Cloning]) -> type[Cloning]:
    """What gives the base that the settings ask for: `kind`, unless it comes from elsewhere."""
    if not isinstance(config, Origin):
        return kind
    return Given if config.policy else Served if config.server else kind


class Given(Cloning):
    """In the place of cloning: the base of a policy file."""

    config: Origin

    def __init__(self, task: Task, config: Any, generator: torch.Generator) -> None:
        self.task, self.config, self.generator = task, config, generator
        self.base = Stored.load(config.policy, task, config.horizon)
        self.actions, self.observed, self.size = self.base.actions, self.base.observed, self.base.size
        self.words = self.base.words
        self.normalizer = _normalizer(self.base.mean, self.base.deviation)

    @property
    def provenance(self) -> dict[str, Any]:  # type: ignore[override]
        policy = self.base.policy
        return {"base": {"sha256": policy.sha256, "training": policy.metadata["training"]}}

    @property
    def finished(self) -> bool:
        return True

    def denoiser(self, delay: int = 0) -> Stored:  # type: ignore[override]
        return self.base

    def controller(self, chosen: Steering | NoiseTable, planner: Planner | None = None) -> Policy:
        if self.base.hear is None:
            return super().controller(chosen, planner)
        return ToldPolicy.from_task(self.task, self.base, Look(self.base), chosen, planner)

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.base.policy.sha256}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["policy"] != self.base.policy.sha256:
            raise LearningError(f"{self.config.policy} is not the file any more whose base this run improves")


class Measured(Cloning):
    """In the place of cloning: what is seen is normalised as the demonstrations show it, and that is all."""

    state_parts: tuple[str, ...] = ("normalizer",)

    def __init__(self, task: Task, config: Any, generator: torch.Generator) -> None:
        self.task, self.config, self.generator = task, config, generator
        self.actions, self.observed = spec.size(task.commands), spec.size(task.policy)
        self.size = self.actions * config.horizon
        self.normalizer = Normalizer(self.observed)
        self.done = 0

    @property
    def finished(self) -> bool:
        return self.done > 0

    def learn(self, data: Demonstrations, report: int = 100) -> Iterator[dict[str, float]]:
        """The normaliser."""
        self.normalizer.update(torch.from_numpy(data.observation))
        self.done = 1
        yield from ()


class Served(Measured):
    """In the place of cloning: a base on a policy server, which is told what is sensed and no past actions."""

    config: Origin

    def __init__(self, task: Task, config: Any, generator: torch.Generator) -> None:
        """ServerError when there is none, PolicyFileError when it is for something else."""
        if spec.pictures(task.policy):
            raise ValueError(f"{task.name} shows pictures, of which a server's base does not say what it sees")
        super().__init__(task, config, generator)
        client = Client(config.server, config.timeout)
        self.about, where = client.metadata, f"the policy at {config.server}"
        fit(where, task, self.about)
        if self.about.get("horizon", config.horizon) < config.horizon:
            raise ValueError(
                f"{where} plans {self.about['horizon']} actions, not {config.horizon}: algorithm.base.horizon"
            )
        rows, columns = self.about.get("noise") or config.noise or (config.horizon, self.actions)
        self.base = ServerBase(client, task, config.horizon, (rows, columns))
        if "mean" in self.about:
            self.normalizer = _normalizer(self.about["mean"], self.about["deviation"])
            self.done = 1

    @property
    def noise(self) -> tuple[int, int]:
        return self.base.noise

    @property
    def provenance(self) -> dict[str, Any]:  # type: ignore[override]
        return {"base": {"server": {name: self.about.get(name) for name in ("name", "sha256", "training")}}}

    def denoiser(self, delay: int = 0) -> ServerBase:  # type: ignore[override]
        return self.base

    def controller(self, chosen: Steering | NoiseTable, planner: Planner | None = None) -> ChunkPolicy:
        """The one that chooses the noise: the base stays where it is."""
        return front(self.task, self.base, chosen, planner)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sha256": self.about.get("sha256")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["sha256"] != self.about.get("sha256"):
            raise LearningError(f"at {self.config.server} is another base than the one that this run improves")
        super().load_state_dict(state)


def _normalizer(mean: Any, deviation: Any) -> Normalizer:
    """The one of that mean and deviation."""
    made = Normalizer(len(mean))
    state = {"mean": torch.tensor(mean).double(), "variance": torch.tensor(deviation).double() ** 2, "count": 1}
    made.load_state_dict(state)
    return made
