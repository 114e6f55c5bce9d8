import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from deploy.guard import HOLD, OVERRIDE, PASS, REASONS, SAFE, Guard
from deploy.safety.envelope import Envelope
from sim.spec import Signal

INPUTS = (
    Signal("position", (3,), "m", "world"),
    Signal("rotation", (9,), "1", "body->world"),
    Signal("linear_velocity", (3,), "m/s", "world", max_age=0.05),
    Signal("angular_velocity", (3,), "rad/s", "body"),
)
OUTPUTS = (Signal("motor", (2,), low=0.0, high=1.0), Signal("gripper", (1,), "m", low=0.1, high=0.5))
FRESH = {s.name: 0.0 for s in INPUTS}


def level(n=1):
    values = {s.name: np.zeros((n, *s.shape), np.float32) for s in INPUTS}
    values["rotation"][:] = np.eye(3, dtype=np.float32).reshape(9)
    return values


def command(n=1, motor=0.5):
    return {"motor": np.full((n, 2), motor, np.float32), "gripper": np.full((n, 1), 0.3, np.float32)}


def guard_of(n=1, **envelope):
    guard = Guard(INPUTS, OUTPUTS, Envelope(**envelope))
    guard.reset(n)
    return guard


def tick(guard, signals=None, age=None, sent=None):
    guard.screen(signals or level(guard.n), FRESH if age is None else age)
    return guard.filter(sent or command(guard.n))


def reason(guard, robot=0):
    return REASONS[guard.latched[robot]]


def test_all_is_well_passes_unchanged():
    guard = guard_of(3)
    for name, value in tick(guard, sent=command(3)).items():
        np.testing.assert_array_equal(value, command(3)[name])
    assert (guard.verdict == PASS).all()
    assert guard.interventions() == {}


def test_commands_are_clipped_to_their_limits():
    sent = tick(guard_of(), sent={"motor": np.array([[-3.0, 9.0]]), "gripper": np.array([[0.0]])})
    np.testing.assert_array_equal(sent["motor"], [[0.0, 1.0]])
    np.testing.assert_array_equal(sent["gripper"], np.array([[0.1]], np.float32))


def test_a_stale_signal_holds_then_stops_for_good():
    guard = guard_of(hold_steps=2)
    tick(guard, sent=command(motor=0.7))
    stale = FRESH | {"linear_velocity": 0.051}
    for _ in range(2):
        np.testing.assert_array_equal(tick(guard, age=stale)["motor"], np.full((1, 2), 0.7, np.float32))
        assert guard.verdict[0] == HOLD
    np.testing.assert_array_equal(tick(guard, age=stale)["motor"], np.zeros((1, 2)))
    assert guard.verdict[0] == SAFE
    np.testing.assert_array_equal(tick(guard)["motor"], np.zeros((1, 2)))  # fresh again: stays stopped
    assert reason(guard) == "stale signal"
    assert guard.interventions() == {"stale signal": 4}


def test_a_short_gap_is_bridged_and_forgiven():
    guard = guard_of(hold_steps=2)
    tick(guard)
    for _ in range(5):
        tick(guard, age=FRESH | {"position": 1.0})
        tick(guard, age=FRESH | {"position": 1.0})
        assert tick(guard, sent=command(motor=0.9))["motor"][0, 0] == np.float32(0.9)
    assert reason(guard) == "none"


@pytest.mark.parametrize("age", [math.nan, math.inf, -0.2, 0.2])
def test_ages_that_prove_nothing_are_stale(age):
    guard = guard_of(hold_steps=0)
    tick(guard)
    tick(guard, age=FRESH | {"position": age})
    assert reason(guard) == "stale signal"


def test_a_signal_without_an_age_or_without_a_value_is_stale():
    for signals, age in ((level(), {}), ({k: v for k, v in level().items() if k != "position"}, FRESH)):
        guard = guard_of(hold_steps=0)
        tick(guard)
        tick(guard, signals, age)
        assert reason(guard) == "stale signal"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_signal_reaches_neither_policy_nor_robot(bad):
    guard = guard_of(hold_steps=1)
    good = level()
    good["position"][0] = [1.0, 2.0, 3.0]
    tick(guard, good, sent=command(motor=0.6))
    broken = level()
    broken["position"][0, 1] = bad
    clean = guard.screen(broken, FRESH)
    np.testing.assert_array_equal(clean["position"], [[1.0, 2.0, 3.0]])
    assert guard.filter(command(motor=0.1))["motor"][0, 0] == np.float32(0.6)
    tick(guard, broken)
    assert reason(guard) == "non-finite signal"


