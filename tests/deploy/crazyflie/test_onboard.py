"""A policy as the on-board controller of a simulated Crazyflie, in simulated time."""

import math
from functools import cache

import numpy as np
import pytest

from deploy.crazyflie import guard
from tests.deploy.crazyflie.bench import Bench
from tests.deploy.sample_policy import exported, linear_hover

QUAD_ANY = "deploy/pretrained/quad_any.onnx"


@cache
def flown_by(runtime: str) -> tuple[float, float, float]:
    """Where the policy has flown to, given a place two seconds away."""
    bench = Bench(policy=QUAD_ANY, runtime=runtime)
    bench.fly(1.0)
    assert not bench.firmware.policy_flies
    bench.firmware.parameters["stabilizer.controller"] = 6
    bench.client.plan.go_to(0.5, 0.3, 1.0, 0.0, 2.0)
    bench.run(4.0)
    assert bench.firmware.policy_flies
    bench.close()
    return bench.position


def test_policy_flies_when_it_is_the_controller():
    np.testing.assert_allclose(flown_by("file"), (0.5, 0.3, 1.0), atol=0.1)


@pytest.mark.parametrize("runtime", ["c", "chip"])
def test_generated_c_flies_the_same_flight(runtime: str):
    np.testing.assert_allclose(flown_by(runtime), flown_by("file"), atol=1e-3)


def test_policy_wants_a_fresh_place_to_be():
    bench = Bench(policy=QUAD_ANY)
    bench.fly(1.0)
    bench.firmware.parameters["stabilizer.controller"] = 6
    bench.run(0.1, lambda: bench.client.commander.send_velocity_world_setpoint(0.0, 0.0, 0.0, 0.0))
    assert not bench.firmware.policy_flies
    bench.run(1.0, lambda: bench.client.commander.send_position_setpoint(0.0, 0.0, 1.0, 0.0))
    assert bench.firmware.policy_flies
    bench.run(0.3)
    assert not bench.firmware.policy_flies  # the set point is too old for it; then the watchdog
    bench.run(2.0)
    assert bench.state == "LOCKED"
    bench.close()


class Constant:
    """A policy that always gives the same command."""

    def __init__(self, command: float) -> None:
        self.command = command

    def reset(self, n: int = 1) -> None:
        pass

    def step(self, signals):
        return {"motor_command": np.full((1, 4), self.command, np.float32)}


@pytest.fixture
def flying():
    bench = Bench(policy=QUAD_ANY)
    bench.fly(1.0)
    yield bench
    bench.close()


def select(bench: Bench, controller: int) -> None:
    bench.firmware.parameters["stabilizer.controller"] = controller
    bench.run(0.002)


def test_a_failed_policy_is_out_until_it_is_selected_anew(flying: Bench):
    firmware, policy = flying.firmware, flying.firmware.policy
    select(flying, 6)
    assert firmware.policy_flies
    sound, policy.runtime = policy.runtime, Constant(np.nan)
    flying.run(1.0)
    assert firmware.policy_failed and not firmware.policy_flies
    assert firmware.parameters["stabilizer.controller"] == 6  # as in the app
    assert flying.state == "FLYING" and abs(flying.position[2] - 1.0) < 0.15
    policy.runtime = sound
    select(flying, 6)
    assert firmware.policy_failed  # that was no change
    select(flying, 1)
    select(flying, 6)
    assert firmware.policy_flies and not firmware.policy_failed


@pytest.mark.parametrize(
    ("robot", "command", "thrust"),
    [
        ("crazyflie", 0.2, 0.0),  # 0.006 N: below THRUST_MIN
        ("crazyflie", 0.6, 0.36 * 0.14883),
        ("crazyflie", 0.89, 0.89**2 * 0.14883),
        ("crazyflie", 1.0, 0.12),  # the rotor's 0.149 N are cut to THRUST_MAX
        ("crazyflie_decks", 1.0, 0.11013),  # never cut: the rotor's largest
        ("crazyflie_brushless", 1.0, 0.2),  # THRUST_MAX is the rotor's largest
    ],
)
def test_commands_reach_the_rotors_as_through_the_real_firmware(robot: str, command: float, thrust: float):
    bench = Bench(policy=QUAD_ANY, robot=robot)
    bench.fly(1.0)
    airframe, policy = bench.world.robot, bench.firmware.policy
    policy.runtime = Constant(command)
    for k, value in enumerate(airframe.thrust_curve):  # as a policy for this very airframe
        bench.firmware.parameters[f"policy.thrust{k}"] = value
    bench.firmware.parameters["policy.ramp"] = 0.0
    select(bench, 6)
    idle = bench.firmware.parameters["powerDist.idleThrust"] / 65535
    for ratio in bench.firmware.ratios:
        assert max(ratio, idle) == ratio
        assert bench.firmware.thrust(ratio) == pytest.approx(thrust, rel=1e-3)
    bench.close()


