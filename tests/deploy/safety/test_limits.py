"""What a robot permits stands with the robot: a policy file can ask for less, never for more."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.drivers.simulated import Simulated
from deploy.guard import REASONS
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import Envelope
from deploy.safety.limits import LimitError, describe, guard_of, limits_of, tightened
from sim.robots import LISTED
from sim.tasks import make

LAX = Envelope(hold_steps=10**9, missed_in_a_row=None, missed_of_100=None, longest_pause=None, max_body_rate=None)
FULL = {"motor_command": (1.0, 1.0, 1.0, 1.0)}


@pytest.fixture(scope="module")
def policy():
    return PolicyFile.load("quad_any")


@pytest.fixture(scope="module")
def driver():
    return Simulated(make("quad_any", robot="crazyflie", path="hold"))


class Asking:
    """A policy file that asks for more than its robot permits."""

    def __init__(self, policy, envelope, max_age=0.1):
        self._policy, self.envelope = policy, envelope
        self.inputs = tuple(replace(s, max_age=max_age, low=-np.inf, high=np.inf) for s in policy.inputs)

    def __getattr__(self, name):
        return getattr(self._policy, name)


def test_a_file_that_switches_every_rule_off_flies_under_the_robots(policy, driver):
    asking = Asking(policy, LAX, max_age=1e9)
    guard = guard_of(asking, driver, limits_of("crazyflie"), asking.envelope)
    rules, own = guard.envelope, Envelope()
    assert (rules.hold_steps, rules.missed_in_a_row, rules.missed_of_100) == (5, 10, 50)
    assert (rules.longest_pause, rules.max_body_rate) == (own.longest_pause, 35.0)
    ages = {s.name: s.max_age for s in guard.watched}
    assert ages["position"] == 0.1
    assert ages["target_position"] == 1.0
    assert guard.watched[1].high == driver.signals[1].high


def test_full_throttle_is_no_safe_command(policy, driver):
    with pytest.raises(LimitError, match=r"calls motor_command \(1\.0, 1\.0, 1\.0, 1\.0\) safe; crazyflie .* permits"):
        guard_of(policy, driver, limits_of("crazyflie"), replace(LAX, safe=FULL))
    with pytest.raises(LimitError, match="nobody lists this robot.* permits: what is nearest to zero"):
        guard_of(policy, driver, limits_of("my_drone"), replace(LAX, safe=FULL))
    guard = guard_of(policy, driver, limits_of("my_drone"), replace(LAX, safe={"motor_command": (0.0,) * 4}))
    assert not guard.safe_command()["motor_command"].any()


def test_a_file_may_be_stricter(policy, driver):
    strict = Envelope(hold_steps=1, max_body_rate=10.0, max_tilt=60.0, fence_low=(-1.0,) * 3, fence_high=(1.0,) * 3)
    guard = guard_of(policy, driver, limits_of("crazyflie"), strict)
    assert replace(guard.envelope, safe={}) == strict
    np.testing.assert_array_equal(guard.ladder.fence, [[-1.0] * 3, [1.0] * 3])


def test_the_owners_file_bounds_commands_and_rules(policy, driver, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "max_speed = 2.0\nfence_low = [-1, -1, 0]\nfence_high = [1, 1, 2]\n"
        "[commands.motor_command]\nlow = 0.1\nhigh = 0.6\nsafe = [[0.1, 0.1, 0.1, 0.1]]\n"
    )
    limits = limits_of("crazyflie", str(path))
    guard = guard_of(policy, driver, limits, replace(policy.envelope, fence_low=(-9.0,) * 3, fence_high=(1.5,) * 3))
    assert guard.envelope.max_speed == 2.0
    assert (guard.envelope.fence_low, guard.envelope.fence_high) == ((-1.0, -1.0, 0.0), (1.0, 1.0, 1.5))
    np.testing.assert_array_equal(guard.safe_command()["motor_command"], np.full((1, 4), 0.1, np.float32))
    guard.screen({s.name: np.zeros((1, *s.shape)) for s in policy.inputs}, {s.name: 0.0 for s in policy.inputs})
    sent = guard.filter({"motor_command": np.array([[0.0, 0.5, 0.9, 1.0]])})["motor_command"]
    np.testing.assert_array_equal(sent, np.array([[0.1, 0.5, 0.6, 0.6]], np.float32))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_sped = 2", "unknown rule max_sped; rules: fence_high"),
        ("max_speed = -1", "max_speed must be positive"),
        ("max_speed = 'fast'", "max_speed"),
        ("hold_steps = [1]", "hold_steps"),
        ("fence_low = [0, 0, 0]", "needs both fence_low and fence_high"),
        ("fence_low = 3\nfence_high = 4", "fence"),
        ("max_speed = ", "not TOML"),
        ("[commands]\nmotor_command = 3", "commands.motor_command"),
        ("[commands.motor_command]\nlow = 'a'", "commands.motor_command"),
        ("[commands.motor_command]\nsafe = [3]", "commands.motor_command"),
        ("commands = 7", "commands"),
        ("[commands.motor_command]\nhigh = nan", "low -inf must be below high nan"),
        ("safe = {motor_command = [1, 1, 1, 1]}", "unknown rule safe"),
    ],
)
def test_senseless_limits_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(LimitError, match=message) as caught:
        limits_of("crazyflie", str(path))
    assert str(path) in str(caught.value)


def test_what_is_off_is_said(policy, driver):
    limits = limits_of("crazyflie")
    lines = describe(limits, guard_of(policy, driver, limits, policy.envelope))
    assert lines[0].startswith("limits of crazyflie (listed with the robot): body rate 35 rad/s")
    assert lines[0].endswith("then hold, land, off")
    assert lines[1] == "rules that are off: geofence, tilt, speed, battery, slew"


@pytest.mark.parametrize("robot", LISTED)
def test_every_listed_robot_has_limits(robot):
    limits = limits_of(robot)
    assert limits.safe
    assert limits.source == "listed with the robot"


NUMBER = st.one_of(st.none(), st.floats(1e-3, 1e9))
COUNT = st.one_of(st.none(), st.integers(1, 10**9))
WALL = st.floats(-1e3, 1e3)


@st.composite
def envelopes(draw):
    low = draw(st.one_of(st.none(), st.tuples(WALL, WALL, WALL)))
    return Envelope(
        hold_steps=draw(st.integers(0, 10**9)),
        missed_in_a_row=draw(COUNT),
        missed_of_100=draw(COUNT),
        longest_pause=draw(NUMBER),
        fence_low=low,
        fence_high=None if low is None else tuple(v + 5e3 for v in low),
        max_tilt=draw(NUMBER),
        max_speed=draw(NUMBER),
        max_body_rate=draw(NUMBER),
        max_change=draw(NUMBER),
        min_voltage=draw(NUMBER),
    )


def at_most(value, limit):
    return limit is None or (value is not None and value <= limit)


@given(envelopes(), envelopes())
def test_the_stricter_of_two_is_never_laxer_than_either(one, other):
    for made in (tightened(one, other), tightened(other, one)):
        for given_ in (one, other):
            for rule in ("missed_in_a_row", "missed_of_100", "longest_pause", "max_tilt", "max_speed", "max_body_rate"):
                assert at_most(getattr(made, rule), getattr(given_, rule))
            assert made.hold_steps <= given_.hold_steps
            assert given_.min_voltage is None or made.min_voltage >= given_.min_voltage
            if given_.fence_low is not None:
                assert (np.array(made.fence_low) >= given_.fence_low).all()
                assert (np.array(made.fence_high) <= given_.fence_high).all()


def narrowed(policy, low, high, safe=None):
    """The policy of a file that says its commands go no further than this."""
    wild = Asking(policy, replace(LAX, safe={} if safe is None else {"motor_command": (safe,) * 4}))
    wild.outputs = tuple(replace(s, low=low, high=high) for s in policy.outputs)
    return wild


def test_a_narrow_range_makes_no_throttle_safe_and_does_not_tie_the_fallback(policy, driver):
    limits = limits_of("crazyflie")
    with pytest.raises(LimitError, match="calls motor_command"):
        guard_of(narrowed(policy, 0.99, 1.0, 0.99), driver, limits, narrowed(policy, 0.99, 1.0, 0.99).envelope)
    for low, high in ((0.99, 1.0), (0.0, 0.1)):
        wild = narrowed(policy, low, high)
        guard = guard_of(wild, driver, limits, wild.envelope)
        assert not guard.safe_command()["motor_command"].any()
        signals = {s.name: np.zeros((1, *s.shape), np.float32) for s in driver.signals}
        signals["rotation"][:] = np.eye(3).reshape(9)
        signals["position"][:] = 1.0
        for step in range(12):
            guard.screen(signals, dict.fromkeys(signals, 0.0))
            sent = guard.filter({"motor_command": np.full((1, 4), low if step < 4 else np.nan)})["motor_command"]
        assert (sent > high).any() if high < 0.5 else (sent < low).any()  # the fallback flies
        guard.stop()
        guard.screen(signals, dict.fromkeys(signals, 0.0))
        assert not guard.filter({"motor_command": np.full((1, 4), low)})["motor_command"].any()
        assert REASONS[guard.latched[0]] == "emergency stop"


def test_a_robot_that_nobody_lists_needs_a_zero(policy, driver):
    wild = narrowed(policy, 0.5, 1.0)
    elsewhere = Simulated(make("quad_any", robot="crazyflie", path="hold"))
    elsewhere.commands = wild.outputs
    with pytest.raises(LimitError, match="has no zero to stop it with"):
        guard_of(wild, elsewhere, limits_of("my_drone"), wild.envelope)


def test_a_command_that_the_robot_does_not_have_is_no_limit(policy, driver, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[commands.motor_comand]\nhigh = 0.5\n")
    with pytest.raises(LimitError, match=r"motor_comand: the robot has no such command; it has: motor_command"):
        guard_of(policy, driver, limits_of("crazyflie", str(path)), policy.envelope)
