"""Ctrl-C, also while a compiler runs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SOON = 0.05  # s: not in the callback, where it would be lost once more


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
