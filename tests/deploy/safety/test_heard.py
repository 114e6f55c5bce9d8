"""What answers to pings tell: a delay that all messages have, which no time stamp shows."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.safety.heard import OUTSTANDING, UNANSWERED, Heard, RoundTrips
from deploy.safety.stamps import WINDOW

PERIOD, PING = 0.01, 0.1  # s between two messages, and two pings


class Line:
    """A sender at the other end of a line, on which all waits for as long as `down` says by then, nothing overtaking.

    Its clock was 1000 s ahead of ours. A ping takes `up` s to it.
    """

    def __init__(self, up=0.002, believed=True):
        self.now, self.up, self.answers, self.answer = 50.0, up, True, lambda at: True
        self.heard = Heard({"state": (1e-3, 32)}, lambda: self.now, believed)
        self._coming, self._free, self._count = [], 0.0, itertools.count()

    def flies(self, seconds, down):
        """So long it sends; how old the newest was in truth, and by `age`, at every period."""
        truth, told = [], []
        for k in range(round(seconds / PERIOD)):
            if k % round(PING / PERIOD) == 0:
                ping = next(self._count)
                self.heard.round_trips.sent(ping, self.now)
                self._send(self.now + self.up, ("ping", ping), down(self.now))
            self._send(self.now, ("state", self.now), down(self.now))
            self.now += PERIOD
            while self._coming and self._coming[0][0] <= self.now:
                at, (kind, what) = self._coming.pop(0)
                now, self.now = self.now, at
                if kind == "state":
                    self.heard.take("state", what, round(1e3 * (what + 1000.0)))
                elif self.answers and self.answer(at):
                    self.heard.round_trips.answered(what, at)
                self.now = now
            if self.heard.newest:
                truth.append(self.now - self.heard.newest["state"].content)
                told.append(self.heard.age("state"))
        return truth, told

    def _send(self, when, what, wait):
        self._free = max(when + wait, self._free)
        self._coming.append((self._free, what))
        self._coming.sort(key=lambda each: each[0])


def test_a_queue_that_was_there_from_the_beginning_is_seen():
    """Every message waits for 0.4 s: by their stamps alone none does."""
    line = Line()
    truth, told = line.flies(3.0, lambda now: 0.4)
    assert line.heard.waited("state") < 2e-3 and truth[-1] == pytest.approx(0.4, abs=0.02)
    assert truth[-1] <= told[-1] <= truth[-1] + line.up + 2e-3
    assert line.heard.doubts() == ["its answers take 0.40 s: what it tells may be that old"]


def test_a_queue_that_stays_is_seen_after_the_stamps_have_got_used_to_it():
    line = Line()
    line.flies(5.0, lambda now: 0.001)
    assert not line.heard.doubts()
    truth, told = line.flies(WINDOW + 10.0, lambda now: 0.3)
    late = [(a, b) for a, b in zip(truth, told, strict=True) if a > 0.25]
    assert len(late) > 3800 and line.heard.waited("state") < 2e-3
    assert all(b >= a - 2e-3 for a, b in late)
    assert told[-1] < truth[-1] + 0.01


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.0, 0.5), min_size=3, max_size=12), st.floats(0.0, 0.1))
def test_no_message_is_older_than_it_is_said_to_be(waits, up):
    """Whatever the queue does, once a ping was answered."""
    line = Line(up)
    line.flies(2.0, lambda now: waits[0])
    for wait in waits:
        truth, told = line.flies(0.5, lambda now, wait=wait: wait)
        assert all(b >= a - PERIOD - 2e-3 for a, b in zip(truth, told, strict=True))


@pytest.mark.parametrize("gap", [2, 3, 7])
def test_answers_that_miss_whole_seconds_are_forgotten_with_the_stamps(gap):
    """The least of the last 30 that came was remembered longer than stamps know the way without a queue."""
    line = Line()
    line.flies(5.0, lambda now: 0.001)
    line.answer = lambda at: int(at) % gap == 0
    truth, told = line.flies(WINDOW + 15.0, lambda now: 0.3)
    assert all(b >= a - PERIOD - 2e-3 for a, b in zip(truth, told, strict=True))
    assert told[-1] < truth[-1] + 0.01


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.floats(0.0, 0.4)), min_size=3, max_size=9),
    st.floats(0.0, 0.1),
    st.floats(0.0, 1.0),
)
def test_no_message_is_older_than_it_is_said_to_be_where_answers_are_missing(parts, up, begins):
    """Parts of 10 s each, with a queue of their own: so many whole seconds of each go without an answer."""
    line, waits = Line(up), 0.05
    line.now += begins
    line.flies(2.0, lambda now: waits)
    for missing, waits in parts:
        began = int(line.now)
        line.answer = lambda at, began=began, missing=missing: not 0 <= int(at) - began < missing
        truth, told = line.flies(10.0, lambda now, waits=waits: waits)
        assert all(b >= a - PERIOD - 2e-3 for a, b in zip(truth, told, strict=True))


def test_of_answers_that_cease_the_newest_counts_and_the_report_says_so():
    line = Line()
    line.flies(3.0, lambda now: 0.001)
    line.flies(3.0, lambda now: 0.2)
    assert line.heard.unseen < 0.01  # the least of those of late
    line.answers = False
    line.flies(WINDOW + 10.0, lambda now: 0.2)
    assert line.heard.unseen == pytest.approx(0.2, abs=0.02)
    (doubt,) = line.heard.doubts()
    assert doubt.startswith("it has not answered pings for 40 s: a delay that all")
    line.answers = True
    line.flies(1.0, lambda now: 0.2)
    assert line.heard.doubts() == ["its answers take 0.20 s: what it tells may be that old"]


def test_who_answers_no_ping_is_as_old_as_its_stamps_say_and_the_report_says_so():
    line = Line()
    line.answers = False
    _, told = line.flies(PING * UNANSWERED + 1.0, lambda now: 0.4)
    assert told[-1] < 2.0 * PERIOD
    assert line.heard.doubts() == ["it does not answer pings: a delay that all its messages have is not seen"]


def test_where_arrivals_count_answers_do_not():
    line = Line(believed=False)
    _, told = line.flies(3.0, lambda now: 0.4)
    assert told[-1] < 2.0 * PERIOD and line.heard.unseen == 0.0


def test_what_nobody_asked_or_was_answered_before_tells_nothing():
    trips = RoundTrips()
    trips.answered("a stranger's", 1.0)
    trips.sent("ours", 1.0)
    trips.answered("ours", 1.2)
    trips.answered("ours", 1.0)
    assert trips.known and trips.shortest(2.0) == pytest.approx(0.2)
    for k in range(1000):
        trips.sent(k, 2.0)
    assert len(trips._sent) == OUTSTANDING
    trips.answered(0, 2.0)  # too long ago
    assert trips.shortest(2.0) == pytest.approx(0.2)


def test_another_connection_knows_nothing_of_the_one_before():
    line = Line()
    line.flies(3.0, lambda now: 0.4)
    line.heard.begin()
    assert not line.heard.newest and line.heard.unseen == 0.0 and line.heard.age("state") == float("inf")
    assert line.heard.silence() == line.heard.age() == float("inf") and not line.heard.doubts()
