"""Meta-World's MT10 and MT50 as one task: every episode is one of its tasks, in turn, and `task` says which.

Signals are the same for all: a second object that a task lacks is zeros, as in the benchmark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.env import Array, Env, Step, world_of
from sim.spec import Signal, numbers
from sim.tasks.external.metaworld import MetaWorld, Settings, names, signals, task


class MetaWorldMany(MetaWorld):
    """Several environments of Meta-World, which share signals and commands."""

    collection = ""

    def __init__(self, config: Settings | None = None) -> None:
        self.config = config or Settings()
        self.episode_steps = self.config.steps
        self.members: list[MetaWorld] = [task(name)(self.config) for name in names(self.collection)]
        self.policy = (*signals(2), Signal("task", (len(self.members),), "1", "", 0.0, 1.0))  # 1 for the one it is

    def asked(self, episode: int, seed: int) -> int:
        """Which of the tasks the episode of that number is: whatever the seed, they take turns."""
        return episode % len(self.members)

    def open(self, num: int, seed: int) -> Env:
        return ManyScenes(self, num, seed)

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        chosen = np.argmax(signals["task"], axis=1)
        commands = {s.name: np.zeros((len(chosen), *s.shape), np.float32) for s in self.commands}
        for number in np.unique(chosen):
            rows = chosen == number
            theirs = self.members[number].expert({name: value[rows] for name, value in signals.items()})
            for name, value in theirs.items():
                commands[name][rows] = value
        return commands


class ManyScenes:
    """`num` scenes, each of which holds the environment of its present episode's task."""

    def __init__(self, task: MetaWorldMany, num: int, seed: int) -> None:
        self.task, self.num, self.seed = task, num, seed
        self.chosen = np.zeros(num, np.int64)
        self.envs: list[Env | None] = [None] * num
        self._idle: list[list[Env]] = [[] for _ in task.members]  # environments to be used again, per task

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        self.rest(rows)
        for row, episode in zip(rows, episodes, strict=True):
            number = self.chosen[row] = self.task.asked(episode, self.seed)
            idle = self._idle[number]
            env = self.envs[row] = idle.pop() if idle else self.task.members[number].open(1, self.seed)
            with world_of(self.task.name, row):
                env.reset([0], [episode])

    def rest(self, rows: Sequence[int]) -> None:
        for row in rows:
            env, self.envs[row] = self.envs[row], None
            if env is not None:
                self._idle[self.chosen[row]].append(env)

    def observe(self) -> dict[str, Array]:
        declared = numbers((*self.task.policy, *self.task.privileged))
        found = {s.name: np.zeros((self.num, *s.shape), np.float32) for s in declared}
        for row, env in enumerate(self.envs):
            if env is not None:
                for name, value in env.observe().items():
                    found[name][row] = value[0]
        found["task"][np.arange(self.num), self.chosen] = 1.0
        return found

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        total = Step(np.zeros(self.num, np.float32), np.zeros(self.num, bool), np.zeros(self.num, bool))
        for row, env in enumerate(self.envs):
            if env is not None:
                with world_of(self.task.name, row):
                    outcome = env.step({name: np.asarray(value)[row : row + 1] for name, value in command.items()})
                total.reward[row], total.success[row] = outcome.reward[0], outcome.success[0]
                total.terminated[row] = outcome.terminated[0]
        return total

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        env = self.envs[row]
        if env is None:
            raise ValueError(f"scene {row} has not begun an episode yet")
        return env.render(0, height, width)

    def close(self) -> None:
        for env in [*self.envs, *(env for idle in self._idle for env in idle)]:
            if env is not None:
                env.close()
