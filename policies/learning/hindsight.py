"""Hindsight: what an episode achieved, taken for its goal (Andrychowicz et al. 2017, strategy "future").

Of every chunk's beginning `count` copies are made, each with a goal that was achieved at a random later moment of the
same episode; rewards are what the task's own `reached` says of it. A goal that was reached at the copy's beginning
already teaches nothing and is left out. Task and scenes stay as they are: memories get more transitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from policies.learning.chunk_rollout import ChunkRewards, Transition
from policies.models.networks import Array
from sim import spec
from sim.tasks import Task, relabelable


class Hindsight:
    """Relabels the episodes of a task that tells its goals; ValueError for other tasks."""

    def __init__(
        self, task: Task, count: int, rewards: ChunkRewards, horizon: int, seed: int, where: Mapping[str, slice]
    ) -> None:
        """`where`: the columns of each signal in what is seen."""
        goals = relabelable(task)
        if goals is None:
            raise ValueError(f"hindsight needs a task with goals that can be relabelled; {task.name!r} has none")
        goal, achieved = goals.goal, goals.achieved
        if goal not in {signal.name for signal in spec.numbers(task.policy)}:
            raise ValueError(f"{task.name} does not tell its policy {goal!r} as numbers: set algorithm.hindsight=0")
        if achieved not in where:
            raise ValueError(
                f"nobody sees {achieved!r} of {task.name}, which hindsight takes for the goal: "
                "set algorithm.hindsight=0, or let critics see it (algorithm.asymmetric=true)"
            )
        self.goal, self.achieved = where[goal], where[achieved]
        self.task = goals
        self.count, self.rewards, self.horizon, self.seed = count, rewards, horizon, seed

    def transitions(self, key: tuple[int, ...], seen: Array, starts: Sequence[tuple[int, Array]]) -> list[Transition]:
        """Of one episode, `seen` (steps + 1, o), whose chunks (horizon * k,) begin at these steps.

        The seed and the episode's key decide which goals are taken.
        """
        made: list[Transition] = []
        if not np.isfinite(seen).all():
            return made
        rng = np.random.default_rng([self.seed, *key])
        for first, chunk in starts:
            for later in rng.integers(first + 1, len(seen), self.count):
                made += self._toward(seen[later, self.achieved], seen[first:], chunk)
        return made

    def _toward(self, goal: Array, seen: Array, chunk: Array) -> list[Transition]:
        """The chunk with which what is seen begins, under another goal."""
        reached = self.task.reached(seen[:, self.achieved], np.broadcast_to(goal, (len(seen), len(goal))))
        if reached[0]:
            return []
        left = math.ceil(int(reached.argmax()) / self.horizon)  # chunks until then
        chunks, over = min(left, self.rewards.n_step), left <= self.rewards.n_step
        x, next_x = seen[0].copy(), seen[int(reached.argmax()) if over else chunks * self.horizon].copy()
        x[self.goal] = next_x[self.goal] = goal
        reward, discount = self.rewards.over(chunks, over), 0.0 if over else self.rewards.gamma**chunks
        value = self.rewards.over(left, True)
        return [Transition(x, np.zeros(0, np.float32), chunk, reward, discount, next_x, value)]
