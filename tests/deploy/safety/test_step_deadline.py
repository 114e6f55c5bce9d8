"""A policy whose step does not come back, fails or answers too late loses the robot, not the robot its life."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from deploy.drivers.simulated import Simulated
from deploy.guard import LANDING, PASS, REASONS, SAFE, STAYING
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.safety.ladder import OFF
from deploy.safety.limits import guard_of, limits_of
from deploy.safety.watch import LeftBehindError, Watch, await_call
from sim.tasks import make

pytestmark = [pytest.mark.timed, pytest.mark.waits]

AT = 30


class Spoilt:
    """A policy that does something else at control step AT."""

    def __init__(self, policy, spoil):
        self._policy, self._spoil, self._steps = policy, spoil, -21  # its rehearsal

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def step(self, signals):
        self._steps += 1
        if self._steps > AT:
            self._spoil()
        return self._policy.step(signals)


@pytest.fixture
def policy():
    return PolicyFile.load("quad_any")


@pytest.fixture
def driver():
    task = make("quad_any", robot="crazyflie", path="hold", tilt=10.0, velocity=0.1)
    made = Simulated(task, seed=1, real_time=True)
    made.sent, made.sent_at, made.verdicts, made.stops = [], [], [], []
    write, stop = made.write, made.stop

    def noted(commands):
        made.sent.append(commands["motor_command"].copy())
        made.sent_at.append(time.monotonic())
        write(commands)

    made.write, made.stop = noted, lambda: (made.stops.append(threading.current_thread()), stop())
    return made


def fly(policy, driver, steps):
    guard = guard_of(policy, driver, limits_of("crazyflie"), policy.envelope)
    screen = guard.screen

    def noted(*arguments):
        driver.verdicts.append(guard.verdict[0])
        return screen(*arguments)

    guard.screen = noted
    return run(policy, driver, guard, steps), guard


def test_a_step_that_never_returns_is_left_behind_and_the_robot_is_braked_and_landed(policy, driver):
    hangs = threading.Event()
    record, guard = fly(Spoilt(policy, hangs.wait), driver, 550)
    assert REASONS[record.stopped[0]] == "policy late"
    assert record.left_behind
    assert record.steps == 550
    pause = np.diff(driver.sent_at).max()
    assert 0.1 < pause < 1.0  # 0.1 s of patience; the rest is the machine's
    assert STAYING in driver.verdicts
    assert LANDING in driver.verdicts
    assert guard.ladder.rung[0] == OFF
    assert len(driver.stops) == 1
    before = len(driver.sent)
    hangs.set()  # it comes back after all: nobody listens
    time.sleep(0.1)
    assert len(driver.sent) == before
    assert len(driver.stops) == 1


@pytest.mark.parametrize("error", [RuntimeError("cuda"), MemoryError(), OSError("the server is gone"), StopIteration()])
def test_a_policy_that_raises_is_replaced(policy, driver, error):
    def fail():
        raise error

    record, _guard = fly(Spoilt(policy, fail), driver, 60)
    assert REASONS[record.stopped[0]] == "policy failed"
    assert record.trouble == f"{type(error).__name__}: {error}"
    assert record.steps == 60
    assert np.isfinite(driver.sent).all()
    assert driver.sent[-1].any()  # it hovers, on the first rung


def test_a_policy_that_fails_once_flies_on(policy, driver):
    failed = []

    def fail_once():
        if not failed:
            failed.append(1)
            raise RuntimeError("a hiccup")

    record, _guard = fly(Spoilt(policy, fail_once), driver, 60)
    assert record.interventions == {"policy failed": 1}
    assert driver.verdicts[-1] == PASS
    np.testing.assert_array_equal(driver.sent[AT], driver.sent[AT - 1])


def test_a_late_command_is_not_sent(policy, driver):
    """Slower than a signal may be old, and quicker than the patience with a step."""
    read, ages = driver.read, []

    def older():
        reading = read()
        ages.append(1)
        return replace(reading, age=dict.fromkeys(reading.age, 0.06))

    driver.read = older
    record, _guard = fly(Spoilt(policy, lambda: time.sleep(0.05)), driver, AT + 3)
    assert "stale signal" in record.interventions
    np.testing.assert_array_equal(driver.sent[AT], driver.sent[AT - 1])


def test_what_a_driver_raises_passes_through_the_control_thread(policy, driver):
    def lost():
        raise ConnectionError("radio lost")

    driver.read = lost
    with pytest.raises(ConnectionError, match="radio lost"):
        fly(policy, driver, 10)
    assert len(driver.stops) == 1


def test_whoever_comes_back_too_late_is_told_so():
    now = [0.0]
    watch = Watch(0.1, lambda: now[0])
    watch.begin()
    now[0] = 0.09
    assert not watch.overdue()
    watch.end()
    now[0] = 5.0
    assert not watch.overdue()  # nobody computes
    watch.begin()
    now[0] = 5.11
    assert watch.overdue()
    with pytest.raises(LeftBehindError):
        watch.end()


def test_ctrl_c_reaches_a_process_whose_policy_computes_in_c():
    program = """
