"""DAgger: the expert says what is right wherever the policy gets to, and the policy learns that (Ross et al. 2011).

The policy begins as a clone of the demonstrations and is trained on after every few episodes, on all that has been said
so far and on the demonstrations. In the i-th round the expert acts in a share beta^i of the steps: 0 leaves the scenes
to the policy; 1 leaves them to the expert, which is cloning with as many labels, the baseline. The label of a chunk is
what the expert said in the states that the policy went through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from policies.algorithms.bc import BaseConfig
from policies.learning.demonstrations import Demonstrations, chunked
from policies.learning.interveners import EXPERT, Adviser, Opening, Watch
from policies.learning.interventions import InterventionEpisode, Supervision
from policies.learning.online import OnlineLearner
from policies.models.chunking import Base, ChunkPolicy, NoiseTable
from policies.models.controller import Policy
from policies.models.networks import Array
from sim import spec
from sim.env import Env, stream
from sim.tasks import HasExpert, Task

ADVICE = int.from_bytes(b"advice")  # mixed into the seed: when the expert acts
NOISES = ("none", "normal")


@dataclass
class CorrectionConfig(Watch):
    """What all share that learn from corrections."""

    base: BaseConfig = field(default_factory=BaseConfig)
    total_steps: int = 10_000  # environment steps in all
    num_envs: int = 4  # scenes flown together
    workers: int = 1  # processes that step worlds of others, such as Meta-World; 0: one per core, if worth it
    episodes_per_round: int = 10  # between two rounds of training
    updates_per_round: int = 400
    shown: float = 0.25  # share of the demonstrations in what a round learns from
    noise: str = "none"  # of the policy: none, its most likely chunk, or "normal"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("total_steps", "num_envs", "episodes_per_round", "updates_per_round"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.shown < 1.0:
            raise ValueError(f"shown, the share of the demonstrations, lies between 0 and 1, got {self.shown}")
        if self.noise not in NOISES:
            raise ValueError(f"noise {self.noise!r} is not one of {', '.join(NOISES)}")


@dataclass
class DaggerConfig(CorrectionConfig):
    """Settings of DAgger."""

    beta: float = 0.0  # to the power of the round's number: share of the steps in which the expert acts

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta, the expert's share of the steps, lies between 0 and 1, got {self.beta}")
        if self.intervener != EXPERT:
            raise ValueError(
                f"intervener={self.intervener}: DAgger asks in every state, which only the task's expert can answer; "
                "a human intervenes with algorithm=hg_dagger or rlif"
            )


class Corrected(OnlineLearner, ABC):
    """A cloned policy that is trained on, with what an intervener corrected; subclasses say what that is."""

    Config: type[CorrectionConfig]
    needs = (HasExpert,)
    run: Supervision
    state_parts = ("run",)
    state_values = ("rounds", "waiting", "seen", "chunks", "heard")

    def __init__(self, task: Task, config: CorrectionConfig, seed: int, device: str = "cpu") -> None:
        self.run = Supervision(task, config, seed, device)
        self.task, self.config, self.cloning = self.run.task, config, self.run.cloning
        if pictures := spec.pictures(task.policy):
            names = ", ".join(s.name for s in pictures)
            raise ValueError(f"corrections are kept as numbers, but {task.name} shows pictures: {names}; see rlif")
        self.opening = self._opening()
        self.seen = np.zeros((0, self.cloning.observed), np.float32)
        self.chunks = np.zeros((0, self.cloning.size), np.float32)
        self.heard: list[tuple[Array, Array]] = []  # what is not yet among them
        self.rounds = self.waiting = 0  # of training; episodes since the last one

    @abstractmethod
    def _opening(self) -> Opening:
        """Of who intervenes."""

    @abstractmethod
    def corrections(self, lesson: InterventionEpisode) -> tuple[Array, Array]:
        """What was seen (n, o) and the chunks (n, horizon * k) that are right there."""

    def learn(self) -> Iterator[dict[str, float]]:
        yield from self.run.teach(self, self.opening)

    def plan(self, base: Base, observation: Array) -> Array:
        noise = np.zeros((len(observation), base.noise_size), np.float32)
        if self.config.noise == "normal":
            noise = torch.randn(noise.shape, generator=self.run.generator).numpy()
        return base.sample(observation, noise)

    def hear(self, lesson: InterventionEpisode) -> None:
        self.heard.append(self.corrections(lesson))
        self.waiting += 1

    def _gather(self) -> None:
        """What was heard joins the rest: once per round, for copying all of it takes time."""
        if self.heard:
            seen, chunks = zip(*self.heard, strict=True)
            self.seen, self.chunks = np.concatenate([self.seen, *seen]), np.concatenate([self.chunks, *chunks])
            self.heard = []

    def improve(self) -> dict[str, float]:
        done = self.run.env_steps >= self.config.total_steps
        if self.waiting < (1 if done else self.config.episodes_per_round):
            return {}
        self._gather()
        if not len(self.seen):
            return {}
        self.waiting, self.rounds = 0, self.rounds + 1
        return self.run.refine(self._aggregate(), self.config.updates_per_round)

    def _aggregate(self) -> Demonstrations:
        """Demonstrations and corrections, the rarer ones repeated so that their shares are what was asked for."""
        shown = Demonstrations.of(self.run.demonstrations, self.task, self.cloning.config.horizon)
        share, old, new = self.config.shown, len(shown.observation), len(self.seen)
        size = round(max(old / share, new / (1.0 - share))) if share else new
        past, own = (np.arange(round(part)) for part in (share * size, (1.0 - share) * size))
        return Demonstrations(
            np.concatenate([shown.observation[past % old], self.seen[own % new]]),
            np.concatenate([shown.chunk[past % old], self.chunks[own % new]]),
        )

    def controller(self) -> Policy:
        base = self.cloning.denoiser()
        kind = NoiseTable.none if self.config.noise == "none" else NoiseTable.normal
        return ChunkPolicy.from_task(self.task, base, kind(base.noise_size), base.horizon)


class Dagger(Corrected):
    """A cloned policy, corrected in every state that it gets to."""

    Config = DaggerConfig
    config: DaggerConfig

    def _opening(self) -> Opening:
        return self._ask

    def _ask(self, env: Env) -> Adviser:
        self.adviser = Adviser(self.task, self._share(), stream(self.run.seed, ADVICE))
        return self.adviser

    def _share(self) -> float:
        """Of the steps, in which the expert acts: beta to the power of the round's number, from 1."""
        return float(self.config.beta ** (self.rounds + 1))

    def improve(self) -> dict[str, float]:
        metrics = super().improve()
        self.adviser.share = self._share()
        return metrics

    def corrections(self, lesson: InterventionEpisode) -> tuple[Array, Array]:
        said = np.isfinite(lesson.told).all(axis=1)
        chunks = chunked(lesson.told[said], self.cloning.config.horizon)
        return lesson.seen[:-1][said], chunks
