"""Whoever ends a flight, robots that would fall are landed first; whoever asks twice, ends it at once."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from deploy import loop
from deploy.drivers.simulated import Simulated
from deploy.guard import LANDING, OVERRIDE, PASS, REASONS, SAFE
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.safety.limits import guard_of, limits_of
from deploy.safety.watch import Worker
from sim.tasks import make

pytestmark = [pytest.mark.timed, pytest.mark.waits]

AT = 40  # control steps: until then the policy flies


@pytest.fixture
def policy():
    return PolicyFile.load("quad_any")


@pytest.fixture
def driver():
    task = make("quad_any", robot="crazyflie", path="hold", tilt=10.0, velocity=0.1)
    made = Simulated(task, seed=1, real_time=True)
    made.falls, made.sent, made.verdicts, made.stops = True, [], [], 0
    made.at = lambda: None  # what happens at control step AT
    write, stop, read = made.write, made.stop, made.read

    def noted(commands):
        made.sent.append(commands["motor_command"].copy())
        write(commands)

    def read_or_more():
        if len(made.sent) == AT:
            made.at()
        return read()

    def stopped():
        made.stops += 1
        stop()

    made.write, made.stop, made.read = noted, stopped, read_or_more
    return made


class Clock:
    """Time that passes as the loop sleeps."""

    now = 0.0

    def __call__(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def fly(policy, driver, steps=None):
    guard = guard_of(policy, driver, limits_of("crazyflie"), policy.envelope)
    screen = guard.screen

    def noted(*arguments):
        driver.verdicts.append(int(guard.verdict[0]))
        return screen(*arguments)

    guard.screen, clock = noted, Clock()
    return run(policy, driver, guard, steps, clock=clock, sleep=clock.sleep), guard


def interrupt(patience=0.0):
    """Ctrl-C, from the control thread."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(patience)


def height(driver):
    return float(driver.env.engine.read("position")[0, 2])


def check_landed(record, guard, driver):
    assert REASONS[record.stopped[0]] == "asked to land"
    assert guard.over
    assert driver.stops == 1
    after = driver.verdicts[AT + 2 :]
    assert after and set(after) == {LANDING}
    assert all(command.any() for command in driver.sent[:-1])
    assert not driver.sent[-1].any()
    assert height(driver) == pytest.approx(0.05, abs=0.06)


def test_the_end_of_its_time_lands_it(policy, driver):
    record, guard = fly(policy, driver, AT)
    assert not record.interrupted
    check_landed(record, guard, driver)


def test_a_driver_that_is_done_lands_it(policy, driver):
    driver.at = lambda: setattr(driver, "done", True)
    record, guard = fly(policy, driver)
    check_landed(record, guard, driver)


def test_ctrl_c_lands_it(policy, driver, capfd):
    driver.at = interrupt
    record, guard = fly(policy, driver)
    assert record.interrupted
    assert not record.left_behind
    assert REASONS[record.stopped[0]] == "asked to land"
    assert guard.over and not driver.sent[-1].any()
    assert len(driver.sent) > 2 * AT
    assert "landing; a second Ctrl-C ends the flight at once" in capfd.readouterr().err


def test_a_second_ctrl_c_ends_it_at_once(policy, driver):
    def twice():
        interrupt(0.3)
        interrupt(0.3)

    driver.at = twice
    record, guard = fly(policy, driver)
    assert record.interrupted
    assert not guard.over
    assert len(driver.sent) <= AT + 1
    assert driver.stops == 1


def check_nothing_is_written_after_stop(driver):
    assert driver.stops == 1
    time.sleep(0.8)
    assert len(driver.sent) == driver.sent_at_stop


@pytest.fixture
def counting(driver):
    stop = driver.stop

    def counted():
        driver.sent_at_stop = len(driver.sent)
        stop()

    driver.stop = counted
    return driver


def test_a_second_ctrl_c_while_the_first_is_answered_leaves_no_thread_that_flies_on(policy, counting, monkeypatch):
    def say(text):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.streams, "say", say)
    counting.at = interrupt
    record, guard = fly(policy, counting)
    assert record.interrupted and not guard.over
    check_nothing_is_written_after_stop(counting)


def test_a_second_ctrl_c_while_the_thread_is_waited_for_leaves_no_write_open(policy, counting, monkeypatch):
    finished = loop.Worker.finished

    def interrupted(self, seconds):
        if seconds == loop.PATIENCE_TO_STOP:
            raise KeyboardInterrupt
        return finished(self, seconds)

    monkeypatch.setattr(loop.Worker, "finished", interrupted)
    counting.falls, counting.at = False, lambda: interrupt(0.5)  # in the midst of a control step
    record, _ = fly(policy, counting)
    assert record.interrupted and record.left_behind
    check_nothing_is_written_after_stop(counting)


