"""What a training has learned so far, shown while it learns: in a world of its own, in a process of its own.

The training hands over copies of its policy when they are asked for, takes nothing back and waits for nobody: it
learns the same with and without somebody who looks on, only more slowly where cores are few.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import queue
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from deploy.teleop.screen import asked, paced, screen, wanted
from policies.runner.mistakes import SettingsError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from policies.algorithms import Algorithm
    from policies.models.controller import Policy
    from policies.runner.config import Settings
    from sim.tasks import Task

EVERY = 0.5  # s between policies at least
ENDS = 5.0  # s that the process has for closing its screen


class Look:
    """Nobody looks on."""

    def tell(self, algorithm: Algorithm) -> None:
        """The training is now so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """The training is over."""


class Live(Look):
    """Somebody does."""

    def __init__(self, settings: Settings, view: str) -> None:
        context = multiprocessing.get_context("spawn")  # threads and kernels of ours do not survive a fork
        self._pipe, theirs = context.Pipe()
        made = settings.task, settings.task_config, settings.options.engine, settings.options.seed, view
        self._process: Any = context.Process(target=_shown, args=(theirs, *made), daemon=True)
        self._process.start()
        theirs.close()
        self._policies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, daemon=True)  # who does not read must not hold up training
        self._sender.start()
        self._last, self.sent = 0.0, 0

    def tell(self, algorithm: Algorithm) -> None:
        if self._process is None or time.monotonic() - self._last < EVERY:
            return
        try:
            if not self._pipe.poll():
                return  # it has not asked, or not yet
            said = self._pipe.recv()
            if isinstance(said, str):
                raise ValueError(said)
            self._policies.put(pickle.dumps(algorithm.controller()))  # a copy: the pipe's own would share tensors
            self.sent += 1
        except Exception as error:  # what goes wrong beside the training must not end it
            sys.stderr.write(f"warning: the live view has ended: {error or 'its process is gone'}\n")
            self._stop()
        self._last = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # its process is gone: `tell` finds out
            while (policy := self._policies.get()) is not None:
                self._pipe.send_bytes(policy)

    def _stop(self) -> None:
        if self._process is None:
            return
        self._policies.put(None)
        self._sender.join(ENDS)
        if self._sender.is_alive():  # it does not read
            self._process.kill()
            self._sender.join()
        self._pipe.close()  # which it sees
        self._process.join(ENDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()
        self._process = None


def beside(settings: Settings, task: Task) -> Look:
    """Who looks on while that is trained. SettingsError where nothing can be shown."""
    if not wanted(settings.options.view):
        return Look()
    try:
        view = asked(settings.options.view)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return Live(settings, view)


def _shown(pipe: Connection, task: str, config: Any, engine: str, seed: int, view: str) -> None:
    """The process: episodes of the newest policy, one after the other, until the other end is closed."""
    from deploy.drivers.simulated import Simulated
    from sim.env import with_engine
    from sim.tasks import agents_of, task_class

    with contextlib.suppress(OSError, EOFError, KeyboardInterrupt):
        try:
            world = with_engine(task_class(task)(config), engine)
            driver, shown = Simulated(world, agents_of(world), seed=seed), screen(view, "live: what it has learned")
        except Exception as error:  # the training says why, and goes on
            pipe.send(str(error))
            return
        driver.watch = paced(shown, world.rate_hz)
        try:
            pipe.send(True)
            newest: Policy = pipe.recv()
            while True:
                newest = _episode(driver, newest, pipe)
                driver.first += 1
        finally:
            shown.close()
            driver.close()


def _episode(driver: Any, policy: Policy, pipe: Connection) -> Policy:
    """One, as the policy flies it; the newest one afterwards. EOFError when nobody is there any more."""
    driver.connect()
    newest, state, asks = policy, policy.initial_state(driver.num), True
    for _ in range(driver.steps):
        if asks:
            pipe.send(True)
        asks = pipe.poll()
        newest = pipe.recv() if asks else newest
        commands, state = policy.act(driver.read().signals, state)
        driver.write(commands)
        if driver.done:
            break
    return newest
