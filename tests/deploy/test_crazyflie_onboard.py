"""A policy as the on-board controller of a simulated Crazyflie, in simulated time."""

from functools import cache

import numpy as np
import pytest

from tests.deploy.crazyflie_bench import Bench

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