def test_a_policy_for_any_robot_commands_shares_of_the_platforms_thrust(flying: Bench):
    flying.firmware.policy.runtime = Constant(0.5)
    flying.firmware.parameters["policy.ramp"] = 0.0
    select(flying, 6)
    for ratio in flying.firmware.ratios:
        assert flying.firmware.thrust(ratio) == pytest.approx(0.25 * 0.12)


def test_it_takes_over_smoothly_and_within_its_cap(flying: Bench):
    firmware = flying.firmware
    firmware.policy.runtime = Constant(1.0)
    firmware.parameters.update({"policy.cap": 0.7, "policy.ramp": 0.5, "policy.height": 20.0, "policy.speed": 10.0})
    select(flying, 6)
    own, app = max(firmware.app.pid), firmware.app
    assert app.state == guard.TAKING_OVER and app.force == (0.7, 0.7, 0.7, 0.7)
    assert firmware.thrust(max(firmware.ratios)) == pytest.approx(0.12 * own, rel=1e-2)
    flying.run(0.5)
    assert app.state == guard.FLYING
    assert firmware.thrust(max(firmware.ratios)) == pytest.approx(0.7 * 0.12)


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [("seconds", 1.0, guard.TIME), ("fence", 0.2, guard.FENCE), ("voltage", 4.0, guard.BATTERY)],
)
def test_what_the_guard_on_board_finds_lands_it(flying: Bench, limit: str, value: float, reason: int):
    """The client that streamed the set points falls silent as it happens: no watchdog stops the motors in the air."""
    firmware = flying.firmware
    firmware.parameters.update({"policy.sag": 0.0, f"policy.{limit}": value})
    select(flying, 6)
    for _ in range(30):
        if firmware.policy_failed:
            break
        flying.run(0.1, lambda: flying.client.commander.send_position_setpoint(0.5, 0.0, 1.0, 0.0))
    assert firmware.app.reason == reason and firmware.app.state == guard.HOLDING
    x = flying.position[0]
    flying.run(5.5)
    assert firmware.app.state == guard.DOWN and firmware.ratios == (0.0, 0.0, 0.0, 0.0)
    assert flying.position[2] == pytest.approx(0.0, abs=1e-3) and abs(flying.position[0] - x) < 0.3
    assert flying.state in ("FLYING", "LANDED")  # not locked


def test_after_a_boot_only_pid_flies(flying: Bench):
    """Controller 6 alone hands nothing over: a mode that was written before a reboot is gone."""
    flying.firmware.parameters["policy.mode"] = guard.PARAMETERS["policy.mode"][1]
    select(flying, 6)
    flying.run(1.0, lambda: flying.client.commander.send_position_setpoint(0.0, 0.0, 1.0, 0.0))
    app = flying.firmware.app
    assert app.state == guard.BY_PID and app.reason == guard.FINE and not flying.firmware.policy_flies


def test_a_shadow_computes_while_pid_flies(tmp_path):
    """A policy without memory: one with a memory finds that nobody obeys it, and asks for something else."""
    flying = Bench(policy=str(exported(tmp_path / "p.onnx", linear_hover()).path))
    flying.fly(1.0)
    firmware = flying.firmware
    firmware.parameters["policy.mode"] = guard.SHADOW
    select(flying, 6)
    flying.run(2.0)
    app = firmware.app
    assert app.state == guard.AS_SHADOW and app.reason == guard.FINE and not firmware.policy_flies
    assert firmware.thrust(max(firmware.ratios)) == pytest.approx(0.12 * max(app.pid), rel=1e-6)
    assert np.abs(np.subtract(app.force, app.pid)).max() < 0.2 and app.force != app.pid
    firmware.parameters["policy.speed"] = 0.1
    flying.client.plan.go_to(0.5, 0.0, 1.0, 0.0, 1.0)
    flying.run(1.0)
    assert app.reason == guard.SPEED and app.state == guard.AS_SHADOW  # said, no more
    flying.close()


