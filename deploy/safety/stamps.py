"""How old what arrives is at least, by the time stamps of who sent it: what has waited in a queue is not news.

The two clocks are not set alike. A message's offset, its arrival by our clock minus its stamp, is how far they are
apart plus how long it was on its way; the smallest offset of late is that way without a queue, and by what a message
exceeds it, it has waited: in a radio that tries again, a modem, a buffer of this computer. As LEDBAT estimates the
queueing delay (RFC 6817, section 3.4.2). A delay that all messages have is not seen here, but by the answers to pings:
`heard.py`. No age here is below that by arrival; it is too high by what the clocks drift in the window, and after a
single stamp that was ahead (by `AHEAD_S` at most) by as much, until the window has passed: the guard stops too early
then, not too late.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

WINDOW = 30  # s in which something came, of which the smallest offset counts: clocks that are 100 ppm apart drift 3 ms
LATE_S = 1.0  # s by which a stamp may go back: a message that others have overtaken
AHEAD_S = 1.0  # s by which a stamp may be ahead of all before: a queue that was there from the beginning empties
AGREE = 3  # stamps in a row after which another time is believed: somebody has set the clock, or has rebooted
FAR_S = 0.05  # s that messages must have waited for a report to say so
IGNORED = "such messages were ignored"


def waits(delay: float) -> list[str]:
    """For a report of a flight that is being stopped: that what arrived last had waited for so long (s)."""
    if delay <= FAR_S:
        return []
    return [f"messages had waited for {delay:.2f} s by their time stamps; a slower simulator needs stamps=false"]


class SenderClock:
    """The clock of one sender of one kind of message, as its stamps tell it. `trouble` is what was odd about them."""

    def __init__(self, tick: float, bits: int) -> None:
        """Stamps count ticks of so many seconds, in so many bits; then they begin again at 0."""
        self.tick, self.span = tick, 1 << bits
        self.reset()

    def reset(self) -> None:
        """Forget it: another connection begins."""
        self.trouble = ""
        self._newest, self._arrived = -1, 0.0  # stamp, and when it arrived
        self._ticks = self._fits = 0  # since the first stamp; stamps that fitted one another
        self._least: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # per second of ours: the smallest offset
        self._strange: deque[tuple[int, float]] = deque(maxlen=AGREE)  # in a row: stamp, and when it arrived

    def delay(self, stamp: Any, arrived: float) -> float | None:
        """How long (s) a message that arrived at `arrived` (s) has waited, at least. None: it is no news.

        That is: repeated, overtaken by others, of a time that others have to confirm, or without a usable stamp where
        the sender had such before. Of a sender that never had, messages count as sent when they arrived.
        """
        if type(stamp) is not int or not 0 <= stamp < self.span:
            return self._unstamped("had no time stamps")
        if self._newest < 0:
            return self._begin(stamp, arrived) if stamp else self._unstamped("had no time stamps")
        ahead = self._ahead(self._newest, stamp)
        if -LATE_S <= ahead <= 0.0:
            return None
        if ahead > 0.0 and self._offset(stamp, arrived) >= self._base - AHEAD_S:
            self._strange.clear()
            self._fits += 1
            return self._taken(stamp, arrived)
        return self._odd(stamp, arrived, ahead)

    def _ahead(self, before: int, stamp: int) -> float:
        """s by which a stamp is after another; negative: before. Of two ways around the shorter."""
        half = self.span >> 1
        return ((stamp - before + half) % self.span - half) * self.tick

    def _offset(self, stamp: int, arrived: float) -> float:
        return arrived - self._ticks * self.tick - self._ahead(self._newest, stamp)

    @property
    def _base(self) -> float:
        return min(least for _, least in self._least)

    def _unstamped(self, what: str) -> float | None:
        """Its arrival counts only where no stamps ever did: what stands still or comes twice would pass as new."""
        known = self._fits >= AGREE
        self.trouble = self.trouble or f"{what}: {IGNORED if known else 'its age counted from its arrival'}"
        return None if known else 0.0

    def _begin(self, stamp: int, arrived: float) -> float:
        self._newest, self._ticks, self._fits = stamp, 0, 1
        self._least.clear()
        return self._taken(stamp, arrived)

    def _taken(self, stamp: int, arrived: float) -> float:
        offset, second = self._offset(stamp, arrived), int(arrived)
        self._ticks += (stamp - self._newest) % self.span
        self._newest, self._arrived = stamp, arrived
        if self._least and self._least[-1][0] >= second:
            self._least[-1] = self._least[-1][0], min(self._least[-1][1], offset)
        else:
            self._least.append((second, offset))
        return offset - self._base

    def _odd(self, stamp: int, arrived: float, ahead: float) -> float | None:
        """What does not fit those before is believed when others agree, unless it is of long ago: sent twice, say."""
        self._strange.append((stamp, arrived))
        run = list(self._strange)
        if len(run) < AGREE:
            return None
        for (before, then), (now, at) in pairwise(run):
            passed = self._ahead(before, now)
            if not (passed > 0.0 and abs(passed - (at - then)) <= AHEAD_S):
                return self._unstamped("had time stamps that made no sense")
        rebooted = stamp * self.tick <= arrived - self._arrived + LATE_S  # it counts from when it was switched on
        if ahead < 0.0 and not rebooted and self._fits >= AGREE:
            self.trouble = self.trouble or f"had time stamps of long ago: {IGNORED}"
            return None
        self._strange.clear()
        delay = self._begin(*run[0])
        for later in run[1:]:
            delay = self._taken(*later)
        self._fits = AGREE
        return delay
