"""SAC with an adviser who is slow: what he would have done is learned from when it comes, and nobody waits for it.

After Found-RL (Qu et al. 2026), whose adviser is a vision-language model: answers are noted down in the replay, late.
The critics value advice by a margin above what is far from it (value-margin regularisation), the actor is drawn to it
where they think it better than what it does itself (advantage-weighted guidance), and what the adviser likes may bring
a bonus. All three fade out: in the end it is SAC. What differs from the paper: the margin is one-sided, grows with the
distance from the advice, and is measured by the spread of the values; guidance is a distance, not a likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from policies.advisers.advice import Advice, AdviceConfig, blank
from policies.algorithms.sac import Sac, SacConfig
from policies.algorithms.sac.torch_path import TorchPath
from policies.learning.buffers import Batch, ReplayBuffer
from policies.learning.encoders import kept
from sim.tasks import Task
from sim.vec_env import Observation

LARGEST = 20.0  # times that a piece of advice counts, at most
SMALLEST = 1e-6  # spread of values that is divided by


@dataclass
class AdvisedSacConfig(SacConfig):
    """Settings of SAC, by torch, and of the advice."""

    path: str = "torch"
    advice: AdviceConfig = field(default_factory=AdviceConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path != "torch":
            raise ValueError(f"advice is learned from by algorithm.path=torch only, got {self.path}")
        if self.real_data or self.residual or self.estimator.updates:
            raise ValueError(
                "advised_sac is SAC alone: algorithm.real_data must be empty, algorithm.residual and "
                "algorithm.estimator.updates 0"
            )
        if self.parts > 1:
            raise ValueError(
                "advised_sac learns in one process, since advice comes when it comes: set algorithm.parts=1"
            )
        if self.advice.bonus and self.n_step > 1:
            raise ValueError(f"a bonus is for n_step=1, got n_step={self.n_step}")


class AdvisedPath(TorchPath):
    """SAC's path through torch, with somebody at its side."""

    state_parts: tuple[str, ...] = (*TorchPath.state_parts, "advice")
    config: AdvisedSacConfig

    def __init__(self, task: Task, config: AdvisedSacConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(task, config, seed, device)
        self.advice = Advice(task, config.advice, seed, self.buffer, device)

    @property
    def left(self) -> float:
        """How much advice counts now, 0..1."""
        return self.config.advice.left(self.iteration / self.iterations)

    def _earlier(self, run: str, state: Mapping[str, Any], others: ReplayBuffer | None) -> ReplayBuffer:
        made = super()._earlier(run, state, others)
        made.data |= blank(made.data["action"])  # nobody was asked
        return made

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget; a yield every `report_every` control steps."""
        try:
            for metrics in super().learn():
                yield metrics | self.advice.metrics()
        finally:
            self.advice.close()

    def _keep(self, before: Observation, made: Batch) -> None:
        super()._keep(before, made | blank(made["action"]))
        if self.left:
            self.advice.ask(before, made["action"])
        else:
            self.advice.close()

    def _reward(self, batch: Batch) -> Tensor:
        return super()._reward(batch) + self.left * self.config.advice.bonus * batch["bonus"]

    def _critic_regulariser(self, batch: Batch, values: Tensor) -> Tensor | float:
        """By how much advice is thought less of than it should be, squared (Found-RL's "VMR")."""
        config, weight = self.config.advice, self.left * batch["advice_weight"]
        said = weight.nonzero()[:, 0] if config.margin_weight else weight[:0]
        if not len(said):
            return 0.0
        advice, weight = batch["advice"][said], weight[said]
        apart = (advice - batch["action"][said]).square().mean(-1).sqrt()  # (a,)
        spread, values = values.std(1, keepdim=True).detach(), values.detach()  # of each critic
        short = (values[:, said] + config.margin * spread * apart - self._worth(batch, said, advice)).clamp_min(0.0)
        return config.margin_weight * (weight * short.square()).sum() / batch["advice_weight"][said].sum()

    def _actor_regulariser(self, batch: Batch) -> Tensor | float:
        """How far the actor is from advice that is better than what it does (Found-RL's "AWAG")."""
        config, weight = self.config.advice, self.left * batch["advice_weight"]
        said = weight.nonzero()[:, 0] if config.guidance else weight[:0]
        if not len(said):
            return 0.0
        advice = batch["advice"][said]
        mine = self.mean(batch["x"][said], {name: value[said] for name, value in kept(batch).items()})
        with torch.no_grad():
            better = self._worth(batch, said, advice).amin(0) - self._worth(batch, said, mine).amin(0)
            usual = config.temperature * better.abs().mean().clamp_min(SMALLEST)
            weight = weight[said] * (better > 0.0) * (better / usual).exp().clamp_max(LARGEST)
        far = (mine - advice).square().mean(-1)
        return config.guidance * (weight * far).sum() / batch["advice_weight"][said].sum()

    def _worth(self, batch: Batch, rows: Tensor, action: Tensor) -> Tensor:
        """What the critics think of actions (a, k) in these rows, (critics, a)."""
        worth: Tensor = self.critic(self._valued(batch["c"][rows], action))
        return worth


class AdvisedSac(Sac):
    """See the module."""

    Config = AdvisedSacConfig
    goes_by = "sac"
    takes: tuple[str, ...] = ("agents",)
    config: AdvisedSacConfig

    def _path(self, seed: int, device: str) -> AdvisedPath:
        return AdvisedPath(self.task, self.config, seed, device)

    def provenance(self) -> dict[str, Any]:
        """Of whom it was advised, too."""
        return super().provenance() | {"advised": self.path.advice.told()}