def test_last_good_values_survive_a_driver_that_reuses_its_arrays():
    guard = guard_of()
    signals = level()
    signals["position"][:] = 4.0
    tick(guard, signals)
    signals["position"][:] = np.nan
    np.testing.assert_array_equal(guard.screen(signals, FRESH)["position"], [[4.0, 4.0, 4.0]])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_a_non_finite_command_is_held_then_stopped(bad):
    guard = guard_of(hold_steps=1)
    tick(guard, sent=command(motor=0.4))
    broken = {"motor": np.array([[0.5, bad]]), "gripper": np.array([[0.3]])}
    held = tick(guard, sent=broken)
    np.testing.assert_array_equal(held["motor"], np.full((1, 2), 0.4, np.float32))
    np.testing.assert_array_equal(tick(guard, sent=broken)["motor"], np.zeros((1, 2)))
    assert reason(guard) == "non-finite command"


def test_with_nothing_good_yet_there_is_nothing_to_hold():
    guard = guard_of(hold_steps=5)
    np.testing.assert_array_equal(tick(guard, age={})["motor"], np.zeros((1, 2)))
    assert guard.verdict[0] == SAFE


def leaning(degrees):
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [1, 0, 0, 0, c, -s, 0, s, c]


@pytest.mark.parametrize(
    ("envelope", "signal", "inside", "outside", "why"),
    [
        ({"fence_low": (-1, -1, 0), "fence_high": (1, 1, 2)}, "position", [0.9, 0, 1], [1.1, 0, 1], "geofence"),
        ({"fence_low": (-1, -1, 0), "fence_high": (1, 1, 2)}, "position", [0, 0, 0.1], [0, 0, -0.1], "geofence"),
        ({"max_tilt": 60.0}, "rotation", leaning(59), leaning(61), "tilt"),
        ({"max_tilt": 60.0}, "rotation", leaning(-59), leaning(180), "tilt"),
        ({"max_speed": 2.0}, "linear_velocity", [0, 1.9, 0], [1.5, 1.5, 0], "speed"),
        ({"max_speed": 2.0}, "linear_velocity", [0, 1.9, 0], [3e38, 0, 0], "speed"),
        ({"max_body_rate": 10.0}, "angular_velocity", [9, 0, 0], [0, 0, -11], "body rate"),
    ],
)
def test_leaving_the_envelope_stops_at_once_and_for_good(envelope, signal, inside, outside, why):
    guard = guard_of(2, **envelope)
    signals = level(2)
    signals["position"][:, 2] = 1.0
    signals[signal][:] = inside
    tick(guard, signals)
    assert (guard.verdict == PASS).all()
    signals[signal][1] = outside
    sent = tick(guard, signals)
    np.testing.assert_array_equal(sent["motor"], [[0.5, 0.5], [0.0, 0.0]])
    signals[signal][1] = inside
    np.testing.assert_array_equal(tick(guard, signals)["motor"], [[0.5, 0.5], [0.0, 0.0]])
    assert (reason(guard, 0), reason(guard, 1)) == ("none", why)


def test_the_change_per_step_is_limited():
    guard = guard_of(max_change=0.1)
    assert tick(guard, sent=command(motor=0.5))["motor"][0, 0] == 0.5  # the first command may be anything
    np.testing.assert_allclose(tick(guard, sent=command(motor=1.0))["motor"], [[0.6, 0.6]], atol=1e-6)
    np.testing.assert_allclose(tick(guard, sent=command(motor=0.0))["motor"], [[0.5, 0.5]], atol=1e-6)


def test_stopping_is_not_slowed_down_by_the_limit_on_change():
    guard = guard_of(max_change=0.1)
    tick(guard)
    guard.stop()
    np.testing.assert_array_equal(tick(guard)["motor"], np.zeros((1, 2)))


