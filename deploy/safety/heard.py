"""What one sender says over a link, by kind: the newest of each, and how old it is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from deploy.safety.stamps import FAR_S, WINDOW, SenderClock
from deploy.system.clock import boottime

OUTSTANDING = 64  # pings whose answers are still waited for
UNANSWERED = 8  # pings without any answer, after which that is said


class Received(NamedTuple):
    """The newest of one kind: when it arrived (s), what it is, and how long it had waited by then, at least (s)."""

    arrived: float
    content: Any
    delay: float = 0.0

    @property
    def measured(self) -> float:
        """s, when it was measured at the latest."""
        return self.arrived - self.delay


class RoundTrips:
    """How long answers to pings take: a delay that all messages have is a part of that, which no stamp tells.

    The shortest of those that came within the last `WINDOW` s in which one came. A message has been on its way for no
    longer than that, and what its stamp says that it waited beyond the others: signal and answer share one queue.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # pings and answers are different threads'
        self.reset()

    def reset(self) -> None:
        """Another connection begins."""
        with self._lock:
            self._sent: dict[Hashable, float] = {}
            self._least: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # per second: the shortest
            self._pings, self.shortest = 0, 0.0  # s; 0 where none is known
            self.known = False  # whether one was answered

    def sent(self, ping: Hashable, now: float) -> None:
        """One was sent, at `now` (s)."""
        with self._lock:
            self._pings += 1
            self._sent[ping] = now
            while len(self._sent) > OUTSTANDING:
                del self._sent[next(iter(self._sent))]

    def answered(self, ping: Hashable, now: float) -> None:
        """Its answer came; what nobody asked, or was answered already, tells nothing."""
        with self._lock:
            began = self._sent.pop(ping, None)
            if began is None:
                return
            second, took = int(now), max(now - began, 0.0)
            if self._least and self._least[-1][0] >= second:
                second, before = self._least.pop()
                took = min(took, before)
            self._least.append((second, took))
            self.shortest, self.known = min(took for _, took in self._least), True

    @property
    def trouble(self) -> str:
        """What is odd about them."""
        if self.known:
            late = f"its answers take {self.shortest:.2f} s: what it tells may be that old"
            return late * (self.shortest > FAR_S)
        return "it does not answer pings: a delay that all its messages have is not seen" * (self._pings >= UNANSWERED)


class Heard:
    """One sender's messages, at the other end of a link. `newest` by kind, of the present connection only."""

    called = ""  # what stands before a kind, for people

    def __init__(
        self, ticks: Mapping[str, tuple[float, int]], clock: Callable[[], float] = boottime, believed: bool = True
    ) -> None:
        """`ticks`: s and bits of the time stamps, by kind, of those that have them: see `SenderClock`.

        `believed`: what is measured is as old as stamps and answers say; else it counts from its arrival.
        """
        self.clock, self.believed = clock, believed
        self.newest: dict[str, Received] = {}
        self.clocks = {kind: SenderClock(*tick) for kind, tick in ticks.items()}
        self.round_trips = RoundTrips()

    def begin(self) -> None:
        """Another connection begins: nothing of the one before counts any more."""
        self.newest.clear()
        self.round_trips.reset()
        for clock in self.clocks.values():
            clock.reset()

    def take(self, kind: str, content: Any, stamp: Any = None) -> None:
        """One arrived just now. A stamp that is repeated, or late, makes it no news."""
        arrived, delay = self.clock(), 0.0
        if kind in self.clocks:
            waited = self.clocks[kind].delay(stamp, arrived)
            if waited is None:
                return
            delay = waited if self.believed else 0.0
        self.newest[kind] = Received(arrived, content, delay)

    @property
    def unseen(self) -> float:
        """s for which all that arrives may have been on its way, whatever its stamps say, at most."""
        return self.round_trips.shortest if self.believed else 0.0

    def waited(self, *kinds: str) -> float:
        """s for which the oldest of these had waited by its stamp; without any: of all."""
        return self.age(*kinds) - self.silence(*kinds) - self.unseen

    def age(self, *kinds: str) -> float:
        """s since the oldest of these was measured, at most as far as is known; without any: of all.

        By stamps, where there are such, else since it arrived; and `unseen` s more.
        """
        return self.clock() - min(each.measured for each in self._named(kinds)) + self.unseen

    def silence(self, *kinds: str) -> float:
        """s since the oldest of these arrived, however old it was by then; infinite where one never did."""
        return self.clock() - min(each.arrived for each in self._named(kinds))

    def _named(self, kinds: tuple[str, ...]) -> list[Received]:
        never = Received(-float("inf"), None)
        return [self.newest.get(kind, never) for kind in kinds or list(self.newest)] or [never]

    def doubts(self) -> list[str]:
        """What is odd about the sender's time stamps and answers."""
        told = [f"its {self.called}{kind} {clock.trouble}" for kind, clock in self.clocks.items() if clock.trouble]
        return [*told, *filter(None, [self.round_trips.trouble])]
