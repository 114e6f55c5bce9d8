"""Worlds on other machines: the rows of one environment, stepped by workers of a cluster; as `sim.workers`, and exact.

A worker that is lost is replaced, and its rows do again what they did since their episodes began: an episode is decided
by seed, number and commands, so nothing is lost, nothing comes twice, and nobody notices but by the clock.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sim import spec
from sim.cluster import LostError
from sim.env import Env, Step, WorldError, replay
from sim.tasks import HasSeparateWorlds, agents_of
from sim.workers import FALLS, STEADY
from sim.workers.worker import LONGEST, Share

Array = NDArray[Any]

log = logging.getLogger(__name__)


class Far(Protocol):
    """A `Rows` in another process, which may be on another machine."""

    def ask(self, what: str, *told: Any) -> None:
        """Have it call that method; returns at once."""

    def answer(self) -> Any:
        """What it returned. LostError when it is gone; ClusterError when it could not even begin."""

    def end(self) -> None:
        """It is not needed any more."""


class Rows:
    """What a worker holds: some of the rows. Bytes go to and fro: ten arrays would cost as much as a world's step."""

    def __init__(self, told: bytes, path: Sequence[str] = ()) -> None:
        """`told`: a pickled `Share`; `path`: where whoever asks finds modules, such as the task's."""
        sys.path += [place for place in path if place not in sys.path]
        self._share: Share = pickle.loads(told)
        self._env: Env | None = None

    def do(self, what: str, *told: Any) -> tuple[tuple[int, str] | None, Any]:
        """(None, what the method returns), or ((row, why), None) where a world failed."""
        try:
            return None, getattr(self, what)(*told)
        except WorldError as error:
            return (error.row, error.reason[:LONGEST]), None
        except Exception as error:
            return (0, f"{type(error).__name__}: {error}"[:LONGEST]), None

    @property
    def env(self) -> Env:
        """Open worlds."""
        if self._env is None:
            share = self._share
            self._env = share.task.open(share.last - share.first, share.seed)
        return self._env

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> bytes:
        """Begin these episodes; the signals of all rows, one signal after the other."""
        self.env.reset(rows, episodes)
        return self._seen()

    def step(self, actions: bytes) -> bytes:
        """Under actions (rows, k) float32: the signals, rewards, successes, and whether it is over."""
        group = self._share.task.commands
        step = self.env.step(
            spec.unpack(group, np.frombuffer(actions, np.float32).reshape(-1, spec.size(group)).copy())
        )
        told = (step.reward.astype(np.float32), step.success.astype(bool), step.terminated.astype(bool))
        return self._seen() + b"".join(value.tobytes() for value in told)

    def redo(self, episodes: Sequence[int], sent: Sequence[Sequence[Array]]) -> None:
        """Bring every row to where it was: its episode, and the actions (k,) sent in it."""
        group = self._share.task.commands
        for _ in replay(self.env, episodes, sent, lambda action: spec.unpack(group, action)):
            pass

    def _seen(self) -> bytes:
        seen, task = self.env.observe(), self._share.task
        return b"".join(seen[s.name].astype(s.dtype).tobytes() for s in (*task.policy, *task.privileged))

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """A picture."""
        return self.env.render(row, height, width)


