"""Ctrl-C, also while a compiler runs; and all else that would end or stop a program while its robot flies."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from deploy.system import streams

SOON = 0.05  # s: not in the callback, where it would be lost once more
ENDS = (signal.SIGINT, signal.SIGQUIT)  # a person's: again, they do not wait for a landing
# Supervisors send the first after a SIGINT, sooner than a landing ends; a closed terminal the second twice; Ctrl-Z.
ASKS = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
TOGETHER = 0.5  # s after the first in which others are the same request
LANDING = 60.0  # s to land before SIGKILL: a driver takes 42 at most with PX4, 55 with a Crazyflie at 20 m


@contextmanager
def come_again() -> Iterator[None]:
    """An interrupt that C code swallows, as a compiler does whose callbacks are in Python, is sent once more."""
    before = sys.unraisablehook

    def look(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            _Handler.swallowed = True
            threading.Timer(SOON, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        else:
            before(lost)

    sys.unraisablehook = look
    try:
        yield
    finally:
        sys.unraisablehook = before


class _Handler:
    """Raises KeyboardInterrupt: for the first signal of all, unless that comes while `ending`, and for ENDS after it.

    Not for what comes with the first: raised while that is unwinding the stack, it made other errors of both.
    """

    ending = answered = swallowed = False
    active: _Handler | None = None
    leaving = threading.Lock()  # `active` stays what it is

    def __init__(self) -> None:
        self.since: float | None = None  # s, of the first
        self.known = list[int]()  # the signals that it handles

    def __call__(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        first = self.since is None
        self.since = now if self.since is None else self.since
        if _Handler.swallowed:  # and comes again
            _Handler.swallowed = False
            raise KeyboardInterrupt
        if first and self.ending:
            _Handler.answered = True
            streams.say("the robot is being left safe; a second Ctrl-C does not wait for that")
        elif first or (number in ENDS and now - self.since > TOGETHER):
            raise KeyboardInterrupt


def ask() -> bool:
    """Have this program end as a closed terminal does; from any thread. False: nobody is there yet who would heed it.

    Nothing happens where that was asked for before, by whomever: it is never the second Ctrl-C.
    """
    with _Handler.leaving:
        handler = _Handler.active
        if handler is None or not handler.known:
            return False
        if handler.since is None:
            signal.raise_signal(handler.known[-1])  # of those that ask, unless all are ignored
        return True


@contextmanager
def ending() -> Iterator[Callable[[], bool]]:
    """Inside, what `as_ctrl_c` would raise first is only answered: what it asks for is being done.

    Yields what says whether that was so: then whoever would begin another flight has to raise it after all.
    """
    _Handler.ending, _Handler.answered = True, False
    try:
        yield lambda: _Handler.answered
    finally:
        _Handler.ending = False


@contextmanager
def as_ctrl_c(real_time: bool) -> Iterator[None]:
    """Inside, SIGTERM is as Ctrl-C; in `real_time` so is all that would end this program, or stop it, in mid-air.

    SIGTERM, a closed terminal and Ctrl-Z ask once, and never for the end that a second Ctrl-C brings; what comes within
    `TOGETHER` of the first is one request with it. What whoever started the program has it ignore (nohup) it ignores.
    To be entered by the main thread.
    """
    handler = _Handler()
    numbers = (*ENDS, *ASKS) if real_time else (signal.SIGTERM,)
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: known for number, known in before.items() if known not in (signal.SIG_IGN, None)}
    handler.known = list(before)
    for number in before:
        signal.signal(number, handler)
    _Handler.active, _Handler.swallowed = handler, False
    try:
        yield
    finally:
        with _Handler.leaving:
            _Handler.active = None
        for number, known in before.items():
            signal.signal(number, known)
