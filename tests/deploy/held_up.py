"""Links that hold messages up: ever longer, as a queue that fills, or all of them until they come at once."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from deploy.guard import REASONS

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


def check_catching_up(vehicle: Any, silence: Callable[[], float]) -> None:
    """The computer sleeps for 0.4 s; then all that its buffer kept is read within 40 ms, while the loop goes on."""
    for _ in range(100):
        vehicle.hears(0.0)
        vehicle.step()
    stopped = []
    vehicle.now += 0.4
    for k in range(1, 41):
        vehicle.now -= 0.009  # of a period of 10 ms: they come one per ms
        vehicle.hears(0.4 - 0.009 * k)
        age = vehicle.step().age["position"]
        assert silence() == 0.0 and age == pytest.approx(0.4 - 0.009 * k, abs=3e-3)
        stopped.append(REASONS[vehicle.guard.latched[0]])
    assert stopped[:5] == ["none"] * 5 and stopped[5:] == ["stale signal"] * 35
