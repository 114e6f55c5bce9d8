import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from deploy.drivers import Reading
from deploy.guard import REASONS, Guard
from deploy.loop import HandshakeError, handshake, run
from deploy.safety.envelope import Envelope
from deploy.teleop.instruction import Instructed
from sim.spec import Signal
from tests.deploy.sample_policy import exported, small


class Clock:
    """Time that passes only when told to."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def __call__(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        assert seconds > 0.0
        self.slept.append(seconds)
        self.now += seconds


class Bench:
    """A driver that offers what `small()` needs, and writes down what happens."""

    Config: ClassVar[type] = dataclass(type("Config", (), {}))
    done = False

    def __init__(self, controller, num=1, steps: int | None = 10, real_time=False):
        self.signals, self.commands = controller.inputs, controller.outputs
        self.robot, self.rate_hz, self.num, self.steps, self.real_time = "bench", 50.0, num, steps, real_time
        self.events: list[str] = []
        self.sent: list[Any] = []
        self.on_read = lambda: None
        self.age = {s.name: 0.0 for s in self.signals}

    @classmethod
    def from_config(cls, config, policy):
        raise NotImplementedError

    def __enter__(self):
        self.connect()
        return self

    def __exit__(self, *error):
        self.stop()

    def connect(self):
        self.events.append("connect")

    def read(self):
        self.on_read()
        return Reading({s.name: np.ones((self.num, *s.shape), np.float32) for s in self.signals}, self.age)

    def write(self, commands):
        self.sent.append(commands)

    def stop(self):
        self.events.append("stop")

    def report(self):
        return []


@pytest.fixture
def policy(tmp_path):
    return exported(tmp_path / "p.onnx")


def changed(group, which, **fields):
    return tuple(replace(s, **fields) if s.name == which else s for s in group)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"robot": "arm"}, "the policy is for the robot 'bench', the driver has 'arm'"),
        ({"rate_hz": 100.0}, "the policy runs at 50 Hz, the driver at 100 Hz"),
        (
            {"signals": changed(small().inputs, "rate", name="gyro")},
            "signal 'rate': the driver has none; it has: near, ",
        ),
        (
            {"signals": changed(small().inputs, "rate", shape=(3,))},
            r"'rate': shape is \(2,\) in the policy, \(3,\) in the",
        ),
        (
            {"signals": changed(small().inputs, "rate", unit="deg/s")},
            "'rate': unit is 'rad/s' in the policy, 'deg/s' in",
        ),
        (
            {"signals": changed(small().inputs, "rate", frame="world")},
            "'rate': frame is 'body' in the policy, 'world' in",
        ),
        (
            {"commands": changed(small().outputs, "left", unit="1")},
            "command 'left': unit is 'rad' in the policy, '1' in",
        ),
        ({"commands": changed(small().outputs, "left", shape=(1,))}, "command 'left': shape is"),
        (
            {"commands": changed(small().outputs, "left", high=0.9)},
            r"'left': \[-3, 1\] of the policy is not within \[-3, 0.9\]",
        ),
        ({"commands": changed(small().outputs, "left", low=-2.9)}, r"is not within \[-2.9, 1\] of the driver"),
        ({"commands": changed(small().outputs, "left", name="up")}, "command 'left': the driver has none"),
        ({"commands": changed(small().outputs, "left", name="up")}, "command 'up': the driver needs it"),
    ],
)
def test_the_handshake_refuses_before_anything_moves(policy, change, message):
    driver = Bench(small())
    vars(driver).update(change)
    with pytest.raises(HandshakeError, match=message):
        run(policy, driver)
    assert driver.events == []
    assert driver.sent == []


def test_the_handshake_lists_every_difference(policy):
    driver = Bench(small())
    driver.rate_hz, driver.robot = 10.0, "arm"
    with pytest.raises(HandshakeError, match=r"robot.*; .*10 Hz"):
        handshake(policy, driver)
    driver.rate_hz = 50.0
    handshake(policy, driver, transfer=True)


def test_a_driver_may_offer_more_in_another_order(policy):
    driver = Bench(small())
    driver.signals = (replace(driver.signals[0], name="extra"), *reversed(driver.signals))
    driver.age = {s.name: 0.0 for s in driver.signals}
    assert run(policy, driver).interventions == {}


def test_the_loop_sends_what_the_policy_says(policy):
    controller = small()
    driver = Bench(controller, num=3, steps=4)
    record = run(policy, driver)
    assert (record.steps, record.missed, record.interrupted, len(driver.sent)) == (4, 0, False, 4)
    assert driver.events == ["connect", "stop"]
    state = controller.initial_state(3)
    for sent in driver.sent:
        want, state = controller.act({s.name: np.ones((3, *s.shape), np.float32) for s in controller.inputs}, state)
        np.testing.assert_allclose(sent["left"], want["left"], atol=1e-5)


def test_every_run_begins_anew(policy):
    driver = Bench(small(), steps=3)
    run(policy, driver)
    first, driver.sent = driver.sent, []
    run(policy, driver)
    np.testing.assert_array_equal(first[0]["left"], driver.sent[0]["left"])


def test_a_simulation_never_waits(policy):
    clock = Clock()
    run(policy, Bench(small(), steps=50), clock=clock, sleep=clock.sleep)
    assert clock.slept == []


def test_deadlines_are_absolute_and_do_not_drift(policy):
    clock = Clock()
    driver = Bench(small(), steps=100, real_time=True)
    began = []

    def work():
        began.append(clock.now)
        clock.now += 0.004 + 0.003 * (len(began) % 3)  # uneven, but within the 20 ms

    driver.on_read = work
    record = run(policy, driver, clock=clock, sleep=clock.sleep)
    assert record.missed == 0
    np.testing.assert_allclose(np.array(began) - began[0], 0.02 * np.arange(100), atol=20e-6)


def test_missed_deadlines_are_counted_and_not_caught_up_in_a_burst(policy):
    clock = Clock()
    driver = Bench(small(), steps=20, real_time=True)
    began = []

    def work():
        began.append(clock.now)
        clock.now += 0.065 if len(began) == 5 else 0.001

    driver.on_read = work
    record = run(policy, driver, clock=clock, sleep=clock.sleep)
    assert record.missed == 1
    assert record.late == pytest.approx([0.045], abs=1e-4)
    assert np.diff(began).max() == pytest.approx(0.065, abs=1e-4)
    assert np.diff(began).min() > 0.0199


def test_a_machine_that_is_always_late_stops_the_robot(policy):
    clock = Clock()
    driver = Bench(small(), steps=30, real_time=True)

    def work():
        clock.now += 0.03

    driver.on_read = work
    guard = Guard(policy.inputs, policy.outputs, Envelope(missed_in_a_row=5))
    record = run(policy, driver, guard, clock=clock, sleep=clock.sleep)
    assert record.missed == 30
    assert REASONS[record.stopped[0]] == "deadlines missed"
    np.testing.assert_array_equal(driver.sent[-1]["left"], np.zeros((1, 2)))
    assert np.abs(driver.sent[0]["left"]).max() > 0.0


def test_a_policy_that_is_too_slow_never_takes_off(policy, monkeypatch):
    clock = Clock()
    step = policy.step

    def slow(signals):
        clock.now += 0.021
        return step(signals)

    monkeypatch.setattr(policy, "step", slow)
    driver = Bench(small(), real_time=True)
    with pytest.raises(HandshakeError, match=r"a step takes 21.00 ms on this machine, its period is 20.00 ms"):
        run(policy, driver, clock=clock, sleep=clock.sleep)
    assert driver.events == []


def test_a_stale_sensor_ends_in_the_safe_command(policy):
    driver = Bench(small(), steps=12)
    driver.on_read = lambda: driver.age.update(near=1.0) if len(driver.sent) == 3 else None
    record = run(policy, driver)
    assert record.interventions == {"stale signal": 9}
    for held in driver.sent[3:8]:
        np.testing.assert_array_equal(held["left"], driver.sent[2]["left"])
    for safe in driver.sent[8:]:
        np.testing.assert_array_equal(safe["left"], np.zeros((1, 2)))


def test_a_nan_sensor_never_reaches_the_policy(policy):
    driver = Bench(small(), steps=3)
    read = driver.read

    def broken():
        reading = read()
        reading.signals["rate"][:] = np.nan
        return reading

    driver.read = broken
    record = run(policy, driver)
    assert record.interventions == {"non-finite signal": 3}
    assert all(np.isfinite(sent["left"]).all() for sent in driver.sent)


def test_ctrl_c_stops_the_driver_and_is_noted(policy):
    driver = Bench(small(), steps=None)

    def interrupt():
        if len(driver.sent) == 5:
            raise KeyboardInterrupt

    driver.on_read = interrupt
    record = run(policy, driver)
    assert record.interrupted
    assert record.steps == 5
    assert driver.events == ["connect", "stop"]


def test_an_error_stops_the_driver_and_passes_through(policy):
    driver = Bench(small())

    def fail():
        raise ConnectionError("radio lost")

    driver.on_read = fail
    with pytest.raises(ConnectionError, match="radio lost"):
        run(policy, driver)
    assert driver.events == ["connect", "stop"]


def test_a_pressed_emergency_stop_prevents_the_flight(policy):
    driver = Bench(small())
    guard = Guard(policy.inputs, policy.outputs)
    guard.stop()
    with pytest.raises(HandshakeError, match="emergency stop is pressed"):
        run(policy, driver, guard)
    assert driver.events == []


def test_steps_override_the_drivers(policy):
    driver = Bench(small(), steps=10)
    assert run(policy, driver, steps=4).steps == 4


def test_the_flight_ends_when_the_driver_is_done(policy):
    driver = Bench(small(), steps=None)
    driver.write = lambda commands: setattr(driver, "done", len(driver.sent) >= 3) or driver.sent.append(commands)
    record = run(policy, driver)
    assert record.steps == len(driver.sent) == 4
    assert driver.events == ["connect", "stop"]


def test_control_begins_only_after_a_while_of_good_signals(policy):
    driver, clock = Bench(small(), real_time=True, steps=2), Clock()
    good = dict(driver.age)

    def recovers():
        driver.age = good | ({"near": 1.0} if clock.now < 101.0 else {})

    driver.on_read = recovers
    record = run(policy, driver, settle=1.0, clock=clock, sleep=clock.sleep)
    assert clock.now >= 102.0
    assert record.steps == 2
    assert record.interventions == {}


def test_a_robot_that_does_not_become_ready_is_not_flown(policy):
    driver, clock = Bench(small(), real_time=True, steps=2), Clock()
    driver.age = driver.age | {"near": 1.0}
    with pytest.raises(HandshakeError, match="not ready to fly: stale signal: near"):
        run(policy, driver, settle=1.0, clock=clock, sleep=clock.sleep)
    assert driver.sent == []
    assert driver.events == ["connect", "stop"]


def test_a_frozen_process_does_not_fly_on(policy):
    driver, clock = Bench(small(), real_time=True, steps=20), Clock()
    reads = []
    driver.on_read = lambda: reads.append(clock.now) or setattr(clock, "now", clock.now + 1.0 * (len(reads) == 10))
    record = run(policy, driver, clock=clock, sleep=clock.sleep)
    assert REASONS[record.stopped[0]] == "clock jump"
    assert all((sent["left"] == 0.0).all() for sent in driver.sent[10:])


def test_lateness_of_every_step_is_known(policy):
    driver, clock = Bench(small(), real_time=True, steps=20), Clock()
    record = run(policy, driver, clock=clock, sleep=clock.sleep)
    assert len(record.lateness) == 20
    assert 0.0 <= min(record.lateness) <= max(record.lateness) < 1e-5


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_driver_that_hands_back_gets_no_command_once_its_robot_is_stopped(policy, wrapped):
    driver = Bench(small())
    driver.hand_back = lambda: driver.sent.append("handed back")
    steps = iter(range(10))
    driver.on_read = lambda: driver.age.update(near=math.inf if next(steps) >= 3 else 0.0)
    flown = Instructed(driver, Signal("told", (1,)), np.zeros(1, np.int64)) if wrapped else driver
    record = run(policy, flown, Guard(policy.inputs, policy.outputs, Envelope(hold_steps=2)))
    assert REASONS[record.stopped[0]] == "stale signal"
    assert [sent == "handed back" for sent in driver.sent] == [False] * 5 + [True] * 5