def test_the_emergency_stop_latches_across_flights():
    guard = guard_of(2)
    tick(guard)
    guard.stop()
    np.testing.assert_array_equal(tick(guard)["motor"], np.zeros((2, 2)))
    assert reason(guard) == "emergency stop"
    guard.reset(2)
    np.testing.assert_array_equal(tick(guard)["motor"], np.zeros((2, 2)))
    guard.release()
    np.testing.assert_array_equal(tick(guard)["motor"], np.zeros((2, 2)))  # this flight is over
    guard.reset(2)
    np.testing.assert_array_equal(tick(guard)["motor"], np.full((2, 2), 0.5))


def test_deadlines_missed_in_a_row_stop():
    guard = guard_of(missed_in_a_row=3)
    for late in (True, True, False, True, True):
        guard.tick(0.0, late)
    tick(guard)
    assert reason(guard) == "none"
    guard.tick(0.0, True)
    np.testing.assert_array_equal(tick(guard)["motor"], np.zeros((1, 2)))
    assert reason(guard) == "deadlines missed"


def test_many_deadlines_missed_here_and_there_stop_too():
    guard = guard_of(missed_of_100=20, missed_in_a_row=2)
    for k in range(300):
        guard.tick(0.01 * k, k % 6 == 0)  # 17 of 100
    assert reason(guard) == "none"
    for k in range(300, 400):
        guard.tick(0.01 * k, k % 4 == 0)
    assert reason(guard) == "deadlines missed"


@pytest.mark.parametrize(("pause", "stops"), [(0.01, False), (0.49, False), (0.51, True), (-0.01, True)])
def test_a_jump_of_the_clock_stops(pause, stops):
    guard = guard_of(2)
    guard.tick(100.0, False)
    guard.tick(100.0 + pause, False)
    assert (reason(guard) == "clock jump") == stops
    guard.reset(2)
    guard.tick(0.0, False)  # another flight, another clock
    assert reason(guard) == "none"


def test_a_value_that_cannot_be_is_held_then_stops():
    inputs = (Signal("rotation", (9,), "1", "body->world", low=-1.01, high=1.01),)
    guard = Guard(inputs, OUTPUTS, Envelope(hold_steps=1))
    fine = np.eye(3, dtype=np.float32).reshape(1, 9)
    for value, verdict in ((fine, PASS), (2.0 * fine, HOLD), (fine, PASS), (2.0 * fine, HOLD), (2.0 * fine, SAFE)):
        clean = guard.screen({"rotation": value}, {"rotation": 0.0})
        np.testing.assert_array_equal(clean["rotation"], fine)
        guard.filter(command())
        assert guard.verdict[0] == verdict
    assert reason(guard) == "signal out of range"


@pytest.mark.parametrize(
    ("name", "shape", "rule"),
    [
        ("position", (2,), {"fence_low": (-1.0,) * 3, "fence_high": (1.0,) * 3}),
        ("rotation", (3, 3), {"max_tilt": 30.0}),
        ("rotation", (4,), {"max_tilt": 30.0}),
        ("linear_velocity", (3, 3), {"max_speed": 1.0}),
        ("angular_velocity", (2, 2), {"max_body_rate": 1.0}),
    ],
)
def test_a_rule_on_a_signal_of_another_shape_is_refused_before_the_flight(name, shape, rule):
    """In flight it would have ended the loop, or in C read the signal behind it."""
    with pytest.raises(ValueError, match=rf"needs '{name}' (of the shape \(\d,\)|as one vector); here it has"):
        Guard((Signal(name, shape),), OUTPUTS, Envelope(**rule))


def test_a_speed_has_as_many_axes_as_the_robot_tells():
    inputs = (Signal("linear_velocity", (2,)),)
    guard = Guard(inputs, OUTPUTS, Envelope(max_speed=1.0))
    for speed, verdict in (([0.6, 0.6], PASS), ([0.9, 0.9], SAFE)):
        guard.screen({"linear_velocity": np.array([speed], np.float32)}, {"linear_velocity": 0.0})
        guard.filter(command())
        assert guard.verdict[0] == verdict


BATTERY = Signal("battery_voltage", (1,), "V", max_age=2.0)


