"""Rollouts of any task, step by step, for learners: the same samples as `policies.learning.fused.collect` makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused import rollout
from policies.learning.fused.collect import Rollouts
from policies.learning.fused.network import Perceptron, Scratch
from policies.learning.fused.rollout import exploration
from policies.learning.fused.surrogate import GOES_ON, LOST, Samples, Scale, samples_of
from policies.learning.fused.work_queue import WorkQueue
from sim.env import (
    TRAINING,
    Env,
    carried_out,
    episode_numbers,
    for_whole_worlds,
    make_env,
    replay,
    saves,
    stream,
    worker_metrics,
    workers_for,
)
from sim.randomize import Array
from sim.simulation import SimEnv
from sim.simulation.draws import Practice
from sim.spec import limits, numbers, size, unpack
from sim.tasks import Task, agents_of, features_of, has_own_world, history_of, initial_action, judged_costs
from sim.tasks.abilities import has_places, present
from sim.terms import HISTORY, shown

GOLDEN = 0.6180339887  # its multiples, without whole numbers, are spread evenly
DUMPS = 3  # files written about rows whose state stopped being finite


class Hearing(Protocol):
    """Who is told, at each step, what somebody else would do."""

    def hear(self, signals: Mapping[str, Array], action: Array, wander: Array, wanted: Array) -> Array:
        """What is taken from the rewards (n,), from the signals of all rows, their actions (n, k) and what of these is
        exploration. Writes into `wanted` (n, k) what would have been right, and may change actions.
        """

    def begin(self, rows: NDArray[np.bool_]) -> None:
        """New episodes in these rows (n,)."""


class Stepped:
    """`num` rows of a task, `horizon` control steps at a time.

    Where agents come and go (`sim.tasks.abilities.HasPlaces`), `counted` are the samples of a rollout in which somebody
    was there. Whoever has left is lost with his last step, and nobody learns from empty places: they are in no sum.

    In a world of the task's own, `practice` counts for nothing: its episodes are as long as they are, and end `linger`
    control steps after success, for all agents when they do for one. Every step there that counts as success brings
    `success_reward` more. With `staggered` the first ones end at different times: where nobody fails all would begin
    together for ever. Raises ValueError for a policy that is told tokens.
    """

    def __init__(
        self,
        task: Task,
        num: int,
        horizon: int,
        seed: int,
        practice: Practice,
        correlation: float,
        workers: int = 1,
        linger: int = 0,
        success_reward: float = 0.0,
        more: int = 0,
        told: bool = False,
        staggered: bool = False,
    ) -> None:
        """The actor has `more` outputs than actions; with `told` a `hearing` is given before the first rollout."""
        self.task, self.num, self.horizon, self.practice, self._workers = task, num, horizon, practice, workers
        self._linger, self._success_reward = linger, np.float32(success_reward)
        self._own, self._places = has_own_world(task), has_places(task)
        self._open(seed)
        self._low, high = limits(task.commands)
        self._half = np.float32(0.5) * (high - self._low)
        self._first = np.full((history_of(task), len(self._low)), initial_action(task), np.float32)
        self._past = np.tile(self._first, (num, 1, 1))  # newest first
        longest = task.episode_steps if self._own else 0
        self._sent = np.zeros((num, longest, len(self._low)), np.float32)  # in the open episodes of worlds of their own
        self.numbers, self._following = episode_numbers(task, num), num // agents_of(task)
        self._gained, self._length = np.zeros(num, np.float32), np.zeros(num, np.int64)
        share = (self.numbers + 1) * GOLDEN % 1.0 if staggered and self._own else np.ones(num)
        self._shortened, self._worlds = np.ceil(share * task.episode_steps).astype(np.int64), self._following
        self._stayed = np.zeros(num, np.int64)  # control steps since somebody took the place
        self._since = np.full(num, -1)  # control steps since success
        self._costs = judged_costs(task)
        self.diverged, self.dump_dir = 0, Path()  # rows whose state stopped being finite; where they are written to
        self.explore = exploration(seed, num, size(task.commands), correlation)
        self.steps, self.finals = 0, 0
        self.env.reset(range(num), self.numbers.tolist())
        seen, judged = self._look()
        self.features, self.judged = seen.shape[1], judged.shape[1]
        actions = size(task.commands)
        self.samples: Samples = samples_of(num, horizon, self.features, self.judged, actions + more, told)
        self.counted: NDArray[np.int64] = np.arange(num * horizon)
        self.hearing: Hearing | None = None

    def _open(self, seed: int) -> None:
        self._seed, own = seed, stream(seed, TRAINING)
        self._sim = None if self._own else SimEnv(carried_out(self.task), self.num, own, practice=self.practice)
        self.env: Env = self._sim or make_env(self.task, self.num, own, several=True, workers=self._workers)

    def _look(self) -> tuple[Array, Array]:
        """What the actor (n, features) and the critic (n, judged) see now; zero for what is not finite."""
        now, past = self.env.observe(), self._past.reshape(self.num, -1)
        self._now = now
        truth = now if self._own else self.env.truth()

        def made(values: Mapping[str, Array]) -> Array:
            flat = {s.name: values[s.name].reshape(self.num, -1) for s in numbers(self.task.policy)} | {HISTORY: past}
            parts = [np.zeros((self.num, 0)), *(feature.evaluate(flat) for feature in features_of(self.task))]
            return np.concatenate(parts, axis=1, dtype=np.float32)

        hidden = [now[s.name].reshape(self.num, -1) for s in self.task.privileged]
        hidden += [shown(cost.evaluate({**now, **truth}))[:, None] for cost in self._costs]
        seen, judged = made(now), np.concatenate([made(truth), *hidden], axis=1, dtype=np.float32)
        return np.nan_to_num(seen, posinf=0.0, neginf=0.0), np.nan_to_num(judged, posinf=0.0, neginf=0.0)

    def _commands(self, action: Array) -> dict[str, Array]:
        """Commands by name (n, *shape) for actions (n, k) in [-1, 1]."""
        return unpack(self.task.commands, self._low + (action + np.float32(1.0)) * self._half)

    def flight(self, actor: Perceptron, scale: Scale, std: Array, squashed: bool = False) -> None:
        """There is nothing to help with."""

    def collect(
        self, actor: Perceptron, scale: Scale, std: Array, scratch: Scratch, queue: WorkQueue, squashed: bool = False
    ) -> dict[str, float]:
        """As `policies.learning.fused.collect.Rollouts.collect`."""
        if self._sim:
            self._sim.follow_curriculum(self.steps)
        samples, n, horizon = self.samples, self.num, self.horizon
        seen_rows = samples.seen.reshape(len(samples.value), -1)
        judged_rows = samples.judged.reshape(len(samples.value), -1)
        ended: list[tuple[float, int, bool]] = []
        counted: list[NDArray[np.int64]] = []
        self.finals = 0
        seen, judged = self._look()
        for t in range(horizon):
            first, now = t * n, slice(t * n, t * n + n)
            here = present(self.task, self._now) if self._places else None
            seen_rows[now, : self.features], judged_rows[now, : self.judged] = seen, judged
            rollout.act(first, n, len(self._low), actor.net, scale, std, squashed, self.explore, samples, scratch)
            chosen = samples.action.reshape(len(samples.reward), -1)[now, : len(self._low)]
            taken: Array | float = 0.0
            if self.hearing:
                wander = np.exp(std.reshape(-1)[: len(self._low)]) * self.explore.last
                wanted = np.zeros_like(chosen)
                if len(samples.wanted):
                    wanted = samples.wanted.reshape(len(samples.reward), -1)[now, : len(self._low)]
                taken = self.hearing.hear(self._now, chosen, wander, wanted)
            told = np.clip(chosen, -1.0, 1.0)
            step = self.env.step(self._commands(told))
            if self._past.shape[1]:
                self._past = np.concatenate([told[:, None], self._past[:, :-1]], axis=1)
            if self._own:
                self._sent[np.arange(n), self._length] = told
            self._length += 1
            self._stayed += 1
            reward = np.nan_to_num(step.reward).astype(np.float32) - taken
            most, over = self._sim.limit if self._sim else self.task.episode_steps, step.terminated
            if self._own:
                most = np.where(self.numbers < self._worlds, self._shortened, most)
                reward += self._success_reward * step.success
                self._since += step.success | (self._since >= 0)
                over = over | (self._since >= self._linger)
            over = over | (self._length >= most)
            self._gained += reward
            over = for_whole_worlds(agents_of(self.task), over)
            self._write_down(step.terminated, told)
            seen, judged = self._look()
            lost = step.terminated
            if here is not None:
                there = present(self.task, self._now)
                lost, left = lost | ~there, here & ~there
                counted.append(first + np.flatnonzero(here))
                ended += zip(self._gained[left], self._stayed[left], step.terminated[left], strict=True)
                self._gained[~there], self._stayed[~there] = 0.0, 0
            samples.reward[now], samples.ended[now] = reward, np.where(lost, LOST, GOES_ON)
            late = np.flatnonzero(over & ~lost)
            place = (horizon + 1) * n + self.finals
            last = slice(place, place + len(late))
            seen_rows[last, : self.features], judged_rows[last, : self.judged] = seen[late], judged[late]
            samples.ended[first + late] = place + np.arange(len(late))
            self.finals += len(late)
            rows = np.flatnonzero(over)
            if len(rows):
                failed = step.terminated[rows] & ~step.success[rows]
                if here is None:
                    ended += zip(self._gained[rows], self._length[rows], failed, strict=True)
                self._begin(rows)
                if self.hearing:
                    self.hearing.begin(over)
                if actor.net.state is not None:
                    actor.net.state.reshape(n, -1)[rows] = 0.0
                seen, judged = self._look()
        judged_rows[horizon * n : (horizon + 1) * n, : self.judged] = judged
        self.steps += n * horizon
        if counted:
            self.counted = np.concatenate(counted)
        metrics = {"reward": float(samples.reward[self.counted].mean()), "diverged": float(self.diverged)}
        if ended:
            returned, length, lost = np.mean(np.array(ended, np.float64), axis=0).tolist()
            metrics |= {"episode_return": returned, "episode_length": length, "lost": lost}
        return metrics | worker_metrics(self.env)

    def _write_down(self, lost: NDArray[np.bool_], told: Array) -> None:
        """Count the rows whose state stopped being finite, and write some of them down, for replay."""
        if not lost.any():
            return
        now = self.env.observe()
        for row in np.flatnonzero(lost):
            signals = {s.name: now[s.name][row] for s in numbers(self.task.policy)}
            if all(np.isfinite(value).all() for value in signals.values()):
                continue
            if self.diverged < DUMPS:
                self.dump_dir.mkdir(parents=True, exist_ok=True)
                where = {"row": row, "episode": self.numbers[row], "step": self._length[row], "seed": self._seed}
                np.savez(self.dump_dir / f"diverged_{self.steps}_{row}.npz", command=told[row], **signals, **where)
            self.diverged += 1

    def final_ranges(self) -> list[tuple[int, int]]:
        """Where in `samples.judged` the last states of episodes that ran out of time are."""
        first = (self.horizon + 1) * self.num
        return [(first, first + self.finals)]

    def _begin(self, rows: NDArray[np.int64]) -> None:
        agents = agents_of(self.task)
        self.numbers[rows] = episode_numbers(self.task, len(rows), self._following)
        self._following += len(rows) // agents
        self._gained[rows], self._length[rows], self._since[rows], self._past[rows] = 0.0, 0, -1, self._first
        self._stayed[rows] = 0
        self.env.reset(rows.tolist(), self.numbers[rows].tolist())

    def state_dict(self) -> dict[str, Any]:
        """All that the next rollouts depend on; a world of its own is found again by doing again what was sent."""
        arrays = {name: value.copy() for name, value in self._arrays().items()}
        counts = {"following": self._following, "steps": self.steps, "seed": self._seed}
        if saved := saves(self.env):
            return {**arrays, **counts, "env": saved.state_dict()}
        return {**arrays, **counts, "sent": [row[:k].copy() for row, k in zip(self._sent, self._length, strict=True)]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        if (saved := len(state["numbers"])) != self.num:
            raise ValueError(f"the saved state has {saved} environments, this one has {self.num}")
        for name, value in self._arrays().items():
            value[...] = state[name]
        self._following, self.steps = int(state["following"]), int(state["steps"])
        if can := saves(self.env):
            can.load_state_dict(state["env"])
            return
        if int(state["seed"]) != self._seed:
            self.env.close()
            self._open(int(state["seed"]))
        sent = [[*np.asarray(row, np.float32)] for row in state["sent"]]
        for into, row in zip(self._sent, sent, strict=True):
            into[: len(row)] = np.reshape(row, (len(row), into.shape[1]))  # of none, where it has just begun
        for _ in replay(self.env, self.numbers.tolist(), sent, self._commands):
            pass

    def _arrays(self) -> dict[str, NDArray[Any]]:
        kept: dict[str, NDArray[Any]] = {"numbers": self.numbers, "gained": self._gained, "length": self._length}
        if self._own:
            kept |= {"since": self._since} | ({"stayed": self._stayed} if self._places else {})
        return kept | {"past": self._past, "stream": self.explore.stream, "last": self.explore.last}


def rollouts(
    task: Task,
    num: int,
    horizon: int,
    seed: int,
    practice: Practice,
    correlation: float,
    workers: int,
    linger: int = 0,
    success_reward: float = 0.0,
    more: int = 0,
    told: bool = False,
    staggered: bool = False,
) -> Rollouts | Stepped:
    """In a compiled loop where that can be, else step by step, by so many `workers` (see `sim.env.make_env`)."""
    how, workers = (num, horizon, seed, practice, correlation), workers_for(task, num, workers)
    compiled = None if has_own_world(task) or more or told else Rollouts.of(carried_out(task), *how)
    return compiled or Stepped(task, *how, workers, linger, success_reward, more, told, staggered)
