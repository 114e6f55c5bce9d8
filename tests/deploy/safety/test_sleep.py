"""After a computer has slept nothing that it knew is fresh: the guard acts, whatever was going on."""

import numpy as np
import pytest

from deploy.drivers import clock_of
from deploy.drivers.simulated import Simulated
from deploy.guard import REASONS
from deploy.loop import REHEARSALS, run
from deploy.policy_file import PolicyFile
from deploy.safety.heard import Heard
from deploy.safety.limits import guard_of, limits_of
from sim.tasks import make
from tests.deploy.asleep import Sleep

AT = 30


@pytest.fixture
def sleep(monkeypatch):
    return Sleep(monkeypatch)


@pytest.fixture
def driver():
    made = Simulated(make("quad_any", robot="crazyflie", path="hold", tilt=10.0, velocity=0.1), seed=1, real_time=True)
    write, made.sent = made.write, []
    made.write = lambda commands: (made.sent.append(commands["motor_command"].copy()), write(commands))
    return made


def flown(driver, policy, steps=AT + 20):
    guard = guard_of(policy, driver, limits_of("crazyflie"), policy.envelope)
    return run(policy, driver, guard, steps, clock=clock_of(driver))


@pytest.mark.timed
@pytest.mark.waits
def test_a_computer_that_slept_between_two_steps_does_not_fly_on(driver, sleep):
    """It had: the loop's clock stood still, so that everything looked as young as before."""
    write = driver.write
    driver.write = lambda commands: (write(commands), sleep(3.0) if len(driver.sent) == AT else None)
    record = flown(driver, PolicyFile.load("quad_any"))
    assert REASONS[record.stopped[0]] == "clock jump" and record.steps == AT + 20


@pytest.mark.timed
@pytest.mark.waits
def test_what_a_policy_makes_of_signals_of_before_the_sleep_is_not_sent(driver, sleep):
    policy = PolicyFile.load("quad_any")
    step, count = policy.step, []

    def slept(signals):
        count.append(1)
        if len(count) == REHEARSALS + AT + 1:
            sleep(3.0)
            return {"motor_command": np.ones((1, 4), np.float32)}
        return step(signals)

    policy.step = slept
    record = flown(driver, policy)
    assert record.stopped[0] and not (driver.sent[AT] == 1.0).any()


def test_what_a_link_has_heard_is_as_old_as_the_sleep(sleep):
    heard = Heard({"state": (1e-3, 24)})
    heard.take("state", "here", 1000)
    assert heard.age("state") < 1.0
    sleep(3.0)
    assert heard.age("state") >= 3.0 and heard.silence("state") >= 3.0
