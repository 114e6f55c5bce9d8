"""A program that is told to end, or to stand still, while its robot flies lands it first: nobody else would."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from deploy.drivers.mavlink import DOWN_S, STOP_S
from deploy.remote.online import _watched
from deploy.system.interrupts import ASKS, ENDS, LANDING, TOGETHER, as_ctrl_c, ask, come_again
from deploy.system.streams import say
from tests.deploy.safety.test_end_of_flight import AT, driver, fly, policy

__all__ = ["driver", "policy"]  # fixtures


@pytest.fixture(autouse=True)
def heeded():
    """Whoever runs these tests in the background may have them ignore some: then `as_ctrl_c` would, too."""
    before = {number: signal.getsignal(number) for number in (*ENDS, *ASKS)}
    for number, known in before.items():
        if known == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, known in before.items():
        signal.signal(number, known)


def sent(*numbers, pause=TOGETHER + 0.1):
    """These signals, one after the other, from the control thread."""

    def send():
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(pause)

    return send


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGHUP, signal.SIGHUP),  # as a terminal that is closed
        (signal.SIGTSTP, signal.SIGTSTP),  # it would have stood still, and its robot kept the last command
        (signal.SIGQUIT,),
        (signal.SIGTERM, signal.SIGHUP),
        (signal.SIGINT, signal.SIGTERM),  # as supervisors do, when a landing takes longer than they wait
    ],
)
def test_it_lands_and_what_only_asks_is_no_second_ctrl_c(policy, driver, numbers):
    driver.at = sent(*numbers)
    with as_ctrl_c(real_time=True):
        record, guard = fly(policy, driver)
    assert record.interrupted and guard.over and driver.stops == 1
    assert len(driver.sent) > AT + 20 and not driver.sent[-1].any()


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.parametrize(
    "numbers", [(signal.SIGHUP, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)]
)
def test_two_at_once_are_one_request(policy, driver, numbers):
    """The second was raised while the first left a lock: a RuntimeError of both, and nothing was landed."""
    driver.at = sent(*numbers, pause=0.0)
    with as_ctrl_c(real_time=True):
        record, guard = fly(policy, driver)
    assert record.interrupted and guard.over and driver.stops == 1 and not driver.sent[-1].any()


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.parametrize("second", ENDS)
def test_a_second_one_that_does_not_ask_ends_the_flight_at_once(policy, driver, second):
    driver.at = sent(signal.SIGTERM, second)
    with as_ctrl_c(real_time=True):
        record, guard = fly(policy, driver)
    assert record.interrupted and not guard.over and driver.stops == 1


@pytest.mark.timed
@pytest.mark.waits
@pytest.mark.parametrize(
    ("numbers", "waited"),
    [((signal.SIGINT,), True), ((signal.SIGTERM, signal.SIGHUP), True), ((signal.SIGHUP, signal.SIGINT), False)],
)
def test_a_landing_after_an_error_is_not_broken_off_by_the_first(policy, driver, numbers, waited, capfd):
    """Its driver lands it then: to a Crazyflie's the first Ctrl-C was an emergency stop, and it fell."""
    landed, stop = [], driver.stop

    def fail():
        raise OSError("the link is lost")

    def lands():
        sent(*numbers)()
        landed.append(1)
        stop()

    driver.at, driver.stop = fail, lands
    with pytest.raises(OSError) if waited else nullcontext(), as_ctrl_c(real_time=True):
        record, _ = fly(policy, driver)
        assert record.interrupted
    assert bool(landed) == waited
    assert "a second Ctrl-C does not wait" in capfd.readouterr().err


@pytest.mark.timed
@pytest.mark.waits
def test_who_asks_while_a_flight_ends_by_itself_has_interrupted_it(policy, driver):
    """Or else the next flight would begin."""
    stop = driver.stop
    driver.stop = lambda: (sent(signal.SIGTERM)(), stop())
    with as_ctrl_c(real_time=True):
        record, _ = fly(policy, driver, steps=5)
    assert record.interrupted and driver.stops == 1


