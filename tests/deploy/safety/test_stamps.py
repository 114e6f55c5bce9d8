"""The age of messages by their senders' clocks: queues are seen, and no sender makes its data look fresher."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.safety.stamps import AGREE, WINDOW, SenderClock
from deploy.system.clock import boottime

CRAZYFLIE, BOOT, MICROSECONDS = (1e-3, 24), (1e-3, 32), (1e-6, 64)
PERIOD, FIRST = 0.01, 500.0  # s between two messages; of our clock when the first arrives
FORMATS = st.sampled_from([CRAZYFLIE, BOOT, MICROSECONDS])


def stamp_of(form, began, seconds):
    """What a sender whose stamp was `began` at first says after so many seconds."""
    tick, bits = form
    return (began + round(seconds / tick)) % (1 << bits)


def delays(form, began, arrivals, drift=0.0):
    """Of messages that were sent every PERIOD, by a sender whose clock is that much too fast."""
    clock = SenderClock(*form)
    sent = [k * PERIOD for k in range(len(arrivals))]
    return clock, [
        clock.delay(stamp_of(form, began, s * (1.0 + drift)), a) for s, a in zip(sent, arrivals, strict=True)
    ]


def through_a_queue(holds):
    """Arrivals of such messages, each held up for so long (s) and overtaking none."""
    return list(itertools.accumulate((FIRST + k * PERIOD + wait for k, wait in enumerate(holds)), max))


@given(
    FORMATS,
    st.integers(1, (1 << 24) - 1),  # some wrap around at once
    st.lists(st.floats(0.0, 0.5), min_size=1, max_size=60),
    st.floats(-1e-4, 1e-4),
)
def test_the_delay_is_what_the_queue_adds(form, began, holds, drift):
    holds = [0.0, *holds]
    arrivals = through_a_queue(holds)
    waited = [arrived - FIRST - k * PERIOD for k, arrived in enumerate(arrivals)]
    _, found = delays(form, began, arrivals, drift)
    assert found == pytest.approx(waited, abs=2e-3)  # stamps of whole ms, and the drift


@given(FORMATS, st.lists(st.tuples(st.integers(-5, 1 << 65), st.floats(0.0, 100.0)), max_size=80))
def test_nothing_looks_fresher_than_by_its_arrival(form, heard):
    """Whatever a sender claims, in whatever order."""
    clock, now = SenderClock(*form), 0.0
    for stamp, later in heard:
        now += later
        delay = clock.delay(stamp, now)
        assert delay is None or (math.isfinite(delay) and delay >= 0.0)


@given(FORMATS, st.floats(-0.9, 5.0), st.lists(st.floats(0.0, 0.3), min_size=2, max_size=80))
def test_a_clock_that_runs_too_fast_or_slow_makes_nothing_fresher(form, drift, holds):
    clock, found = delays(form, 77, through_a_queue(holds), drift)
    assert all(delay is None or delay >= 0.0 for delay in found) and found[0] == 0.0
    assert not clock.trouble


@pytest.mark.parametrize("form", [CRAZYFLIE, BOOT, MICROSECONDS])
def test_stamps_that_wrap_around_go_on(form):
    clock, found = delays(form, (1 << form[1]) - round(0.5 / form[0]), through_a_queue([0.0] * 200))
    assert found == pytest.approx([0.0] * 200, abs=2e-3) and not clock.trouble


def test_a_clock_that_drifts_for_an_hour_makes_little_older():
    """100 ppm slow, as bad crystals are: what counts is the window, not the whole hour (0.36 s)."""
    clock = SenderClock(*BOOT)
    found = [clock.delay(stamp_of(BOOT, 1000, k * 0.1 * (1.0 - 1e-4)), FIRST + 0.1 * k) for k in range(36_000)]
    assert max(found) < 1e-4 * WINDOW + 2e-3


def test_a_queue_that_fills_slowly_is_seen():
    """By 10 ms every second."""
    _, found = delays(BOOT, 1000, [FIRST + 1.01 * PERIOD * k for k in range(2000)])
    assert found[-1] == pytest.approx(0.2, abs=5e-3)


def test_after_a_silence_the_way_without_a_queue_is_still_known():
    """Two minutes without a word, longer than the window, then all that had waited at once."""
    clock = SenderClock(*BOOT)
    for k in range(500):
        clock.delay(stamp_of(BOOT, 1000, k * PERIOD), FIRST + k * PERIOD)
    late = [clock.delay(stamp_of(BOOT, 1000, 5.0 + k), FIRST + 125.0) for k in range(100)]
    assert late == pytest.approx([120.0 - k for k in range(100)], abs=1e-2)


def test_repeated_and_overtaken_messages_are_no_news():
    clock = SenderClock(*BOOT)
    assert clock.delay(1000, 1.0) == 0.0
    assert [clock.delay(stamp, 1.1) for stamp in (1000, 990, 10)] == [None] * 3
    assert clock.delay(1100, 1.1) == pytest.approx(0.0) and not clock.trouble


def test_a_clock_that_stands_still_is_no_news():
    clock = SenderClock(*CRAZYFLIE)
    assert [clock.delay(5000, FIRST + k * PERIOD) for k in range(500)] == [0.0] + [None] * 499


@given(FORMATS, st.integers(5, 1000), st.floats(0.0, 0.3))
def test_a_sender_that_reboots_is_known_again(form, silence, wait):
    clock, _ = delays(form, round(100.0 / form[0]), through_a_queue([0.0] * 300))
    began = FIRST + 3.0 + silence
    after = [clock.delay(stamp_of(form, 0, 2.0 + k * PERIOD), began + k * PERIOD) for k in range(50)]
    assert after[: AGREE - 1] == [None] * (AGREE - 1)
    assert after[AGREE - 1 :] == pytest.approx([0.0] * (51 - AGREE), abs=2e-3)
    held = clock.delay(stamp_of(form, 0, 2.5), began + 0.5 + wait)
    assert held == pytest.approx(wait, abs=2e-3)


@pytest.mark.parametrize("behind", [0.3, 3.0, 80.0])
def test_the_same_messages_by_a_slower_way_are_no_news(behind):
    """Also once the quicker way is silent: they are of long ago, not of a sender that has rebooted."""
    clock = SenderClock(*BOOT)
    for k in range(10_000):
        assert clock.delay(100_000 + 10 * k, FIRST + k * PERIOD) == pytest.approx(0.0, abs=1e-6)
        if k * PERIOD > behind:
            assert clock.delay(100_000 + 10 * k - round(1e3 * behind), FIRST + k * PERIOD) is None
    end = FIRST + 10_000 * PERIOD
    late = [clock.delay(200_000 + 10 * k - round(1e3 * behind), end + k * PERIOD) for k in range(20)]
    assert late == [None] * 20


@given(FORMATS, st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=20))
def test_single_stamps_of_garbage_change_nothing(form, garbage):
    clock, found, told = SenderClock(*form), [], iter(garbage)
    for k in range(200):
        if k % 10 == 9 and (stamp := next(told, None)) is not None:
            bits = form[1]
            if abs(clock._ahead(stamp_of(form, 5000, k * PERIOD), stamp % (1 << bits))) > 2.0:
                assert clock.delay(stamp % (1 << bits), FIRST + k * PERIOD) is None
        found.append(clock.delay(stamp_of(form, 5000, k * PERIOD), FIRST + k * PERIOD))
    assert found == pytest.approx([0.0] * 200, abs=2e-3)


def test_garbage_at_first_is_forgotten():
    clock = SenderClock(*BOOT)
    assert clock.delay(3_000_000_000, FIRST) == 0.0
    found = [clock.delay(100_000 + 10 * k, FIRST + k * PERIOD) for k in range(50)]
    assert found[AGREE - 1 :] == pytest.approx([0.0] * (51 - AGREE), abs=1e-6)
    assert clock.delay(100_500, FIRST + 0.9) == pytest.approx(0.4)


@pytest.mark.parametrize("stamp", [0, None, -1, 1 << 32, math.nan, "now", True])
def test_without_stamps_the_arrival_counts_and_that_is_said(stamp):
    clock = SenderClock(*BOOT)
    assert [clock.delay(stamp, FIRST + k) for k in range(100)] == [0.0] * 100
    assert clock.trouble == "had no time stamps: its age counted from its arrival"


def test_another_connection_begins_without_the_trouble_of_before():
    clock = SenderClock(*BOOT)
    clock.delay(0, FIRST)
    assert clock.trouble
    clock.reset()
    assert clock.delay(1000, FIRST + 1.0) == 0.0 and not clock.trouble


def test_after_a_stamp_that_was_ahead_ages_are_too_high_for_the_window_and_no_longer():
    clock = SenderClock(*BOOT)
    found = [clock.delay(1000 + 10 * k + (800 if k == 100 else 0), FIRST + k * PERIOD) for k in range(4000)]
    assert found[:101] == pytest.approx([0.0] * 101, abs=1e-6) and found[101:181] == [None] * 80
    assert max(found[181:]) == pytest.approx(0.8, abs=1e-6) and found[-1] == pytest.approx(0.0, abs=1e-6)


def test_stamps_that_make_no_sense_are_given_up():
    clock = SenderClock(*MICROSECONDS)
    nonsense = [(7**k) % ((1 << 61) - 1) << 3 for k in range(40, 240)]
    found = [clock.delay(stamp, FIRST + k * PERIOD) for k, stamp in enumerate(nonsense)]
    assert found[20:].count(0.0) > 150 and set(found) <= {0.0, None}
    assert clock.trouble == "had time stamps that made no sense: its age counted from its arrival"


@pytest.mark.parametrize("form", [CRAZYFLIE, BOOT, MICROSECONDS])
@pytest.mark.parametrize(
    "old", [[1000] * 60, [1000 + 10 * (k // 2) for k in range(60)], [0] * 60, [None] * 60, [-1, 1 << 64, "now"] * 20]
)
def test_a_sender_that_had_a_clock_is_not_believed_without_it(form, old):
    """One old message again and again, each of them twice, or no stamps: nothing of that is new."""
    clock, _ = delays(form, round(100.0 / form[0]), through_a_queue([0.0] * 100))
    found = [clock.delay(stamp, FIRST + (100 + k) * PERIOD) for k, stamp in enumerate(old)]
    assert found == [None] * 60 and "such messages were ignored" in clock.trouble
    went_on = [clock.delay(stamp_of(form, 0, 101.6 + k * PERIOD), FIRST + 1.6 + k * PERIOD) for k in range(50)]
    assert went_on == pytest.approx([0.0] * 50, abs=2e-3)


def test_a_clock_that_is_set_is_followed_forward_only():
    clock = SenderClock(*MICROSECONDS)
    for k in range(100):
        clock.delay(10**9 + 10_000 * k, FIRST + k * PERIOD)
    set_at = FIRST + 100 * PERIOD
    ahead = [clock.delay(10**15 + 10_000 * k, set_at + k * PERIOD) for k in range(100)]
    assert ahead[:AGREE] == [None, None, pytest.approx(0.0)] and ahead[-1] == pytest.approx(0.0) and not clock.trouble
    back = [clock.delay(10**14 + 10_000 * k, set_at + (100 + k) * PERIOD) for k in range(100)]
    assert back == [None] * 100 and "of long ago" in clock.trouble


def test_it_needs_no_more_memory_as_time_goes_on():
    clock = SenderClock(*BOOT)
    for k in range(100_000):
        clock.delay(1 + 10 * k, 0.011 * k)  # always later: the largest offset is the newest
    assert len(clock._least) == WINDOW and len(clock._strange) <= AGREE


def test_the_clock_goes_on():
    assert boottime() <= boottime() < math.inf
