"""A policy whose plans are made in another process, while the control loop carries out the last one.

Simple real-time chunking: a plan that was asked for at step t counts from t on; when it comes, the steps that have
passed are left out of it, and it takes over, at once or blended over a few steps. The planner is told what is executed
meanwhile, so that a file that has learned to go on from that does (`policies.models.realtime`; Black et al. 2025, there
by inpainting). Others know nothing of it, and may jump.
"""

from __future__ import annotations

import math
import secrets
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.remote.client import Client, ServerError
from deploy.trust.interpreter import python
from deploy.trust.text import printable
from sim import spec

Array = NDArray[np.float32]
PROCESS = "process"  # in the place of an address: a planner of its own
TRIES = 3  # plans until one comes before it is over
RECENT = 10  # plans whose time is remembered
STARTING = 60.0  # s in which a planner of its own must listen


class LateError(RuntimeError):
    """The plan has run out, and the next one is not there."""


class Planned(PolicyFile):
    """The whole policy, for the control loop, which never waits for a plan."""

    def __init__(self, file: PolicyFile, client: Client, blend: int = 0, held: ExitStack | None = None) -> None:
        """PolicyFileError or ServerError when that server does not plan for this very file.

        `held`: what is closed with it.
        """
        self.__dict__ |= file.__dict__
        self.file, self.client, self.blend, self._held = file, client, blend, held or ExitStack()
        if not client.metadata.get("plans"):
            raise PolicyFileError(
                f"{file.path} is a whole policy: it goes without server={client.address}, which makes no plans "
                "(deploy.serve answers=plans does)"
            )
        if client.metadata.get("sha256") != file.sha256:
            raise ServerError(f"the policy server at {client.address} plans for another file than {file.path}")
        self.horizon, self.replan = (int(file.metadata["plan"][name]) for name in ("horizon", "replan"))
        self.k = spec.size(self.outputs)
        self.took: list[float] = []  # s, of all plans
        self.steps_late: list[int] = []  # control steps that passed while each was made
        self._flight, self._one = 0, threading.Lock()
        self._questions: SimpleQueue[tuple[int, int, dict[str, Any]] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, int, Array | str]] = SimpleQueue()
        threading.Thread(target=self._ask, name="asking for plans", daemon=True).start()
        self.reset()

    def reset(self, n: int = 1) -> None:
        """Begin a flight of `n` robots; before its first step, `prepare`."""
        self.n, self._flight = n, self._flight + 1
        self._now, self._began, self._switched = 0, 0, 0  # steps: this one, and that the plan begins and took over at
        self._plan: Array | None = None
        self._old: Array | None = None  # the plan before from `_switched` on, while it is blended out
        self._waits, self._trouble = False, ""
        self._lately: deque[int] = deque([0], RECENT)

    def restart(self, robots: NDArray[np.bool_]) -> None:
        """Nothing: a plan is of what was seen, with no memory here; the next one is of what is seen by then."""

    def prepare(self, signals: Mapping[str, Any]) -> None:
        """The first plan, which is waited for: nothing moves yet. ServerError, also when plans come too late."""
        self.reset(self.n)
        request, lasts = self._request(signals, begins=True), self.horizon / self.rate_hz
        for _ in range(TRIES):  # the first may take longer
            began = time.perf_counter()
            self._plan = self._made(request)
            self.took.append(time.perf_counter() - began)
            if self.took[-1] < lasts:
                self._lately.append(math.ceil(self.took[-1] * self.rate_hz))
                return
        what = f"takes {1e3 * self.took[-1]:.0f} ms, and lasts {1e3 * lasts:.0f} ms"
        raise ServerError(f"a plan by the policy server at {self.client.address} {what}: the robot would wait")

    def _request(self, signals: Mapping[str, Any], begins: bool) -> dict[str, Any]:
        if missing := [s.name for s in self.inputs if s.name not in signals]:
            raise PolicyFileError(f"{self.path}: signal {missing[0]!r} is missing")
        request = {s.name: np.asarray(signals[s.name], s.dtype) for s in self.inputs}
        if not begins and self._plan is not None:
            left = self._plan[:, min(self._now - self._began, self.horizon - 1) :]
            last = np.repeat(left[:, -1:], self.horizon - left.shape[1], axis=1)
            request["committed"] = np.concatenate([left, last], axis=1)
        return request

    def _made(self, request: dict[str, Any]) -> Array:
        """The server's plan. One is asked for at a time, also where the flight before has left a question open."""
        with self._one:
            return self.client.plan(request, (len(request[self.inputs[0].name]), *self.shape))

    def _ask(self) -> None:
        """The thread that waits for the server."""
        while (question := self._questions.get()) is not None:
            flight, step, request = question
            began = time.perf_counter()
            answer: Array | str
            try:
                answer = self._made(request)
                self.took.append(time.perf_counter() - began)
            except Exception as error:  # whatever a stranger's answer leads to, the loop is told
                answer = str(error) or type(error).__name__
            self._answers.put((flight, step, answer))

    @property
    def shape(self) -> tuple[int, int]:
        """Control steps and commands of a plan."""
        return self.horizon, self.k

    def step(self, signals: Mapping[str, Any]) -> dict[str, Any]:
        """Commands (n, *shape) by name for signals (n, *shape) by name. LateError when there is no plan for now."""
        self._take()
        place = self._now - self._began
        if not (self._waits or self._trouble) and place >= min(self.replan, self.horizon - 1 - max(self._lately)):
            self._waits = True
            self._questions.put((self._flight, self._now, self._request(signals, begins=False)))
        self._now += 1
        if self._plan is None or place >= self.horizon:
            why = self._trouble or f"no plan from {self.client.address} yet"
            raise LateError(f"the plan ended {place - self.horizon + 1} steps ago, after {self.horizon}: {why}")
        commands = spec.unpack(self.outputs, self._blended(place))
        return {s.name: commands[s.name].clip(s.low, s.high) for s in self.outputs}

    def _take(self) -> None:
        """The answer, if it has come."""
        try:
            flight, asked, answer = self._answers.get_nowait()
        except Empty:
            return
        if flight != self._flight:
            return
        self._waits = False
        if isinstance(answer, str):
            self._trouble = answer  # what is left of the plan is carried out
            return
        late = self._now - asked
        self.steps_late.append(late)
        self._lately.append(late)
        if self._plan is not None and (left := self._plan[:, self._now - self._began :]).shape[1]:
            self._old, self._switched = left, self._now
        self._plan, self._began = answer, asked

    def _blended(self, place: int) -> Array:
        """The command (n, k) of the plan's step, with less and less of the plan's before."""
        assert self._plan is not None
        new, since = self._plan[:, place], self._now - 1 - self._switched
        if self._old is None or since >= min(self.blend, self._old.shape[1]):
            return new
        share = np.float32((since + 1) / (self.blend + 1))
        return share * new + (np.float32(1.0) - share) * self._old[:, since]

    def states(self) -> dict[str, Any]:
        return self.file.states()

    def verify(self) -> float:
        return self.file.verify()

    def report(self) -> list[str]:
        """What is said of the plans after a flight."""
        if not self.took:
            return []
        middle, most = 1e3 * np.percentile(self.took, (50, 100))
        late = f", {max(self.steps_late)} control steps at most" if self.steps_late else ""
        return [f"{len(self.took)} plans by {self.client.address}, {middle:.0f} ms each, {most:.0f} at most{late}"]

    def close(self) -> None:
        """Hang up; a planner of its own ends."""
        self._flight += 1
        self._questions.put(None)
        self.client.close()
        self._held.close()


