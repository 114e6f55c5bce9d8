"""Scenes that execute chunks of actions, and the transitions from chunk to chunk that learners store.

Every scene has its own clock: it asks for a new chunk when it has executed its last one, and begins the next episode
as soon as one ends. One transition spans up to `n_step` chunks; its discount follows the control steps that it took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from policies.learning import SCORE
from policies.models.controller import physical
from policies.models.networks import Array
from policies.models.success import SuccessFromClassifier
from sim import spec
from sim.env import make_env, replay, worker_metrics
from sim.tasks import Task

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile
    from policies.learning.hindsight import Hindsight

NEWEST, NEWEST_TIMES = 100, 20  # episodes whose outcomes, and successes whose times are told


@dataclass
class ChunkRewards:
    """What a learner gets, per chunk."""

    success: float  # once, for the chunk with which an episode ends well
    step: float  # for every other chunk
    gamma: float  # per whole chunk
    n_step: int  # chunks in a transition
    task: float = 0.0  # what the task's own reward counts, of every control step

    def over(self, chunks: int, success: bool, earned: Array | None = None) -> float:
        """The discounted sum of so many chunks, of which the last one succeeds or none does.

        `earned` (chunks,): what the task itself paid in each.
        """
        got = [self.step] * (chunks - 1) + [self.success if success else self.step]
        own = np.zeros(chunks) if earned is None else self.task * earned
        return float(sum(self.gamma**k * (reward + own[k]) for k, reward in enumerate(got)))

    @property
    def worst(self) -> float:
        """The discounted sum when no chunk ever succeeds."""
        return self.step / (1.0 - self.gamma)


@dataclass
class Transition:
    """From a chunk's beginning to the state in which the value of what follows, times `discount`, is added."""

    x: Array  # (o,) what was seen
    choice: Array  # what the learner chose: noise, an edit
    chunk: Array  # (horizon * k,) the actions, [-1, 1]
    reward: float  # discounted sum
    discount: float  # 0: the episode ended with success, or was lost
    next_x: Array
    value: float = 0.0  # at least, of what was done from there on: known of demonstrations


@dataclass
class _Chunk:
    x: Array
    choice: Array
    chunk: Array
    steps: int = 0
    reward: float = 0.0


# everything seen in an episode (steps + 1, o), actions sent (steps, k), whether it succeeded
Between = Callable[[Array, Array, bool], list[Transition]]