import ctypes, signal
from deploy.safety.watch import await_call
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    await_call(lambda: (print("ready", flush=True), ctypes.CDLL(None).sleep(60)))
except KeyboardInterrupt:
    print("ended", flush=True)
"""
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        process.send_signal(number)
        out, _ = process.communicate(timeout=50)
        assert out == "ended\n"
        assert time.monotonic() - began < 30.0  # of 60


@pytest.mark.parametrize("slow", ["step", "read"])
def test_nothing_is_written_once_an_interrupted_flight_has_stopped_its_driver(policy, driver, slow):
    """A step, or a driver, that takes longer than the patience with an interrupt."""
    stopped, late = threading.Event(), []
    write, stop, read, main = driver.write, driver.stop, driver.read, threading.main_thread()

    def pause():
        signal.pthread_kill(main.ident, signal.SIGINT)
        time.sleep(1.6)

    driver.stop = lambda: (stop(), stopped.set())
    driver.write = lambda commands: (late.append(stopped.is_set()), write(commands))
    if slow == "read":
        driver.read = lambda: (pause() if len(late) == AT else None, read())[1]
    flown = Spoilt(policy, lambda: pause() if len(late) == AT else None) if slow == "step" else policy
    driver.lands = True  # without a fallback that takes over meanwhile
    guard = guard_of(policy, driver, limits_of("crazyflie"), policy.envelope)
    record = run(flown, driver, guard, 300)
    assert record.interrupted
    assert stopped.is_set()
    time.sleep(1.0)
    assert not any(late)


def test_no_thread_flies_on_when_the_one_that_watches_it_has_failed(policy, driver, monkeypatch):
    """Its driver is stopped then: what came after that had been written, too."""
    stopped, late = threading.Event(), []
    write, stop = driver.write, driver.stop

    def fails(self):
        if len(late) >= AT:
            raise RuntimeError("of the watching thread")
        return False

    monkeypatch.setattr(Watch, "overdue", fails)
    driver.stop = lambda: (stop(), stopped.set(), time.sleep(0.5))
    driver.write = lambda commands: (late.append(stopped.is_set()), write(commands))
    with pytest.raises(RuntimeError, match="of the watching thread"):
        fly(policy, driver, 1000)
    assert stopped.is_set() and len(late) >= AT and not any(late)


def test_a_call_that_is_waited_for_has_its_callers_priority():
    found = []
    await_call(lambda: found.append((os.sched_getscheduler(0), threading.current_thread())))
    assert found[0][0] == os.sched_getscheduler(0)
    assert found[0][1] is not threading.current_thread()


def test_without_a_ladder_the_safe_command_is_sent_instead(policy, driver):
    hangs = threading.Event()
    driver.lands = True
    record, _guard = fly(Spoilt(policy, hangs.wait), driver, AT + 40)
    hangs.set()
    assert REASONS[record.stopped[0]] == "policy late"
    assert not np.array(driver.sent[AT:]).any()
    assert driver.verdicts[-1] == SAFE
