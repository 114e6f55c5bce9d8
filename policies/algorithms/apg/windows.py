"""Analytic policy gradients where a task brings a world of its own that differentiates what it costs: the training.

The gradient goes back step by step: through the world, the policy, and what the robot sensed. Commands of the last
`ahead` steps of a window do not learn: most of what follows from them is not in it. There is no critic. The policy is a
module of torch (`worlds.py`), or, with algorithm.path=fused, kernels over blocks of rows (`fused_worlds.py`), which on
small networks take a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.algorithms.apg import MEASURED, ApgConfig
from policies.learning.fused.measure import measured
from policies.models.controller import FeaturePolicy
from policies.models.networks import Network
from sim.env import TRAINING, stream
from sim.spec import limits, pictures
from sim.tasks import agents_of
from sim.tasks.abilities import HasRehearsal, alone_of

Array = NDArray[Any]


class Learner(Protocol):
    """A policy within its world, as the training sees it."""

    def window(self) -> tuple[Array, float]:
        """Fly one window and keep its gradient: costs (T, n), and which share of them counts."""

    def improve(self, rate: float) -> float:
        """One step along that gradient; its norm."""

    def forget(self, rows: NDArray[np.bool_]) -> None:
        """Other episodes begin in these rows (n,)."""

    def inputs(self) -> int:
        """How many features there are."""

    def begin_with(self, layers: Sequence[tuple[Array, Array]]) -> None:
        """From these weights and biases of each layer."""

    def network(self) -> Network:
        """What has been learned so far."""


class Windows(Learner):
    """What both have in common. `Fused` in `policies.algorithms.apg` has the same metrics."""

    def __init__(self, task: HasRehearsal, config: ApgConfig, seed: int) -> None:
        if pictures(task.policy):
            raise ValueError(f"apg takes numbers, but {task.name} shows pictures")
        if not 0 <= config.ahead < config.window:
            raise ValueError(f"algorithm.ahead must be within 0..window - 1, got {config.ahead} of {config.window}")
        self.task, self.config, self.seed = task, config, seed
        self.world = task.rehearsal(config.num_envs, stream(seed, TRAINING), config.window)
        self.sizes = {s.name: s.size for s in task.policy}
        self.low, high = limits(task.commands)
        self.half = np.float32(0.5) * (high - self.low)
        self.update = self.lost = 0
        self._alone = alone_of(task) if config.solo else None

    def _controller(self) -> FeaturePolicy:
        return FeaturePolicy.from_task(self.task, self.network())

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget."""
        c = self.config
        if self._alone is not None and not self.update:
            from policies.algorithms.apg.alone import learned_alone

            self.begin_with(learned_alone(self._alone, c, self.seed, self.inputs()))
        interval, measure = max(1, c.updates // 100), max(1, c.updates // 5)
        while self.update < c.updates:
            cost, counting = self.window()
            norm = self.improve(c.rate(self.update))
            self.update += 1
            lost, over = self.world.go_on(c.episode_windows * c.window)
            self.lost += lost
            self.forget(over)
            if self.update % interval == 0 or self.update == c.updates:
                metrics = c.metrics(self.update, float(cost.mean()), norm, self.lost) | {"driving": counting}
                if self.update % measure < interval:
                    worlds = max(1, MEASURED // agents_of(self.task))
                    metrics |= measured(self.task, self._controller(), self.seed, self.update * worlds, worlds)
                yield metrics

    def dump_to(self, folder: Path) -> None:
        """Nothing is written: the world itself says who is lost."""
