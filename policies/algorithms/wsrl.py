"""WSRL: offline reinforcement learning, then practice without the offline data (Zhou et al. 2024, arXiv 2412.07762).

Actor and critics of `rlpd` learn from the demonstrations alone by Cal-QL (Nakamoto et al. 2023, arXiv 2303.05479): the
critics' values of the actor's own choices are pushed down, but not below what the demonstrator got from there on, and
those of demonstrated chunks up. Then the actor, frozen, does the warm-up, whose transitions take the place of the
demonstrations, and practice goes on from them as in SAC, without any pessimism of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.algorithms import rlpd
from policies.algorithms.critics import Replay
from policies.algorithms.rlpd import Rlpd
from policies.chunked import Base
from policies.controller import Array
from policies.improvement import REPORT
from policies.networks import restore, saved


@dataclass
class Settings(rlpd.Settings):
    """Settings of WSRL."""

    shown: float = 0.0  # nothing of the demonstrations is kept
    warm_up: int = 20
    head_start: int = 0
    offline_updates: int = 2000
    conservatism: float = 0.3  # weight of pushing values down and up
    calibrated: bool = True  # not below the demonstrator's returns; false: CQL (Kumar et al. 2020)
    samples: int = 4  # choices of the actor that are pushed down, per state
    imitation: float = 1.0  # offline, weight of the actor's squared distance from the demonstrated chunk

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offline_updates < 1 or self.samples < 1:
            raise ValueError(
                f"needs offline_updates >= 1 and samples >= 1, got {self.offline_updates} and {self.samples}"
            )


class Wsrl(Rlpd):
    """An actor that chooses chunks, learned offline before it practises."""

    Config = Settings
    config: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.offline = 0  # updates

    def learn(self) -> Iterator[dict[str, float]]:
        yield from self.run.begin()
        yield from self._learn_offline()
        yield from self.run.learn(self)

    def _learn_offline(self) -> Iterator[dict[str, float]]:
        config, generator = self.config, self.generator
        if self.offline == config.offline_updates:
            return
        shown = self.run.transitions()
        past = Replay(len(shown), **self.memory.own.columns, value=1)
        for transition in shown:
            past.add(*self._row(transition), transition.value)
        while self.offline < config.offline_updates:
            batch = past.sample(config.batch, generator)
            x, w = batch["x"], batch["w"]
            loss = self._fit_offline(batch)

            def believed(choice: Tensor, x: Tensor = x, w: Tensor = w) -> Tensor:
                away = (choice - w).square().sum(-1)
                return self.critics.believed(torch.cat([x, choice], -1)) - config.imitation * away

            climbed = self.training.climb(x, self._noise(len(x)), believed, config.first_prior)
            self.offline += 1
            if self.offline == config.offline_updates:
                self.before.load_state_dict(self.training.state_dict())
            if self.offline % REPORT == 0 or self.offline == config.offline_updates:
                done = {"progress": 0.2 * self.offline / config.offline_updates, "env_steps": 0.0}
                yield done | {"loss": float(loss)} | {name: float(value) for name, value in climbed.items()}

    def _fit_offline(self, batch: Mapping[str, Tensor]) -> Tensor:
        """One update of Cal-QL; its loss."""
        wanted = self._targets(batch)
        values = self.critics.ensemble(torch.cat([batch["x"], batch["w"]], -1))  # (critics, n)
        loss: Tensor = (values - wanted).square().mean(1).sum()
        gap = self._chosen(batch["x"], batch["value"]) - values.mean(1)
        loss = loss + self.config.conservatism * gap.sum()
        self.critics.descend(loss)
        self.critics.follow(1)
        return loss.detach()

    def _chosen(self, x: Tensor, value: Tensor) -> Tensor:
        """The mean value (critics,) of the actor's choices, each at least `value` (n, 1) when calibrated."""
        x = x.repeat_interleave(self.config.samples, 0)
        with torch.no_grad():
            w, _ = self.training.actor.sample(x, self._noise(len(x)))
        values: Tensor = self.critics.ensemble(torch.cat([x, w], -1))
        if self.config.calibrated:
            values = torch.maximum(values, value.repeat_interleave(self.config.samples, 0)[:, 0])
        return values.mean(1)

    def choose(self, base: Base, observation: Array, blind: bool) -> tuple[Array, Array]:
        return super().choose(base, observation, False)  # the warm-up is the actor's

    def state_dict(self) -> dict[str, Any]:
        return saved(self._parts()) | {"offline": self.offline}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        restore(self._parts(), state)
        self.offline = int(state["offline"])
