"""How a run ends early: what SIGINT and SIGTERM do while it starts, learns, and writes what it has learned."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """While entered, the first SIGINT or SIGTERM raises KeyboardInterrupt here, and `signal` says which one it was.

    Between `wait()` and `hurry()` it only sets `signal`: the run stops at its next safe point. The second one does
    what it did before.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._waits = False
        self._before: dict[int, Any] = {}

    @property
    def name(self) -> str:
        """SIGINT or SIGTERM."""
        return signal.Signals(self.signal or signal.SIGINT).name

    @property
    def status(self) -> int:
        """The exit status of a program that a signal ended."""
        return 128 + (self.signal or signal.SIGINT)

    def wait(self) -> None:
        """From here on, there are safe points."""
        self._waits = True

    def hurry(self) -> None:
        """From here on, there are none."""
        self._waits = False

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()
        if not self._waits:
            raise KeyboardInterrupt
        # Not print: the signal may have interrupted one.
        os.write(2, f"{self.name}: saving a checkpoint after this update; a second one ends at once\n".encode())

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