def planned(file: PolicyFile, server: str, blend: int = 0) -> Planned:
    """The policy, whose plans are made by the server at HOST:PORT, or by a process of its own; ServerError."""
    if "plan" not in file.metadata:
        raise PolicyFileError(f"{file.path} plans nothing ahead and is a whole policy: it goes without server={server}")
    if server != PROCESS:
        return Planned(file, Client(server), blend)
    held = ExitStack()
    try:
        address, token = _started(file.path, held)
        return Planned(file, Client(address, token=token), blend, held)
    except BaseException:
        held.close()
        raise


def _started(path: str, held: ExitStack) -> tuple[str, str]:
    """The address and token of a server in a process of its own, which ends with its client."""
    token = secrets.token_urlsafe(24)
    with tempfile.NamedTemporaryFile("w") as file:  # for this user's eyes only
        file.write(token)
        file.flush()
        words = (f"policy={path}", "answers=plans", "port=0", f"token={file.name}", "once=true")
        process = subprocess.Popen(
            [*python(), "-u", "-m", "deploy.serve", *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C lands the robot first
        )
        held.callback(_ended, process)
        assert process.stdout is not None
        timer = threading.Timer(STARTING, process.kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
    if " answers at " not in line:
        raise ServerError(f"the planner of {printable(path)} has not started; what it said is above")
    return line.split()[-1], token


def _ended(process: subprocess.Popen[str]) -> None:
    """It ends by itself once its client has left; else it is told to."""
    for insist in (process.terminate, process.kill):
        try:
            process.wait(2.0)
            break
        except subprocess.TimeoutExpired:
            insist()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
