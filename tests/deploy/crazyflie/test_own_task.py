"""A policy that is slower than the stabilizer's millisecond, in a task of its own on board."""

import numpy as np
import pytest

from deploy.crazyflie import guard
from deploy.crazyflie.simulator import onboard
from deploy.policy_file import PolicyFile
from tests.deploy.codegen.native import Native
from tests.deploy.crazyflie.bench import Bench
from tests.deploy.crazyflie.board import FORCE, LEGACY, QUAD_ANY, Firmware, build, written

PERIOD = 10  # ms of quad_any's step


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(written(tmp_path_factory.mktemp("app"), own_task=True))


@pytest.fixture
def firmware(library):
    made = Firmware(library)
    made.finish()
    assert made.sound and made.of("tasks").value == 1  # however often controller 6 is selected
    return made


def state(k: int) -> dict:
    """Never twice the same."""
    return {"position": (0.01 * np.sin(k), 0, 1), "gyro": (np.sin(0.3 * k), 0, 0)}


def forces(native: Native, firmware: Firmware) -> np.ndarray:
    """What the policy says of the signals that the app has now."""
    logged = firmware.table("logs")
    signals = {s.name: [logged[f"{s.name}_{k}"].value for k in range(s.size)] for s in native.policy.inputs}
    return native.step({name: np.array(v, np.float32) for name, v in signals.items()})["motor_command"] ** 2


@pytest.mark.parametrize("late", [1, 4, PERIOD])
def test_the_pid_controller_flies_until_the_first_answer_and_each_comes_late(firmware, late):
    native = Native(QUAD_ANY)
    native.reset()
    firmware.late = late
    wanted = []
    for k in range(3 * PERIOD):
        mode, got = firmware.call(**state(k))
        if k % PERIOD == 0:
            wanted.append(forces(native, firmware))
        if k < late:
            assert mode == LEGACY or not firmware.logged("force_0")
            assert firmware.logged("state") == guard.TAKING_OVER and firmware.pid()
        else:
            assert mode == FORCE and not firmware.pid()
            np.testing.assert_allclose(got, wanted[(k - late) // PERIOD], atol=1e-6)
    assert firmware.logged("reason") == guard.FINE


def test_a_step_that_is_not_through_when_the_next_one_is_due_is_too_slow(firmware):
    firmware.late = PERIOD
    for k in range(3 * PERIOD):
        firmware.call(**state(k))
    assert firmware.logged("flying")
    firmware.late = PERIOD + 1
    for k in range(PERIOD + 1):
        firmware.call(**state(100 + k))
    assert firmware.logged("failed") and firmware.logged("reason") == guard.SLOW


def test_a_task_that_never_has_the_processor_hands_nothing_over(firmware):
    firmware.late = 10_000
    for k in range(3 * PERIOD):
        firmware.call(**state(k))
        assert not firmware.logged("force_0")
    assert firmware.logged("reason") == guard.SLOW


def test_what_was_under_way_when_it_was_selected_anew_is_not_heard(firmware):
    native = Native(QUAD_ANY)
    firmware.late = 5
    for k in range(PERIOD + 2):  # the second step is under way
        firmware.call(**state(k))
    firmware.select()
    for k in range(3):
        assert firmware.call(**state(50 + k))[0] == LEGACY or firmware.logged("state") == guard.TAKING_OVER
        assert not firmware.logged("force_0")
    firmware.call(**state(53))  # now the old one is through, and the new one is asked
    native.reset()
    wanted = forces(native, firmware)
    for k in range(5):
        _, got = firmware.call(**state(54 + k))
    np.testing.assert_allclose(got, wanted, atol=1e-6)
    assert firmware.logged("reason") == guard.FINE


def test_the_limit_of_the_stabilizer_s_task_is_not_its_limit(firmware):
    firmware.set("step_us", 901)
    for k in range(2 * PERIOD):
        firmware.call(**state(k))
    assert firmware.logged("flying") and firmware.logged("duration") == 901


def test_the_simulated_vehicle_is_as_late(monkeypatch):
    assert onboard.late_s(PolicyFile.load(QUAD_ANY)) == 0.0
    monkeypatch.setattr(onboard, "late_s", lambda policy: 0.0042)
    bench = Bench(policy=QUAD_ANY)
    bench.fly(1.0)
    bench.firmware.parameters["stabilizer.controller"] = 6
    bench.client.plan.go_to(0.3, 0.2, 1.0, 0.0, 2.0)
    bench.run(3.5)
    assert bench.firmware.policy_flies and bench.firmware.policy.late == 3  # cycles of 2 ms
    np.testing.assert_allclose(bench.position, (0.3, 0.2, 1.0), atol=0.1)
    bench.close()
