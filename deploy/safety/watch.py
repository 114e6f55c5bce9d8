"""A step of the policy has a deadline: it runs in a thread that is left behind when it does not come back.

Nothing in Python or in onnxruntime ends a computation from outside; and a signal's handler waits for it, too. So the
control loop runs in a thread of its own, and the one that started it, where signals arrive, only looks from time to
time how long the present step takes. That costs the loop nothing but two notes of the time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

CHECK = 0.05  # s between two looks for Ctrl-C


class LeftBehindError(RuntimeError):
    """The step came back after somebody else had taken over: it must not touch the robot any more."""


class Watch:
    """How long the present step takes. `begin` and `end` are the control thread's, `overdue` is the watching one's."""

    def __init__(self, patience: float, clock: Callable[[], float]) -> None:
        """`patience`: s that a step may take, by that clock."""
        self.patience, self.clock, self.lost = patience, clock, False
        self._lock = threading.Lock()
        self._since: float | None = None
        self._turn, self._closed = threading.Lock(), False

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Inside, whoever wants to `close` waits. False: it is closed, and nothing may be written any more."""
        with self._turn:
            yield not self._closed

    def close(self, seconds: float) -> None:
        """From now on nothing is written: once the present write is over, but after so many seconds at the latest."""
        self._closed = True  # before anything can interrupt this
        if self._turn.acquire(timeout=seconds):
            self._turn.release()

    def begin(self) -> None:
        """A step begins."""
        self._since = self.clock()

    def end(self) -> None:
        """It came back. Raises LeftBehindError when that was too late."""
        with self._lock:
            if self.lost:
                raise LeftBehindError
            self._since = None

    def overdue(self) -> bool:
        """Whether the step has taken too long; whoever asked has to fly on."""
        with self._lock:
            self.lost = self.lost or (self._since is not None and self.clock() - self._since > self.patience)
            return self.lost


class Worker:
    """A call in a thread of its own, at the priority of the caller's. It does not keep the process alive.

    Ctrl-C may come at any point of `finished`, which so waits for no condition: that would make another error of it.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call, self._over = call, False
        self._once, self._running = threading.Lock(), threading.Lock()
        self._running.acquire()  # until it is over
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Make the call; once, however often this is asked for, also where Ctrl-C came in the midst of it."""
        if not self._once.locked():
            self._scheduling = os.sched_getscheduler(0), os.sched_getparam(0)
            threading.Thread(target=self._run, name="control loop", daemon=True).start()

    def _run(self) -> None:
        if not self._once.acquire(blocking=False):
            return
        try:
            with contextlib.suppress(OSError):  # not permitted: then the caller has no priority of its own either
                os.sched_setscheduler(0, *self._scheduling)
            self._call()
        except BaseException as error:  # it is raised where the result is asked for
            self._error = error
        self._over = True
        self._running.release()

    def finished(self, seconds: float) -> bool:
        """Whether it is over within so many seconds."""
        if not self._over and self._running.acquire(timeout=seconds):
            self._running.release()
        return self._over

    def result(self) -> None:
        """Raises what the call raised."""
        if self._error is not None:
            raise self._error


def await_call(call: Callable[[], object]) -> None:
    """Make a call that Ctrl-C can interrupt even while it computes in C; it is then left behind."""
    worker = Worker(call)
    worker.begin()
    while not worker.finished(CHECK):
        pass
    worker.result()
