"""RLIF: that somebody intervenes is itself the reward, a negative one (Luo et al. 2023, arXiv 2311.12996).

Nobody's actions are imitated, so who intervenes may be worse than what is learned. The step before an intervention
costs 1, every other step nothing; a scene that is lost costs as much. Off-policy reinforcement learning on all that was
executed, by the policy or by the intervener, and on successful demonstrations, in which nobody would have intervened.
Two things differ from the paper: a cloned base is steered through its noise (`dsrl_na`, whose critics judge what was
executed) instead of beginning from nothing, and an episode is learned from when it is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from policies.algorithms import LearningError
from policies.algorithms.dsrl import Dsrl
from policies.algorithms.dsrl_na import DsrlNa, DsrlNaConfig
from policies.learning.chunk_rollout import Transition
from policies.learning.demonstrations import chunked
from policies.learning.interveners import Watch, opening
from policies.learning.interventions import InterventionEpisode, Supervision
from policies.models.chunking import Base
from policies.models.networks import Array
from sim.tasks import Task


@dataclass
class RlifConfig(Watch, DsrlNaConfig):
    """Settings of RLIF."""

    total_steps: int = 10_000
    warmup_episodes: int = 10
    success_reward: float = 0.0  # of the task's own; RLIF knows none
    cost: float = 3.0  # of an intervention; what the prior's weight is relative to
    n_step: int = 1

    def __post_init__(self) -> None:
        DsrlNaConfig.__post_init__(self)
        Watch.__post_init__(self)
        if not self.cost > 0.0:
            raise ValueError(f"an intervention needs cost > 0, got {self.cost}")
        if self.task_reward:
            raise ValueError("RLIF's reward is that nobody intervenes: set task_reward=0")


class Rlif(DsrlNa):
    """An actor that steers a base so that nobody intervenes."""

    Config = RlifConfig
    takes: tuple[str, ...] = ()
    state_values = ("due", "heard")
    Run = Supervision
    config: RlifConfig
    run: Supervision

    def __init__(self, task: Task, config: RlifConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(task, config, seed, device)
        self.opening = opening(task, config, config.num_envs)
        self.due = 0  # control steps that no update was made for
        self.heard = 0  # episodes

    def learn(self) -> Iterator[dict[str, float]]:
        yield from self.run.teach(self, self.opening)

    def plan(self, base: Base, observation: Array) -> Array:
        return self.choose(base, observation, not self.run.learning)[1]

    def hear(self, lesson: InterventionEpisode) -> None:
        self._store(self.memory, self.transitions(lesson))
        self.heard += 1

    def transitions(self, lesson: InterventionEpisode) -> list[Transition]:
        """From every step, `n_step` chunks on; discounted by control steps."""
        config, steps, horizon = self.config, len(lesson.action), self.cloning.config.horizon
        reward = np.full(steps, config.step_reward / horizon)
        reward[:-1] -= config.cost * lesson.begins[1:]
        reward[-1] += config.success_reward * lesson.success - config.cost * lesson.lost
        gamma = config.gamma ** (1.0 / horizon)
        to_go = np.zeros(steps + 1)
        for k in reversed(range(steps)):
            to_go[k] = reward[k] + gamma * to_go[k + 1]
        first = np.arange(steps)
        last = np.minimum(first + config.n_step * horizon, steps)
        discount = gamma ** (last - first)
        gained = to_go[first] - discount * to_go[last]
        discount[(last == steps) & (lesson.success or lesson.lost)] = 0.0
        chunks, none = chunked(lesson.action, horizon), np.zeros(0, np.float32)
        columns = zip(lesson.seen[:-1], chunks, gained, discount, lesson.seen[last], strict=True)
        return [Transition(x, none, chunk, float(r), float(d), next_x) for x, chunk, r, d, next_x in columns]

    def improve(self) -> dict[str, float]:
        if not self.run.learning:
            if self.heard >= self.config.warmup_episodes:
                self._begin()
            return {}
        metrics = {}
        self.due += self.config.num_envs
        while self.due >= self.cloning.config.horizon:
            metrics, self.due = self.update(), self.due - self.cloning.config.horizon
        return metrics

    def _begin(self) -> None:
        """The warm-up is over. LearningError when nobody intervened in it."""
        if self.run.lessons is not None and not self.run.lessons.interventions:
            raise LearningError(
                f"nobody intervened in the {self.heard} episodes of the warm-up, so there is nothing to learn: "
                "lower algorithm.threshold or algorithm.patience, or raise algorithm.warmup_episodes"
            )
        self.run.learning = True
        self.prepare(self.config.head_start)

    def prepare(self, updates: int) -> None:
        if self.memory.prior is not None:  # rewards are others than those of `dsrl_na`
            for episode in self.run.demonstrations:
                if episode.succeeded:
                    self._store(
                        self.memory.prior, self.transitions(InterventionEpisode.shown(episode, self.task, self.run.see))
                    )
        Dsrl.prepare(self, updates)