def test_an_empty_battery_stops_when_it_stays_empty():
    guard = Guard(INPUTS, OUTPUTS, Envelope(min_voltage=3.2, low_voltage_steps=3), offered=(*INPUTS, BATTERY))
    for volts in (3.1, 3.1, 3.3, 3.1, 3.1):
        tick(guard, level() | {"battery_voltage": np.array([[volts]], np.float32)}, FRESH | {"battery_voltage": 1.0})
        assert reason(guard) == "none"
    assert guard.complaint() == "low battery"
    tick(guard, level() | {"battery_voltage": np.array([[3.1]], np.float32)}, FRESH | {"battery_voltage": 1.0})
    assert reason(guard) == "low battery"


def test_a_battery_that_is_not_heard_of_counts_as_stale():
    guard = Guard(INPUTS, OUTPUTS, Envelope(min_voltage=3.2, hold_steps=0), offered=(*INPUTS, BATTERY))
    tick(guard)
    assert reason(guard) == "stale signal"
    assert guard.complaint() == "stale signal: battery_voltage"


def test_a_human_goes_before_policy_and_guard_but_not_before_the_emergency_stop():
    guard = guard_of(max_tilt=60.0)
    tick(guard)
    guard.screen(level() | {"rotation": np.zeros((1, 9), np.float32)}, FRESH)
    guard.filter(command())
    assert reason(guard) == "tilt"
    theirs = {"motor": np.array([[0.2, 7.0]]), "gripper": np.array([[0.2]])}
    np.testing.assert_array_equal(guard.filter(command(), theirs)["motor"], np.array([[0.2, 1.0]], np.float32))
    assert guard.verdict[0] == OVERRIDE
    np.testing.assert_array_equal(guard.filter(command())["motor"], np.zeros((1, 2)))  # given back: still stopped
    for broken in ({"motor": np.full((1, 2), np.nan), "gripper": theirs["gripper"]}, {}, {"motor": np.zeros((3, 2))}):
        np.testing.assert_array_equal(guard.filter(command(), broken)["motor"], np.zeros((1, 2)))
    guard.reset(1)
    guard.stop()
    np.testing.assert_array_equal(guard.filter(command(), theirs)["motor"], np.zeros((1, 2)))


def test_after_an_override_commands_change_no_faster_than_allowed():
    guard = guard_of(max_change=0.1)
    theirs = {"motor": np.zeros((1, 2)), "gripper": np.array([[0.3]])}
    guard.screen(level(), FRESH)
    guard.filter(command(), theirs)
    np.testing.assert_allclose(tick(guard, sent=command(motor=0.9))["motor"], 0.1, rtol=1e-6)


def test_the_safe_command_is_configurable():
    guard = guard_of(safe={"motor": (0.2, 0.3)})
    guard.stop()
    sent = tick(guard)
    np.testing.assert_array_equal(sent["motor"], np.array([[0.2, 0.3]], np.float32))
    np.testing.assert_array_equal(sent["gripper"], np.array([[0.1]], np.float32))  # nearest to zero
    assert guard.safe_command().keys() == sent.keys()


@pytest.mark.parametrize(
    ("envelope", "message"),
    [
        ({"hold_steps": -1}, "hold_steps must not be negative"),
        ({"fence_low": (0, 0, 0)}, "needs both fence_low and fence_high"),
        ({"fence_low": (0, 0, 0), "fence_high": (1, 0, 1)}, "must be below fence_high"),
        ({"max_tilt": 0.0}, "max_tilt must be positive"),
        ({"max_speed": math.nan}, "max_speed must be positive"),
        ({"missed_in_a_row": 0}, "missed_in_a_row must be positive"),
        ({"safe": {"motor": (0.2, 1.3)}}, r"safe 'motor' .* numbers in \[0, 1\]"),
        ({"safe": {"motor": (0.2,)}}, r"safe 'motor' .* is not \(2,\)"),
        ({"safe": {"motor": (0.2, math.nan)}}, "safe 'motor'"),
        ({"safe": {"rotor": (0.2,)}}, "names the command 'rotor'; there are: motor, gripper"),
    ],
)
def test_senseless_envelopes_are_refused(envelope, message):
    with pytest.raises(ValueError, match=message):
        guard_of(**envelope)