class ChunkRollout:
    """`num` scenes of the episode stream `seed`."""

    def __init__(
        self,
        task: Task,
        seed: int,
        num: int,
        horizon: int,
        rewards: ChunkRewards,
        see: Callable[[Mapping[str, Array]], Array] | None = None,
        hindsight: Hindsight | None = None,
        judge: PolicyFile | None = None,
        between: Between | None = None,
        workers: int = 1,
    ) -> None:
        """`see`: what a learner sees (num, o) of the signals; by default the policy's, one after the other.

        `judge`: a classifier whose verdict takes the place of the simulator's success. `between`: makes transitions
        that begin within the chunks of an episode.
        """
        self.between, self._looking = between, hindsight is not None or between is not None
        self.task, self.num, self.horizon, self.rewards, self.hindsight = task, num, horizon, rewards, hindsight
        self._see = see or partial(spec.pack, task.policy)
        self.worlds = make_env(task, num, seed, workers=workers)
        self.judged = None if judge is None else SuccessFromClassifier(self.worlds, judge)
        self.env = self.judged or self.worlds
        self.actions = spec.size(task.commands)
        self.numbers = np.arange(num)
        self.following = num
        self.finished = 0
        self.outcomes: list[bool] = []  # of the newest episodes
        self.times: list[float] = []  # s that the newest of those took that succeeded
        self._plan = np.zeros((num, horizon, self.actions), np.float32)
        self._left = np.zeros(num, np.int64)  # actions of the plan still to be executed
        self._length = np.zeros(num, np.int64)  # control steps of the episode
        self._pending: list[list[_Chunk]] = [[] for _ in range(num)]
        self._sent: list[list[Array]] = [[] for _ in range(num)]  # since the episode's beginning
        self._planned: list[list[Array]] = [[] for _ in range(num)]  # chunks, likewise
        self.env.reset(range(num), range(num))
        self.seen = self._look()
        self._trail = [[seen] for seen in self.seen]  # everything seen, likewise

    def _look(self) -> Array:
        return self._see(self.env.observe())

    def rates(self) -> dict[str, float]:
        """Of the newest episodes: "success", and how far a classifier's is the simulator's; of workers, if any.

        Also how long those took that succeeded, the median.
        """
        rates = {"success": float(np.mean(self.outcomes))} if self.outcomes else {}
        rates |= {f"{SCORE}duration": float(np.median(self.times))} if self.times else {}
        return rates | (self.judged.rates() if self.judged else {}) | worker_metrics(self.worlds)

    def idle(self) -> NDArray[np.int64]:
        """The scenes that wait for a chunk."""
        return np.flatnonzero(self._left == 0)

    def plan(self, row: int, choice: Array, chunk: Array) -> None:
        """Give an idle scene its next chunk (horizon * k,)."""
        self._pending[row].append(_Chunk(self.seen[row], choice, chunk))
        self._plan[row] = chunk.reshape(self.horizon, self.actions)
        self._left[row] = self.horizon
        self._planned[row].append(chunk)

    def step(self) -> list[Transition]:
        """One control step in every scene; the transitions that it completes."""
        action = self._plan[np.arange(self.num), self.horizon - self._left]
        for row in range(self.num):
            self._sent[row].append(action[row])
        outcome = self.env.step(physical(self.task.commands, action))
        self._left -= 1
        self._length += 1
        out_of_time = self._length >= self.task.episode_steps
        asked = outcome.success | outcome.terminated | out_of_time | (self._left == 0)
        if self._looking or asked.any():  # else nobody asks for it
            self.seen = self._look()
        if self._looking:
            for row in range(self.num):
                self._trail[row].append(self.seen[row])
        made: list[Transition] = []
        for row in range(self.num):
            over = bool(outcome.success[row] or outcome.terminated[row])
            self._pending[row][-1].steps += 1
            if self.rewards.task:
                self._pending[row][-1].reward += self.rewards.task * float(outcome.reward[row])
            if over or out_of_time[row] or self._left[row] == 0:
                self._pending[row][-1].reward += self._reward(bool(outcome.success[row]), over)
            if over or out_of_time[row]:
                made += [self._transition(row, first, over) for first in range(len(self._pending[row]))]
                made += self._more(row, bool(outcome.success[row]))
                self._begin(row, bool(outcome.success[row]))
            elif self._left[row] == 0 and len(self._pending[row]) == self.rewards.n_step:
                made.append(self._transition(row, 0, False))
                self._pending[row].pop(0)
        return made

    def _reward(self, success: bool, over: bool) -> float:
        """Of a chunk. To be lost is as good as never to succeed: else losing early would be worth most."""
        if success:
            return self.rewards.success
        return self.rewards.worst if over else self.rewards.step

    def _transition(self, row: int, first: int, over: bool) -> Transition:
        chunks, reward, discount = self._pending[row][first:], 0.0, 1.0
        for chunk in chunks:
            reward += discount * chunk.reward
            discount *= float(self.rewards.gamma ** (chunk.steps / self.horizon))
        begun = chunks[0]
        next_x = np.nan_to_num(self.seen[row])
        return Transition(begun.x, begun.choice, begun.chunk, reward, 0.0 if over else discount, next_x)

    def _more(self, row: int, succeeded: bool) -> list[Transition]:
        """Of the whole episode: relabelled, and from within its chunks."""
        made: list[Transition] = []
        if self.hindsight is not None:
            starts = [(k * self.horizon, chunk) for k, chunk in enumerate(self._planned[row])]
            made += self.hindsight.transitions((int(self.numbers[row]),), np.stack(self._trail[row]), starts)
        if self.between is not None:
            made += self.between(np.stack(self._trail[row]), np.stack(self._sent[row]), succeeded)
        return made

    def _begin(self, row: int, succeeded: bool) -> None:
        """The next episode."""
        self.outcomes = [*self.outcomes, succeeded][-NEWEST:]
        if succeeded:
            self.times = [*self.times, float(self._length[row] / self.task.rate_hz)][-NEWEST_TIMES:]
        self.finished += 1
        self.numbers[row], self.following = self.following, self.following + 1
        self._left[row] = self._length[row] = 0
        self._pending[row], self._sent[row], self._planned[row] = [], [], []
        self.env.reset([row], [int(self.numbers[row])])
        self.seen[row] = self._look()[row]
        self._trail[row] = [self.seen[row].copy()]

    def state_dict(self) -> dict[str, Any]:
        """Numbers of the open episodes and what was sent in them: physics are found again by doing it again."""
        pending = [[vars(chunk).copy() for chunk in row] for row in self._pending]
        counts = {"following": self.following, "finished": self.finished}
        newest = {"outcomes": [*self.outcomes], "times": [*self.times]}
        sent = [np.stack(row) if row else np.zeros((0, self.actions), np.float32) for row in self._sent]
        arrays = {"numbers": self.numbers.copy(), "plan": self._plan.copy(), "left": self._left.copy()}
        judged = {"judged": self.judged.state_dict()} if self.judged else {}
        planned = [[*row] for row in self._planned]
        return {**counts, **newest, **arrays, "pending": pending, "sent": sent, "planned": planned, **judged}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.following, self.finished = int(state["following"]), int(state["finished"])
        self.outcomes, self.times = list(state["outcomes"]), list(state.get("times", []))  # older states have none
        self.numbers, self._plan = state["numbers"].copy(), state["plan"].copy()
        self._left = state["left"].copy()
        self._pending = [[_Chunk(**chunk) for chunk in row] for row in state["pending"]]
        self._sent, self._planned = ([list(row) for row in state[name]] for name in ("sent", "planned"))
        self._length = np.array([len(row) for row in self._sent])
        for begun, moved in replay(self.env, self.numbers.tolist(), self._sent, partial(physical, self.task.commands)):
            self._retrace(begun, moved)
        if self.judged:
            self.judged.load_state_dict(state["judged"])
        self.seen = self._look()

    def _retrace(self, begun: list[int], moved: list[int]) -> None:
        """What these rows see, whose episodes have begun or gone on."""
        if self._looking and (begun or moved):
            seen = self._look()
            for row in begun:
                self._trail[row] = [seen[row]]
            for row in moved:
                self._trail[row].append(seen[row])

    def close(self) -> None:
        """Free the scenes."""
        self.env.close()
