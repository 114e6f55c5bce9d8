"""A policy as the on-board controller of a simulated Crazyflie, in simulated time."""

from functools import cache

import numpy as np
import pytest

from tests.deploy.crazyflie.bench import Bench

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
    policy.curve, policy.runtime = airframe.thrust_curve, Constant(command)  # as a policy for this very airframe
    select(bench, 6)
    idle = bench.firmware.parameters["powerDist.idleThrust"] / 65535
    for ratio in bench.firmware.ratios:
        assert max(ratio, idle) == ratio
        assert (airframe.thrust(ratio) if ratio else 0.0) == pytest.approx(thrust, rel=1e-3)
    bench.close()


def test_a_policy_for_any_robot_commands_shares_of_the_platforms_thrust(flying: Bench):
    flying.firmware.policy.runtime = Constant(0.5)
    select(flying, 6)
    for ratio in flying.firmware.ratios:
        assert flying.world.robot.thrust(ratio) == pytest.approx(0.25 * 0.12)