@pytest.mark.parametrize("auto_arm", [True, False])
def test_on_the_bench_the_motors_stay_off(auto_arm: bool):
    bench = Bench(policy=QUAD_ANY, auto_arm=auto_arm)
    bench.firmware.parameters["policy.mode"] = guard.BENCH
    select(bench, 6)
    bench.run(0.5, lambda: bench.client.commander.send_position_setpoint(0.0, 0.0, 1.0, 0.0))
    app = bench.firmware.app
    assert app.state == guard.ON_BENCH and bench.firmware.ratios == (0.0, 0.0, 0.0, 0.0)
    assert max(app.force) > 0.03 and min(app.pid) > 0.3
    bench.close()


def test_the_bench_mode_is_a_shadow_in_the_air(flying: Bench):
    flying.firmware.parameters["policy.mode"] = guard.BENCH
    select(flying, 6)
    flying.run(0.5)
    assert flying.firmware.app.state == guard.AS_SHADOW and flying.position[2] == pytest.approx(1.0, abs=0.1)


def test_a_parameter_that_is_not_allowed_is_replaced_and_said(flying: Bench):
    firmware = flying.firmware
    firmware.parameters.update({"policy.cap": 2.0, "policy.seconds": -1.0})
    select(flying, 6)
    assert firmware.parameters["policy.cap"] == 1.0 and firmware.parameters["policy.seconds"] == 30.0
    assert "policy.cap is not within 0.3..1.0, now 1" in firmware._text.decode()
    own = [firmware.parameters[f"policy.thrust{k}"] for k in range(3)]
    firmware.parameters.update({"policy.thrust0": -1.0})  # in flight
    flying.run(0.1)
    assert firmware.policy.curve == tuple(own) and firmware.app.replaced >> 30 == 0  # others may be on their way
    flying.run(0.6)
    assert [firmware.parameters[f"policy.thrust{k}"] for k in range(3)] == own and firmware.app.replaced >> 30 == 1
    assert "policy.thrust0..2 are too far from the airframe's curve" in firmware._text.decode()


def test_a_battery_that_is_low_for_five_seconds_lands_it(flying: Bench):
    """Not before, and then it comes down by itself."""
    firmware = flying.firmware
    select(flying, 6)
    send = lambda: flying.client.commander.send_position_setpoint(0.0, 0.0, 1.0, 0.0)  # noqa: E731
    flying.run(0.5, send)
    firmware.parameters["policy.voltage"] = 4.0  # above what it has, with what the rotors take
    firmware.parameters["policy.sag"] = 0.0
    flying.run(4.8, send)
    assert firmware.policy_flies and firmware.app.reason == guard.FINE
    flying.run(0.6, send)
    assert firmware.app.reason == guard.BATTERY and firmware.app.state == guard.HOLDING
    flying.run(5.5, send)
    assert firmware.app.state == guard.DOWN and flying.position[2] == pytest.approx(0.0, abs=1e-3)


HEADING = 130.0  # degrees
HALF = math.radians(HEADING) / 2


def turned_away() -> Bench:
    """One that flies with its nose elsewhere than along x."""
    bench = Bench(policy=QUAD_ANY)
    bench.world.place(0, position=(0.0, 0.0, 0.0), quaternion=(math.cos(HALF), 0.0, 0.0, math.sin(HALF)))
    bench.client.supervisor.send_arming_request(True)
    bench.run(0.1)
    bench.client.plan.takeoff(1.0, 2.0, yaw=None)
    bench.run(3.0)
    assert abs(bench.firmware.sensed.yaw - HEADING) < 5.0
    return bench


@pytest.mark.parametrize("ramp", [0.0, 5.0])
def test_handed_back_it_keeps_its_heading(ramp: float):
    """quad_any turns it to where x points, against what is left of the PID controller: nobody turns it back."""
    bench = turned_away()
    firmware = bench.firmware
    firmware.parameters.update({"policy.seconds": 4.0, "policy.ramp": ramp})
    select(bench, 6)
    bench.run(4.1, lambda: bench.client.commander.send_position_setpoint(0.0, 0.0, 1.0, HEADING))
    assert firmware.app.reason == guard.TIME and firmware.app.state == guard.HOLDING
    heading, turns = firmware.sensed.yaw, []
    assert HEADING - heading > 20.0
    for _ in range(20):
        bench.run(0.1)
        turns.append(abs(firmware.sensed.yaw - heading))
    assert max(turns) < 12.0  # it was turning
    bench.close()
