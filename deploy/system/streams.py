"""Standard output that is closed, full, or a pipe that nobody reads any more: `python -m ... | head -1`."""

from __future__ import annotations

import contextlib
import os
import select
import sys

GONE = 141  # the exit status of a program that SIGPIPE ended


def opened() -> None:
    """Streams that were closed before the start (`>&-`) become ones that nobody reads."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def say(text: str) -> None:
    """A line for people on standard error, unless it would have to be waited for: nobody may read it any more."""
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [2], [], 0.0)[1]:
            os.write(2, f"{text}\n".encode(errors="replace"))


def is_gone() -> bool:
    """Whether the reader of our standard output has gone. Then what is still to be written goes nowhere."""
    try:
        descriptor = sys.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, 0)
        gone = any(state & select.POLLERR for _, state in poll.poll(0))
    except (OSError, ValueError):  # no file: captured by a test
        return False
    if gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    return gone