class ClusterWorkers:
    """`num` rows of a task, stepped by `count` workers that `begin` begins; see `sim.env.Env`.

    WorldError for a world that raises an error, and for a worker that is lost again and again.
    """

    def __init__(self, task: HasSeparateWorlds, num: int, seed: int, count: int, begin: Callable[[bytes], Far]) -> None:
        """ValueError for a task that cannot be told to another process."""
        self.task, self.num, self.seed, self.replaced, self._begin = task, num, seed, 0, begin
        agents = agents_of(task)
        worlds = num // agents
        edges = [agents * (k * worlds // count) for k in range(count + 1)]
        self._rows = [slice(*pair) for pair in itertools.pairwise(edges)]
        try:
            self._told = [pickle.dumps(Share(task, num, rows.start, rows.stop, seed)) for rows in self._rows]
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"{task.name} cannot be told to another process ({error}): set workers=1") from error
        self._signals = {s.name: np.zeros((num, *s.shape), s.dtype) for s in (*task.policy, *task.privileged)}
        self._episode = np.full(num, -1)  # none has begun
        self._sent: list[list[Array]] = [[] for _ in range(num)]  # actions (k,) since the episode's beginning
        self._falls, self._steps = [0] * count, [0] * count
        self._workers = [begin(told) for told in self._told]
        self._close = weakref.finalize(self, _dismiss, self._workers)

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        asked = dict(zip(map(int, rows), map(int, episodes), strict=True))
        requests: dict[int, tuple[Any, ...]] = {}
        for k, mine in enumerate(self._rows):
            if own := [row for row in asked if mine.start <= row < mine.stop]:
                requests[k] = ("reset", [row - mine.start for row in own], [asked[row] for row in own])
        answers = self._ask(requests)
        for row, episode in asked.items():
            self._episode[row], self._sent[row] = episode, []
        for k, seen in answers.items():
            self._see(k, seen)

    def observe(self) -> dict[str, Array]:
        return {name: value.copy() for name, value in self._signals.items()}

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        actions = spec.pack(self.task.commands, command)
        answers = self._ask({k: ("step", actions[rows].tobytes()) for k, rows in enumerate(self._rows)})
        for row, action in enumerate(actions):
            self._sent[row].append(action)
        step = Step(np.zeros(self.num, np.float32), np.zeros(self.num, bool), np.zeros(self.num, bool))
        for k, answer in answers.items():
            places = {"reward": step.reward, "success": step.success, "terminated": step.terminated}
            self._read(k, answer, places, self._see(k, answer))
            self._steps[k] += 1
        return step

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        k = next(k for k, rows in enumerate(self._rows) if row < rows.stop)
        picture: NDArray[np.uint8] = self._ask({k: ("render", row - self._rows[k].start, height, width)})[k]
        return picture.copy()

    def worker_metrics(self) -> dict[str, float]:
        return {"workers_replaced": float(self.replaced)}

    def close(self) -> None:
        """End them."""
        self._close()

    def _see(self, k: int, answer: bytes) -> int:
        """Keep the signals; where they end."""
        return self._read(k, answer, self._signals, 0)

    def _read(self, k: int, answer: bytes, places: Mapping[str, Array], begin: int) -> int:
        """Write the worker's rows of these arrays from what it says, from that byte on; where they end."""
        for place in places.values():
            mine = place[self._rows[k]]
            mine[...] = np.frombuffer(answer, mine.dtype, mine.size, begin).reshape(mine.shape)
            begin += mine.nbytes
        return begin

    def _ask(self, requests: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Ask all, then wait for all; who is lost meanwhile is replaced, and asked again."""
        for k, request in requests.items():
            self._workers[k].ask(*request)
        try:
            return {k: self._answer(k, request) for k, request in requests.items()}
        except BaseException:  # what is still answered would be taken for the answer to the next request
            self.close()
            raise

    def _answer(self, k: int, request: tuple[Any, ...]) -> Any:
        while True:
            try:
                failed, answer = self._workers[k].answer()
            except LostError as lost:
                self._replace(k, str(lost))
                self._workers[k].ask(*request)
                continue
            if failed:
                raise WorldError(self.task.name, self._rows[k].start + failed[0], failed[1])
            return answer

    def _replace(self, k: int, why: str) -> None:
        """Another one for its rows, which do again what they did; WorldError when that happens again and again."""
        rows, first = self._rows[k], self._rows[k].start
        while True:
            self.replaced += 1
            self._falls[k] = self._falls[k] + 1 if self._steps[k] < STEADY else 1
            self._steps[k] = 0
            named = f"row {first}" if rows.stop == first + 1 else f"rows {first} to {rows.stop - 1}"
            if self._falls[k] >= FALLS:
                again = f"{self._falls[k]} times, each within {STEADY} control steps"
                raise WorldError(self.task.name, first, f"the worker of {named} was lost {again}: {why}")
            log.warning(
                "warning: %s: the worker of %s was lost (%s); another does again what it did (%d so far)",
                *(self.task.name, named, why, self.replaced),
            )
            self._workers[k].end()
            self._workers[k] = self._begin(self._told[k])
            if (self._episode[rows] < 0).all():
                return
            self._workers[k].ask("redo", np.maximum(self._episode[rows], 0).tolist(), self._sent[rows])
            try:
                failed, _ = self._workers[k].answer()
            except LostError as lost:
                why = str(lost)
                continue
            if failed:
                raise WorldError(self.task.name, first + failed[0], failed[1])
            return


def _dismiss(workers: list[Far]) -> None:
    for worker in workers:
        worker.end()
    workers.clear()
