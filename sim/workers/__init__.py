"""Worlds in other processes: the rows of one environment, stepped by as many workers as there are cores.

For worlds that step one row after the other, in Python: third-party benchmarks. Commands, signals, rewards and flags
are in shared memory; a byte through a pipe says that it is somebody's turn. What comes of it does not depend on the
number of workers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.env import Step, WorldError
from sim.tasks import HasSeparateWorlds, agents_of
from sim.workers.memory import Array, Memory, nameless
from sim.workers.worker import DONE, FAILED, LENGTH, PICTURE, RENDER, RESET, STEP, Share

# What a process of a module begins with. The module search path first: a task may be of one that only we would find.
START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {} import main; main()"
FALLS = 3  # of a worker, each within `STEADY` control steps of the one before: then the run ends
STEADY = 1000
PATIENCE = 5.0  # s that a worker may take to end

log = logging.getLogger(__name__)


class Workers:
    """`num` rows of a task, stepped by `count` processes; see `sim.env.Env`.

    A worker that dies is replaced, with a warning: its rows are lost, which the next step says (`terminated`, without
    reward), until they begin new episodes. WorldError for a world that raises an error, and for a worker that dies
    again and again.
    """

    def __init__(self, task: HasSeparateWorlds, num: int, seed: int, count: int) -> None:
        """ValueError for a task that cannot be told to another process."""
        self.task, self.num, self.seed, self.replaced = task, num, seed, 0
        self._descriptor = nameless()
        self._memory = Memory(task, num, self._descriptor)
        self._memory.episode[:] = -1  # none has begun
        self._lost = np.zeros(num, bool)  # rows of workers that died
        worlds = num // (agents := agents_of(task))
        edges = [agents * (k * worlds // count) for k in range(count + 1)]
        self._workers = [_Worker(task, num, *rows, seed) for rows in itertools.pairwise(edges)]
        self._close = weakref.finalize(self, _dismiss, self._workers, self._descriptor)
        for worker in self._workers:
            worker.start(self._descriptor)
        self._answers(self._workers)

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        asked, memory = np.asarray(rows, np.int64), self._memory
        memory.episode[asked] = episodes
        memory.begins[:] = False
        memory.begins[asked] = True
        self._ask(RESET, [worker for worker in self._workers if memory.begins[worker.rows].any()])
        self._lost[asked] = False

    def observe(self) -> dict[str, Array]:
        return {name: value.copy() for name, value in self._memory.signals.items()}

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        memory = self._memory
        for name, place in memory.commands.items():
            place[...] = command[name]
        self._ask(STEP, self._workers)
        for worker in self._workers:
            worker.steps += 1
        lost = self._lost
        return Step(np.where(lost, np.float32(0.0), memory.reward), memory.success & ~lost, memory.terminated | lost)

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        worker = next(worker for worker in self._workers if row < worker.last)
        self._ask(RENDER + PICTURE.pack(row - worker.first, height, width), [worker])
        picture = worker.read(height * width * 3)
        return np.frombuffer(picture, np.uint8).reshape(height, width, 3).copy()

    def worker_metrics(self) -> dict[str, float]:
        return {"workers_replaced": float(self.replaced)}

    def close(self) -> None:
        """End them."""
        self._close()

    def _ask(self, request: bytes, workers: Sequence[_Worker]) -> None:
        """Ask all, then wait for all; who died meanwhile is replaced."""
        for worker in workers:
            worker.write(request)
        self._answers(workers, request[:1])

    def _answers(self, workers: Sequence[_Worker], request: bytes = b"") -> None:
        try:
            for worker in [worker for worker in workers if not worker.answered()]:
                self._replace(worker)
                if request == RENDER:
                    raise WorldError(self.task.name, worker.first, "its worker died over a picture")
        except BaseException:  # what is still answered would be taken for the answer to the next request
            self.close()
            raise

    def _replace(self, worker: _Worker) -> None:
        """Another process for its rows, which begin their episodes again: they are lost, but may be stepped."""
        memory, mine = self._memory, worker.rows
        while True:
            self.replaced += 1
            worker.bury(self.replaced)
            self._lost[mine] = True
            worker.start(self._descriptor)
            if not worker.answered():
                continue
            memory.begins[mine] = memory.episode[mine] >= 0
            worker.write(RESET)
            if worker.answered():
                return


class _Worker:
    """One process, and the rows `first` to `last` - 1 that it steps."""

    def __init__(self, task: HasSeparateWorlds, num: int, first: int, last: int, seed: int) -> None:
        self.task, self.first, self.last, self.rows = task, first, last, slice(first, last)
        self.steps = self.falls = 0  # control steps since it began; how often it died soon after
        try:
            told = pickle.dumps(Share(task, num, first, last, seed))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"{task.name} cannot be told to another process ({error}): set workers=1") from error
        self._told = LENGTH.pack(len(told)) + told
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._answers = -1

    def start(self, memory: int) -> None:
        """Begin the process; it answers as soon as its worlds are open."""
        theirs, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        passed = (theirs, answers, memory)
        self._process = subprocess.Popen(
            [sys.executable, "-c", START.format("sim.workers.worker"), json.dumps(sys.path), *map(str, passed)],
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # each has one core
            process_group=0,  # Ctrl-C is for us, who end it
        )
        os.close(theirs)
        os.close(answers)
        self.write(self._told)

    def write(self, request: bytes) -> None:
        """Ask it, if it is there: whether it is, its answer says."""
        with contextlib.suppress(BrokenPipeError):
            while request:
                request = request[os.write(self._requests, request) :]

    def answered(self) -> bool:
        """Wait until it has done what it was asked to; False if it died. WorldError if one of its worlds failed."""
        answer = os.read(self._answers, 1)
        if answer == FAILED:
            row, reason = json.loads(self.read())
            raise WorldError(self.task.name, self.first + row, reason)
        return answer == DONE

    def read(self, count: int = sys.maxsize) -> bytes:
        """So many bytes more, or all until it ends."""
        read = b""
        while len(read) < count and (more := os.read(self._answers, min(count - len(read), 1 << 16))):
            read += more
        return read

    def bury(self, replaced: int) -> None:
        """What ended it is told; WorldError when that happens again and again."""
        assert self._process is not None
        status = self._process.wait()
        why = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"left with status {status}"
        rows = f"row {self.first}" if self.last == self.first + 1 else f"rows {self.first} to {self.last - 1}"
        self.falls = self.falls + 1 if self.steps < STEADY else 1
        if self.falls >= FALLS:
            again = f"{self.falls} times, each within {STEADY} control steps"
            raise WorldError(self.task.name, self.first, f"the worker of {rows} {why} {again}")
        log.warning("warning: %s: the worker of %s %s and is replaced (%d so far)", self.task.name, rows, why, replaced)
        self.steps = 0
        self.end()

    def end(self) -> None:
        """Close its pipes: it ends by itself."""
        for descriptor in {self._requests, self._answers} - {-1}:
            os.close(descriptor)
        self._requests = self._answers = -1

    def gone(self) -> None:
        """Wait until it is, and see to it."""
        if self._process is None:
            return
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _dismiss(workers: list[_Worker], memory: int) -> None:
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.gone()
    os.close(memory)