@pytest.mark.timed
@pytest.mark.waits
def test_who_watches_the_learner_is_never_the_second_ctrl_c(policy, driver):
    """The machine shuts down: the robot's program and its learner get SIGTERM. It fell a second later."""
    link, over, landed = SimpleNamespace(lost=False, over=False), threading.Event(), []
    watching = threading.Thread(target=_watched, args=(link, over))
    stop = driver.stop

    def both():
        os.kill(os.getpid(), signal.SIGTERM)
        link.lost = True
        watching.join()

    driver.at, driver.stop = both, lambda: (landed.append(1), stop())
    watching.start()
    with as_ctrl_c(real_time=True):
        record, guard = fly(policy, driver)
    assert record.interrupted and guard.over and landed == [1]


@pytest.mark.timed
@pytest.mark.waits
def test_who_watches_the_learner_ends_a_flight_that_nobody_else_ends(policy, driver):
    link, over = SimpleNamespace(lost=False, over=False), threading.Event()
    watching = threading.Thread(target=_watched, args=(link, over))
    watching.start()
    driver.at = lambda: setattr(link, "over", True)
    with as_ctrl_c(real_time=True):
        record, guard = fly(policy, driver)
    over.set()
    watching.join()
    assert record.interrupted and guard.over


def test_whoever_asks_while_nobody_heeds_it_is_told_so():
    assert not ask()
    with pytest.raises(KeyboardInterrupt), as_ctrl_c(real_time=True):
        assert ask()
        time.sleep(1.0)
    assert not ask()


def test_one_that_was_swallowed_comes_again_though_it_is_soon():
    class Loud:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    with come_again(), as_ctrl_c(real_time=True):
        try:
            Loud()  # Python swallows what is raised in there
            time.sleep(1.0)
        except KeyboardInterrupt:
            return
    raise AssertionError("it was lost")


def test_what_was_ignored_stays_so_and_all_is_as_before_afterwards():
    numbers = (*ENDS, *ASKS)
    known = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with as_ctrl_c(real_time=True):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTSTP) is not known[signal.SIGTSTP]
        with as_ctrl_c(real_time=False):  # in simulation Ctrl-Z stops it, as any program
            assert signal.getsignal(signal.SIGTSTP) == known[signal.SIGTSTP]
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, known[signal.SIGHUP])
    assert {number: signal.getsignal(number) for number in numbers} == known


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGQUIT, signal.SIGHUP])
@pytest.mark.parametrize("ignored", [False, True])
def test_what_a_terminal_sends_ends_a_node_unless_it_is_ignored(number, ignored):
    """Ctrl-Z froze a policy node while its robot flew."""
    program = f"""
import os, signal, sys, time
from deploy.ros2.node import process
signal.signal({int(number)}, signal.{"SIG_IGN" if ignored else "SIG_DFL"})
process._spin = lambda name: (os.kill(os.getpid(), {int(number)}), time.sleep({0.1 if ignored else 20.0}), 3)[2]
sys.exit(process.run("any"))
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, start_new_session=True)
    assert done.returncode == (3 if ignored else 0)


def test_what_is_left_of_a_launch_has_the_time_to_land():
    """It had 10 s; and no program survives a SIGKILL."""
    assert LANDING > DOWN_S + STOP_S
    flies = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print('up', flush=True); "
    program = f"""
import subprocess, sys
from deploy.launching import guardian
guardian.PATIENCE = 0.3
child = subprocess.Popen([sys.executable, "-c", {flies + "time.sleep(2.0); print('landed')"!r}], stdout=subprocess.PIPE)
child.stdout.readline()
guardian.end_descendants()
print(child.stdout.read().decode())
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    assert "sending SIGTERM" in done.stdout and "landed" in done.stdout and "SIGKILL" not in done.stdout


def test_nobody_waits_for_who_reads_what_is_said():
    """A pipe that is full, then one whose reader has gone, then none."""
    program = """
import fcntl, os, sys
from deploy.system.streams import say
reads, writes = os.pipe()
os.dup2(writes, 2)
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(2, True)
say("to a pipe that is full")
os.close(reads)
say("to nobody")
os.close(2)
say("nowhere")
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=30)
    assert done.stdout == "went on\n"


def test_what_is_said_arrives(capfd):
    say("landing")
    assert capfd.readouterr().err == "landing\n"
