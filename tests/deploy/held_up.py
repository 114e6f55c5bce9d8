"""A link that holds up what is sent, ever longer, as a queue that fills: nothing is lost, no silence betrays it."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

FILLS = 0.5  # s of waiting that are added per second


class HeldUp:
    """In the place of a function that sends. From `begin` on things wait longer and longer, `most` (s) in the end."""

    def __init__(self, send: Callable[..., None], most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.send, self.most, self.clock = send, most, clock
        self.began: float | None = None
        self._waiting: deque[tuple[float, tuple[Any, ...]]] = deque()

    def begin(self) -> None:
        """The queue begins to fill, if it has not yet."""
        self.began = self.clock() if self.began is None else self.began

    def __call__(self, *given: Any) -> None:
        """Send, in a while; what was due before goes first. To be called often."""
        now = self.clock()
        wait = 0.0 if self.began is None else min(self.most, FILLS * (now - self.began))
        self._waiting.append((now + wait, given))
        while self._waiting and self._waiting[0][0] <= now:
            self.send(*self._waiting.popleft()[1])
