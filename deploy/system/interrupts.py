"""Ctrl-C, also while a compiler runs; and all else that would end or stop a program while its robot flies."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from deploy.system import streams

SOON = 0.05  # s: not in the callback, where it would be lost once more
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
ASKS = (signal.SIGHUP, signal.SIGTSTP)  # a terminal that closes sends the first more than once; Ctrl-Z


@contextmanager
def come_again() -> Iterator[None]:
    """An interrupt that C code swallows, as a compiler does whose callbacks are in Python, is sent once more."""
    before = sys.unraisablehook

    def look(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            threading.Timer(SOON, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        else:
            before(lost)

    sys.unraisablehook = look
    try:
        yield
    finally:
        sys.unraisablehook = before


class _Handler:
    """Raises KeyboardInterrupt: for each of ENDS, and for the first signal of all, unless that comes while `ending`."""

    ending = answered = False

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: Any) -> None:
        first, self.asked = not self.asked, True
        if first and self.ending:
            _Handler.answered = True
            streams.say("the robot is being left safe; a second Ctrl-C does not wait for that")
        elif first or number in ENDS:
            raise KeyboardInterrupt


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

    A closed terminal and Ctrl-Z ask once, and never for the end that a second Ctrl-C brings. What whoever started the
    program has it ignore (nohup) it ignores. To be entered by the main thread.
    """
    handler = _Handler()
    numbers = (*ENDS, *ASKS) if real_time else (signal.SIGTERM,)
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: known for number, known in before.items() if known not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)
