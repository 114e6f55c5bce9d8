"""Episodes in which a policy speaks: all scenes plan a chunk at the same moment, so that one pass decodes all of them.

Who looks draws pictures, and a chunk is when somebody looks. An episode that ends within a chunk leaves its scene
resting until the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.algorithms.vla_rl.insight import Insight
from policies.models.controller import physical
from policies.models.networks import Array
from sim import spec
from sim.env import Env
from sim.tasks import Task
from sim.tasks.abilities import rest

# episodes (n,) by their place, numbers (n, k), pictures by name (n, height, width, 3)
# -> tokens (n, length), their log-probabilities (n,), chunks (n, horizon, actions) in [-1, 1]
Speak = Callable[[NDArray[np.int64], Tensor, Mapping[str, Tensor]], tuple[Tensor, Tensor, Array]]


@dataclass
class Chunks:
    """All chunks of some episodes, one after the other."""

    episode: Tensor  # (n,) its place among the episodes
    passed: Tensor  # (n,) share of the time that an episode has, when it was said
    numbers: Tensor  # (n, k) what was measured
    pictures: dict[str, Tensor]  # (n, height, width, 3) uint8
    seen: Array  # (n, size) of `Insight`
    tokens: Tensor  # (n, length)
    logs: Tensor  # (n,) log-probability of the whole chunk, of what it was drawn from
    success: NDArray[np.bool_]  # (episodes,)
    steps: int  # control steps in all

    @property
    def last(self) -> Tensor:
        """Which chunks (n,) ended their episode."""
        return torch.cat([self.episode[1:] != self.episode[:-1], torch.ones(1, dtype=torch.bool)])

    @property
    def counts(self) -> Tensor:
        """How many chunks each episode has (episodes,)."""
        return torch.bincount(self.episode, minlength=len(self.success))

    def some(self, rows: Tensor) -> Chunks:
        """The chunks of this mask (n,)."""
        return replace(
            self,
            episode=self.episode[rows],
            passed=self.passed[rows],
            numbers=self.numbers[rows],
            pictures={name: shown[rows] for name, shown in self.pictures.items()},
            seen=self.seen[rows.numpy()],
            tokens=self.tokens[rows],
            logs=self.logs[rows],
        )


class Practice:
    """Scenes of a task in which episodes of chunks are carried out."""

    def __init__(self, task: Task, env: Env, insight: Insight, horizon: int) -> None:
        self.task, self.env, self.insight, self.horizon = task, env, insight, horizon
        self.actions = spec.size(task.commands)
        self.measured, self.shown = spec.numbers(task.policy), [s.name for s in spec.pictures(task.policy)]

    def __call__(self, numbers: Sequence[int], speak: Speak) -> Chunks:
        """These episodes, from their beginning to their end."""
        env = self.env
        waiting = iter(enumerate(numbers))
        of = np.full(env.num, -1)  # the episode in each row, by its place
        length = np.zeros(len(numbers), np.int64)  # control steps
        success = np.zeros(len(numbers), bool)
        said: list[tuple[Tensor, ...]] = []
        while True:
            begun = [(int(row), *one) for row, one in zip(np.flatnonzero(of < 0), waiting, strict=False)]
            if begun:
                rows, places, drawn = zip(*begun, strict=True)
                env.reset(rows, drawn)
                of[[*rows]] = places
            busy = np.flatnonzero(of >= 0)
            if not len(busy):
                return self._chunks(said, length, success)
            signals = env.observe()
            measured = torch.from_numpy(spec.pack(self.measured, signals)[busy])
            shown = {name: torch.from_numpy(signals[name][busy]) for name in self.shown}
            tokens, logs, chunks = speak(of[busy], measured, shown)
            passed = torch.from_numpy(length[of[busy]] / self.task.episode_steps).float()
            seen = torch.from_numpy(self.insight.see({s.name: signals[s.name][busy] for s in self.insight.signals}))
            said.append((torch.from_numpy(of[busy]), passed, measured, seen, tokens, logs, *shown.values()))
            plan = np.zeros((env.num, self.horizon, self.actions), np.float32)
            plan[busy] = chunks
            self._carry_out(plan, of, length, success)

    def _carry_out(
        self, plan: Array, of: NDArray[np.int64], length: NDArray[np.int64], success: NDArray[np.bool_]
    ) -> None:
        """A chunk (num, horizon, actions) in all rows that have an episode; those that end leave theirs."""
        for k in range(self.horizon):
            busy = np.flatnonzero(of >= 0)
            if not len(busy):
                return
            step = self.env.step(physical(self.task.commands, plan[:, k]))
            length[of[busy]] += 1
            success[of[busy]] |= step.success[busy]
            over = (step.success | step.terminated)[busy] | (length[of[busy]] >= self.task.episode_steps)
            rest(self.env, busy[over].tolist())
            of[busy[over]] = -1

    def _chunks(self, said: list[tuple[Tensor, ...]], length: NDArray[np.int64], success: NDArray[np.bool_]) -> Chunks:
        columns = [torch.cat(parts) for parts in zip(*said, strict=True)]
        order = columns[0].argsort(stable=True)  # what was said of an episode stays in its order
        episode, passed, numbers, seen, tokens, logs, *shown = (column[order] for column in columns)
        pictures = dict(zip(self.shown, shown, strict=True))
        return Chunks(episode, passed, numbers, pictures, seen.numpy(), tokens, logs, success, int(length.sum()))
