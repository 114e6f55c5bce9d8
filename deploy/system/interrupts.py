"""Ctrl-C, also while a compiler runs; and all else that would end or stop a program while its robot flies."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    """Raises KeyboardInterrupt: for each of ENDS, and for the first signal of all."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: Any) -> None:
        if number in ASKS and self.asked:
            return
        self.asked = True
        raise KeyboardInterrupt


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
