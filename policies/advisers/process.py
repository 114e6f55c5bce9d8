"""An adviser's process, as who learns sees it: a queue that takes what it is given, and answers whenever they come.

Nothing here waits. A process that dies, or takes too long, is begun anew, later and later as it goes on so. The
adviser may run what a stranger made: its answers are numbers in a frame, looked at before anything is done with them.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from dataclasses import fields
from typing import Any

import numpy as np

from policies.advisers import AdviserConfig, Array
from policies.advisers.worker import ANSWER, FAILED, LENGTH, READY, SHAPE, Question, framed
from sim.spec import size
from sim.tasks import Task
from sim.workers import START

WORK = START.format("policies.advisers.worker")
FIRST, LAST = 0.5, 60.0  # s before a process that ended is begun anew: at first, and at most
LOADING = 600.0  # s that an adviser may take to get ready
FALLS = 3  # processes in a row that ended without an answer: then nobody waits for one any more
ENDING = 0.1  # s in which it shows what ended a process
SLACK = 1e-3  # by which an action may be beyond [-1, 1]: rounding
COUNTS = ("asked", "answered", "late", "refused", "dropped", "lost")

log = logging.getLogger(__name__)


class Heard:
    """An accepted answer."""

    def __init__(self, serial: Array, values: Array) -> None:
        """Of the transitions (n,), what was said (n, k + 2)."""
        self.serial, self.action, self.weight, self.score = serial, values[:, :-2], values[:, -2], values[:, -1]


class AdviserProcess:
    """Asked by `submit`, heard by `poll`.

    `counts`, of transitions: asked = answered + late + refused + dropped + lost + those that `waiting` says. Who hears
    counts what is answered, and what comes too late. ValueError, at once, where the adviser cannot advise, or the task
    cannot be told to another process.
    """

    def __init__(self, task: Task, config: AdviserConfig) -> None:
        self.config, self.columns = config, size(task.commands) + 2
        try:
            self._told = framed(pickle.dumps((task, _plain(config))))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"{task.name} cannot be told to another process ({error}), so nobody advises") from error
        self.counts = dict.fromkeys(COUNTS, 0)
        self.restarts = 0
        self._queue: deque[Question] = deque()
        self._asked: Question | None = None
        self._falls, self._again, self._warned = 0, 0.0, ""
        self._held: dict[str, Any] = {}  # what of the system: process, line
        self._out, self._in = b"", bytearray()
        self._ready, self._until = False, 0.0
        weakref.finalize(self, _dismiss, self._held)

    @property
    def process(self) -> int | None:
        """The number of its process now, if it has one."""
        return self._held["process"].pid if self._held else None

    @property
    def waiting(self) -> int:
        """Transitions that are in the queue, or being thought about."""
        return sum(len(q.serial) for q in self._queue) + (len(self._asked.serial) if self._asked else 0)

    def submit(self, question: Question) -> None:
        """Ask, some time; where too much waits already, the oldest questions are dropped."""
        self.counts["asked"] += len(question.serial)
        self._queue.append(question)
        queued = sum(len(q.serial) for q in self._queue)
        while queued > self.config.queue:
            dropped = len(self._queue.popleft().serial)
            self.counts["dropped"] += dropped
            queued -= dropped

    def poll(self) -> list[Heard]:
        """What has been answered since, and see to the process. Takes no time."""
        now = time.monotonic()
        if not self._held:
            if now < self._again:
                return []
            self._start(now)
        heard: list[Heard] = []
        try:
            self._receive(heard)
            if now > self._until and (self._asked or not self._ready):
                raise _FallError(f"took more than {self.config.timeout if self._ready else LOADING:g} s")
            if self._ready and self._asked is None and self._queue:
                self._ask(now)
            self._send()
        except _FallError as error:
            self._fall(str(error))
        return heard

    def wait(self) -> list[Heard]:
        """The same, when nothing waits any more; after `FALLS` processes that ended without an answer, all is lost."""
        heard = self.poll()
        while self.waiting:
            if self._falls >= FALLS:
                self._lose()
                break
            self._rest()
            heard += self.poll()
        return heard

    def close(self) -> None:
        """End the process; what waits is lost. Whoever asks again begins another."""
        self._lose()
        self._end()

    def _rest(self) -> None:
        """Sleep until there is something to see to."""
        if not self._held:
            time.sleep(max(0.0, self._again - time.monotonic()))
            return
        line = self._held["line"]
        select.select([line], [line] if self._out else [], [], max(0.01, self._until - time.monotonic()))

    def _start(self, now: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", WORK, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # it has one core, if there is one to spare
                process_group=0,  # Ctrl-C is for us, who end it
            )
        ours.setblocking(False)
        self._held.update(process=process, line=ours)
        self._out, self._in = self._told, bytearray()
        self._ready, self._until = False, now + LOADING

    def _ask(self, now: float) -> None:
        """The next batch: the oldest questions that fit."""
        batch = [self._queue.popleft()]
        count = len(batch[0].serial)
        while self._queue and (count := count + len(self._queue[0].serial)) <= self.config.batch:
            batch.append(self._queue.popleft())
        serials, signals, done = zip(*batch, strict=True)
        joined = {name: np.concatenate([one[name] for one in signals]) for name in signals[0]}
        self._asked = Question(np.concatenate(serials), joined, np.concatenate(done))
        self._out = framed(pickle.dumps(self._asked))
        self._until = now + self.config.timeout

    def _send(self) -> None:
        while self._out:
            try:
                self._out = self._out[self._held["line"].send(self._out) :]
            except BlockingIOError:
                return
            except OSError as error:
                raise _FallError(self._status()) from error

    def _receive(self, heard: list[Heard]) -> None:
        """Whatever has come."""
        while True:
            try:
                more = self._held["line"].recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                raise _FallError(self._status()) from error
            if not more:
                raise _FallError(self._status())
            self._in += more
            longest = 1 + max(SHAPE.size + 4 * self.columns * self.config.queue, 1 << 16)
            while len(self._in) >= LENGTH.size:
                length = LENGTH.unpack_from(self._in)[0]
                if not 1 <= length <= longest:
                    raise _FallError(f"said something of {length} bytes")
                if len(self._in) < (end := LENGTH.size + length):
                    break
                message = bytes(self._in[LENGTH.size : end])
                del self._in[:end]
                self._understand(message, heard)

    def _understand(self, message: bytes, heard: list[Heard]) -> None:
        kind, told = message[:1], message[1:]
        if kind == READY and not self._ready:
            self._ready = True
        elif kind == FAILED and not self._ready:
            raise _FallError(f"is not ready: {told.decode(errors='replace')}")
        elif kind in (ANSWER, FAILED) and self._asked is not None:
            serial, self._asked = self._asked.serial, None
            reason, values = told.decode(errors="replace"), np.zeros((0, 0), np.float32)
            if kind == ANSWER:
                reason, values = understood(told, len(serial), self.columns)
            fine = acceptable(values) if not reason else np.zeros(len(serial), bool)
            self.counts["refused"] += int((~fine).sum())
            if fine.any():
                self._falls = 0
                heard.append(Heard(serial[fine], values[fine]))
            if not fine.all():
                self._warn(f"was refused: {reason or 'it is not finite, or beyond the limits of the commands'}")
        else:
            raise _FallError("said what nobody asked")

    def _status(self) -> str:
        """What ended it."""
        try:
            status = self._held["process"].wait(ENDING)
        except subprocess.TimeoutExpired:
            return "does not speak any more"
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"left with status {status}"

    def _fall(self, why: str) -> None:
        """Its process is over; another begins later."""
        self._lose_asked()
        self._end()
        self.restarts += 1
        self._again = time.monotonic() + min(LAST, FIRST * 2.0**self._falls)
        self._falls = min(self._falls + 1, 16)
        self._warn(why)

    def _lose_asked(self) -> None:
        if self._asked is not None:
            self.counts["lost"] += len(self._asked.serial)
            self._asked = None

    def _lose(self) -> None:
        """All that waits."""
        self.counts["lost"] += self.waiting
        self._asked = None
        self._queue.clear()

    def _end(self) -> None:
        _dismiss(self._held)
        self._ready, self._out = False, b""

    def _warn(self, why: str) -> None:
        """Once, as long as it goes on so."""
        if why != self._warned:
            log.warning("warning: adviser=%s %s; training goes on", self.config.adviser, why)
        self._warned = why


class _FallError(Exception):
    """The process is of no use any more."""


def understood(told: bytes, rows: int, columns: int) -> tuple[str, Array]:
    """What is wrong with the frame of an answer, or nothing, and its numbers (rows, columns)."""
    nothing = np.zeros((0, 0), np.float32)
    if len(told) < SHAPE.size:
        return "it is too short", nothing
    shape = SHAPE.unpack_from(told)
    if shape != (rows, columns):
        return f"it is of shape {shape}, not {(rows, columns)}", nothing
    if len(told) != SHAPE.size + 4 * rows * columns:
        return "it is not as long as it says", nothing
    return "", np.frombuffer(told, np.float32, offset=SHAPE.size).reshape(shape).copy()


def acceptable(values: Array) -> Array:
    """Which rows (n,) of an answer (n, k + 2) are finite, with actions in [-1, 1] and weights in 0..1.

    Actions are then cut off there, in place.
    """
    actions, weight = values[:, :-2], values[:, -2]
    finite, within = np.isfinite(values).all(axis=1), (np.abs(actions) <= 1.0 + SLACK).all(axis=1)
    fine: Array = np.asarray(finite & within & (weight >= 0.0) & (weight <= 1.0))
    np.clip(actions, -1.0, 1.0, out=actions)
    return fine


def _plain(config: AdviserConfig) -> AdviserConfig:
    """What an adviser is told, without what only who learns asks of it: that would have its process import torch."""
    return AdviserConfig(**{one.name: getattr(config, one.name) for one in fields(AdviserConfig)})


def _dismiss(held: dict[str, Any]) -> None:
    """End what is held, if anything is. The process has nothing to put in order."""
    if not held:
        return
    held.pop("line").close()
    process: subprocess.Popen[bytes] = held.pop("process")
    process.kill()
    process.wait()