def test_ctrl_c_while_the_thread_begins_makes_no_second_one(policy, driver, monkeypatch):
    start, write, begun, writers = threading.Thread.start, driver.write, [], set()

    def interrupted(self):
        start(self)
        if self.name == "control loop":
            begun.append(self)
            if len(begun) == 2:  # the first rehearses
                time.sleep(0.2)
                raise KeyboardInterrupt

    def noted(commands):
        writers.add(threading.get_ident())
        write(commands)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    driver.write = noted
    record, _ = fly(policy, driver)
    assert record.interrupted and len(begun) >= 2 and len(writers) == 1 and driver.stops == 1


def test_a_call_is_made_once_however_often_it_is_begun():
    calls, gate = [], threading.Event()
    worker = Worker(lambda: (calls.append(1), gate.wait(5.0)))
    for _ in range(3):
        worker.begin()
    assert not worker.finished(0.1)
    gate.set()
    assert worker.finished(5.0) and worker.finished(0.0) and calls == [1]


def test_ctrl_c_lands_it_also_when_the_policy_was_left_behind(policy, driver):
    hangs, asked = threading.Event(), []

    class Hanging:
        def __getattr__(self, name):
            return getattr(policy, name)

        def step(self, signals):
            if len(driver.sent) > AT // 2:
                hangs.wait(20.0)
            return policy.step(signals)

    def once():
        if not asked:
            asked.append(len(driver.sent))
            raise KeyboardInterrupt

    driver.at = once
    guard = guard_of(policy, driver, limits_of("crazyflie"), policy.envelope)
    record = run(Hanging(), driver, guard)
    hangs.set()
    assert asked == [AT]
    assert record.interrupted
    assert record.left_behind
    assert REASONS[record.stopped[0]] == "policy late"
    assert guard.over and not driver.sent[-1].any()


@pytest.mark.parametrize("why", ["simulated", "own controller", "never flew"])
def test_what_does_not_fall_ends_at_once(policy, driver, why):
    driver.falls, driver.lands = why == "never flew", why == "own controller"
    record, _ = fly(policy, driver, 0 if why == "never flew" else AT)
    assert len(driver.sent) == record.steps == (0 if why == "never flew" else AT)
    assert REASONS[record.stopped[0]] == "none"


def test_somebody_else_who_takes_over_meanwhile_has_it(policy, driver):
    """A human, or an emergency: from then on it does not fall for want of our commands."""
    driver.at = lambda: setattr(driver, "done", True)
    write = driver.write

    def taken(commands):
        write(commands)
        driver.falls = len(driver.sent) < AT + 20

    driver.write = taken
    fly(policy, driver)
    assert len(driver.sent) == AT + 20
    assert driver.sent[-1].any()


def test_a_human_who_lets_go_of_a_robot_that_was_off_has_it_landed_again(policy, driver):
    """It was stopped and lay on the ground; a human took it up by hand."""
    guard = guard_of(policy, driver, limits_of("crazyflie"), policy.envelope)
    guard.reset(1)
    read = {s.name: np.zeros((1, *s.shape), np.float32) for s in (*policy.inputs, *driver.signals)}
    read["rotation"] = np.eye(3, dtype=np.float32).reshape(1, 9)
    age, verdicts = dict.fromkeys(read, 0.0), []

    def step(z, override=None):
        read["position"] = np.array([[0.0, 0.0, z]], np.float32)
        wanted = policy.step(guard.screen(read, age))
        guard.filter(wanted, override)
        verdicts.append(int(guard.verdict[0]))

    policy.reset(1)
    step(1.0)
    guard.abandon("asked to land")
    for _ in range(30):
        step(0.0)
    assert verdicts[0] == PASS and verdicts[-1] == SAFE
    by_hand = {"motor_command": np.full((1, 4), 0.6, np.float32)}
    step(0.5, by_hand)
    assert verdicts[-1] == OVERRIDE
    step(0.5)
    assert verdicts[-1] == LANDING  # it was asked to land: no hold before
    for _ in range(30):
        step(0.0)
    assert verdicts[-1] == SAFE
    guard.stop()
    step(0.5, by_hand)
    guard.release()
    step(0.5, by_hand)
    assert verdicts[-1] == OVERRIDE
    step(0.5)
    assert verdicts[-1] == SAFE  # an emergency stop stays one