def test_a_rule_on_an_unread_signal_is_refused():
    with pytest.raises(ValueError, match="max_tilt needs the signal 'rotation'; there are: position"):
        Guard(INPUTS[:1], OUTPUTS, Envelope(max_tilt=60.0))


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 3)), np.zeros(3), np.array([["a", "b", "c"]]), np.array([[1, None, {}]], object), [[0.0], [1.0, 2.0]],
     np.zeros((1, 3), complex), "far", 7.0],
)  # fmt: skip
def test_a_malformed_signal_is_bridged_like_a_missing_one(value):
    guard = guard_of(hold_steps=2)
    first = tick(guard)
    for _ in range(2):
        np.testing.assert_array_equal(tick(guard, {**level(), "position": value})["motor"], first["motor"])
        assert guard.verdict[0] == HOLD
        assert guard.complaint() == "malformed signal: position"
    tick(guard, {**level(), "position": value})
    assert REASONS[guard.latched[0]] == "malformed signal"


def test_a_number_beyond_float32_is_bridged_and_forgotten():
    guard = guard_of()
    tick(guard)
    signals = guard.screen({**level(), "position": np.full((1, 3), 1e39)}, {s.name: 0.0 for s in INPUTS})
    assert np.isfinite(signals["position"].astype(np.float32)).all()
    assert guard.complaint() == "non-finite signal: position"
    guard.filter(command())
    tick(guard)
    assert guard.verdict[0] == PASS


@pytest.mark.parametrize("motor", [np.zeros((1, 3)), None, "full", np.array([[None, 1]], object)])
def test_a_malformed_command_is_bridged(motor):
    guard = guard_of()
    first = tick(guard)
    sent = tick(guard, sent={**command(), "motor": motor})
    np.testing.assert_array_equal(sent["motor"], first["motor"])
    assert guard.interventions() == {"non-finite command": 1}


def test_a_command_is_judged_by_the_age_of_its_signals_when_it_is_sent():
    guard = guard_of()
    first = tick(guard)
    ages = {s.name: 0.5 * s.max_age for s in INPUTS}
    for elapsed, verdict in ((0.02, PASS), (0.03, HOLD), (10.0, HOLD)):
        guard.screen(level(), ages)
        sent = guard.filter({name: 0.5 * value for name, value in command().items()}, elapsed=elapsed)
        assert guard.verdict[0] == verdict
    np.testing.assert_array_equal(sent["motor"], 0.5 * first["motor"])
    assert guard.interventions() == {"stale signal": 2}


ANY = st.floats(allow_nan=True, allow_infinity=True)
N = 3


@st.composite
def ticks(draw):
    """One control step of anything: signals, ages, commands, a late step, the emergency stop."""
    signals = level(N)
    for name in draw(st.sets(st.sampled_from([s.name for s in INPUTS]))):
        shape = signals[name].shape
        signals[name] = draw(hnp.arrays(np.float64, shape, elements=ANY)).astype(np.float32)
    age = {s.name: draw(st.sampled_from([0.0, 0.0, 0.0, 1.0, math.nan])) for s in INPUTS}
    sent = command(N)
    if draw(st.booleans()):
        sent = {s.name: draw(hnp.arrays(np.float64, (N, *s.shape), elements=ANY)) for s in OUTPUTS}
    return signals, age, sent, draw(st.booleans()), draw(st.integers(0, 30)) == 0


@given(
    st.lists(ticks(), min_size=1, max_size=12),
    st.integers(0, 3),
    st.sampled_from([None, 0.01, 0.5]),
    st.sampled_from([None, 30.0]),
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_whatever_comes_in_what_goes_out_is_finite_and_within_limits(sequence, hold_steps, max_change, max_tilt):
    guard = guard_of(N, hold_steps=hold_steps, max_change=max_change, max_tilt=max_tilt, missed_in_a_row=4)
    stopped = np.zeros(N, bool)
    for signals, age, sent, late, emergency in sequence:
        guard.tick(0.0, late)
        if emergency:
            guard.stop()
        clean = guard.screen(signals, age)
        assert all(np.isfinite(value).all() for value in clean.values())
        out = guard.filter(sent)
        for s in OUTPUTS:
            assert out[s.name].shape == (N, *s.shape)
            assert np.isfinite(out[s.name]).all()
            assert (out[s.name] >= np.float32(s.low)).all()
            assert (out[s.name] <= np.float32(s.high)).all()
        stopped |= guard.verdict == SAFE
        assert (guard.verdict[stopped] == SAFE).all()  # once stopped, always stopped
        np.testing.assert_array_equal(out["motor"][stopped], 0.0)
