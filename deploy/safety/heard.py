"""What one sender says over a link, by kind: the newest of each, and how old it is."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from deploy.safety.stamps import FAR_S, WINDOW, SenderClock
from deploy.system.clock import boottime

OUTSTANDING = 64  # pings whose answers are still waited for
UNANSWERED = 8  # pings without any answer, after which that is said
RECENT = WINDOW - 1  # s for which an answer counts: no longer than the stamps of messages that came with it


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

    The shortest of the last `RECENT` s. A message has been on its way for no longer than that, and what its stamp says
    that it waited beyond the others: signal and answer share one queue. It must not be shorter than the way without a
    queue that stamps know of, so answers are forgotten by the clock, however few there are; at last all but the newest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # pings and answers are different threads'
        self.reset()

    def reset(self) -> None:
        """Another connection begins."""
        with self._lock:
            self._sent: dict[Hashable, float] = {}
            self._least: deque[tuple[int, float]] = deque(maxlen=RECENT)  # per second: the shortest
            self._newest, self._at = 0.0, 0.0  # s: the last, and when it came
            self._pings = 0  # since then
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
            self._newest, self._at, self._pings, self.known = max(now - began, 0.0), now, 0, True
            second, took = int(now), self._newest
            if self._least and self._least[-1][0] >= second:
                second, before = self._least.pop()
                took = min(took, before)
            self._least.append((second, took))

    def shortest(self, now: float) -> float:
        """s, of late; the newest where none came of late, and 0 where none ever did."""
        with self._lock:
            while self._least and self._least[0][0] <= int(now) - RECENT:
                self._least.popleft()
            return min((took for _, took in self._least), default=self._newest)

    def trouble(self, now: float) -> str:
        """What is odd about them."""
        quiet = now - self._at if self.known else math.inf
        if quiet > RECENT:
            silent = f"it has not answered pings for {quiet:.0f} s" if self.known else "it does not answer pings"
            return f"{silent}: a delay that all its messages have is not seen" * (self._pings >= UNANSWERED)
        late = f"its answers take {self.shortest(now):.2f} s: what it tells may be that old"
        return late * (self.shortest(now) > FAR_S)


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
        return self.round_trips.shortest(self.clock()) if self.believed else 0.0

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
        return [*told, *filter(None, [self.round_trips.trouble(self.clock())])]
