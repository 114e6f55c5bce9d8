"""The one loop over episodes: somebody acts in every row of an environment, and each row goes on by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.env import Array, Env, Step, for_whole_worlds
from sim.tasks import Task, agents_of

# signals (num, *shape) by name, episode numbers (num,), which of them have just begun (num,) bool -> commands by name
Act = Callable[[Mapping[str, Array], Array, Array], Mapping[str, Array]]


class Moment(NamedTuple):
    """One control step of one row: what was seen, what was done, what it brought."""

    signals: dict[str, Array]  # by name, (*shape)
    commands: dict[str, Array]
    reward: float
    success: bool
    terminated: bool

    @classmethod
    def of(
        cls, task: Task, row: int, signals: Mapping[str, Array], commands: Mapping[str, Array], step: Step
    ) -> Moment:
        """Of a whole batch's step, one row of what the task declares."""
        seen = {s.name: signals[s.name][row].copy() for s in (*task.policy, *task.privileged)}
        done = {s.name: np.asarray(commands[s.name][row]).copy() for s in task.commands}
        return cls(seen, done, float(step.reward[row]), bool(step.success[row]), bool(step.terminated[row]))


@dataclass
class Episode:
    """One episode, as the robot saw it: signals and commands by name (steps, *shape)."""

    number: int
    signals: dict[str, Array]  # the privileged ones, too, where they are known
    commands: dict[str, Array]
    reward: Array  # (steps,) float32
    success: Array  # (steps,) bool
    terminated: Array  # (steps,) bool

    @classmethod
    def of(cls, number: int, moments: Sequence[Moment]) -> Episode:
        """Of all its moments."""
        seen, done, reward, success, terminated = zip(*moments, strict=True)
        signals = {name: np.stack([s[name] for s in seen]) for name in seen[0]}
        commands = {name: np.stack([c[name] for c in done]) for name in done[0]}
        told = np.array(success, bool), np.array(terminated, bool)
        return cls(number, signals, commands, np.array(reward, np.float32), *told)

    @property
    def succeeded(self) -> bool:
        """Whether the task was done at any step."""
        return bool(self.success.any())

    def flight(self) -> dict[str, Array]:
        """What a task scores: everything by name (steps, 1, *shape)."""
        judged = {"reward": self.reward, "success": self.success, "terminated": self.terminated}
        columns = {name: value[:, None].astype(np.float32) for name, value in judged.items()}
        return {name: value[:, None] for name, value in {**self.signals, **self.commands, **columns}.items()}


def rollout(
    task: Task,
    env: Env,
    act: Act,
    episodes: Sequence[int],
    linger: int = 0,
    truth: bool = False,
    late: Sequence[int] = (),
) -> Iterator[Episode]:
    """These episodes, as they end: `linger` steps after success, when terminated, or out of time.

    They begin in this order, each in the first world that is free; with `truth` they hold what is so, for scores,
    instead of what was sensed. Of several agents in a world each yields its own, one after the other, when it ends for
    one of them. `late`: control steps by which the first episode of each world begins later. ValueError when some
    world has none to begin with.
    """
    num, agents = env.num, agents_of(task)
    worlds = num // agents
    if len(episodes) < worlds:
        raise ValueError(f"{worlds} environments need as many episodes, got {len(episodes)}")
    numbers, waiting = np.repeat(episodes[:worlds], agents), iter(episodes[worlds:])
    moments: list[list[Moment]] = [[] for _ in range(num)]
    begun, busy = np.ones(num, bool), np.ones(worlds, bool)
    since = np.full(num, -1)  # steps since success
    starts, clock = np.array([*late] or [0] * worlds), 0
    env.reset(range(num), numbers.tolist())
    while busy.any():
        for world in map(int, np.flatnonzero((starts == clock) & (starts > 0))):
            rows = [*range(agents * world, agents * (world + 1))]
            begun[rows], since[rows] = True, -1  # what was stepped until now is nobody's
            env.reset(rows, numbers[rows].tolist())
        signals = env.observe()
        commands, kept = act(signals, numbers, begun), env.truth() if truth else signals
        step = env.step(commands)
        begun = np.zeros(num, bool)
        since += step.success | (since >= 0)
        over = for_whole_worlds(agents, (since >= linger) | step.terminated)
        clock += 1
        for world in map(int, np.flatnonzero(busy & (starts < clock))):
            rows = [*range(agents * world, agents * (world + 1))]
            for row in rows:
                moments[row].append(Moment.of(task, row, kept, commands, step))
            if not over[rows[0]] and len(moments[rows[0]]) < task.episode_steps:
                continue
            for row in rows:
                yield Episode.of(int(numbers[row]), moments[row])
                moments[row], since[row] = [], -1
            following = next(waiting, None)
            if following is None:
                busy[world] = False
            else:
                numbers[rows], begun[rows] = following, True
                env.reset(rows, [following] * agents)
