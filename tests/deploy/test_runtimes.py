from pathlib import Path

import numpy as np
import pytest

from deploy.drivers.simulated import Simulated
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.runtimes import CONTROLLERS, controller
from sim.tasks import make
from tests.deploy.sample_policy import exported, linear_hover, random_gru, small
from tests.deploy.test_policy_file import camera_policy


def test_pixels_and_words_keep_their_type_in_c(tmp_path):
    policy = camera_policy(tmp_path / "p.onnx", dtype="int64", low=0, high=9999)
    compiled = controller(policy, "c")
    policy.reset(2), compiled.reset(2)
    signals = {"image": np.array([7, 255], np.uint8).repeat(4).reshape(2, 2, 2, 1), "word": np.array([[2], [3000]])}
    np.testing.assert_array_equal(compiled.step(signals)["speed"], [[9.0], [3255.0]])
    np.testing.assert_array_equal(policy.step(signals)["speed"], [[9.0], [3255.0]])


@pytest.mark.parametrize("network", ["mlp", "gru"])
@pytest.mark.parametrize("robots", [1, 3])
def test_compiled_c_gives_what_onnxruntime_gives(tmp_path, network, robots):
    made = small() if network == "mlp" else small(random_gru)
    policy = exported(tmp_path / "p.onnx", made)
    compiled = controller(policy, "c")
    rng = np.random.default_rng(1)
    for _ in range(2):
        policy.reset(robots)
        compiled.reset(robots)
        for _ in range(50):
            signals = {s.name: rng.normal(size=(robots, *s.shape)).astype(np.float32) for s in policy.inputs}
            ours, theirs = compiled.step(signals), policy.step(signals)
            for s in policy.outputs:
                assert ours[s.name].shape == (robots, *s.shape)
                np.testing.assert_allclose(ours[s.name], theirs[s.name], atol=2e-6 * (s.high - s.low))


def test_compiled_c_begins_anew_with_some_of_its_robots(tmp_path):
    policy = exported(tmp_path / "p.onnx", small(random_gru))
    compiled, fresh, rng = controller(policy, "c"), controller(policy, "c"), np.random.default_rng(1)
    for runtime in (policy, compiled, fresh):
        runtime.reset(3)
    for k in range(20):
        signals = {s.name: rng.normal(size=(3, *s.shape)).astype(np.float32) for s in policy.inputs}
        if k == 10:
            for runtime in (policy, compiled):
                runtime.restart(np.array([True, False, True]))
        ours, theirs = compiled.step(signals), policy.step(signals)
        for s in policy.outputs:
            np.testing.assert_allclose(ours[s.name], theirs[s.name], atol=2e-6 * (s.high - s.low))
        if k >= 10:
            begun = (ours["left"] == fresh.step(signals)["left"]).all(axis=1)
            assert begun.tolist() == [True, False, True]


def test_results_do_not_change_afterwards(tmp_path):
    policy = exported(tmp_path / "p.onnx")
    compiled = controller(policy, "c")
    signals = {s.name: np.ones((1, *s.shape), np.float32) for s in policy.inputs}
    first = compiled.step(signals)
    kept = {name: value.copy() for name, value in first.items()}
    compiled.step({name: -value for name, value in signals.items()})
    for name, value in kept.items():
        np.testing.assert_array_equal(first[name], value)


def test_what_is_not_finite_gives_no_command_and_leaves_the_state(tmp_path):
    policy = exported(tmp_path / "p.onnx", small(random_gru))
    compiled = controller(policy, "c")
    signals = {s.name: np.ones((1, *s.shape), np.float32) for s in policy.inputs}
    wanted = [compiled.step(signals) for _ in range(3)]
    compiled.reset()
    compiled.step(signals)
    broken = compiled.step({name: np.full_like(value, np.nan) for name, value in signals.items()})
    assert all(np.isnan(value).all() for value in broken.values())
    np.testing.assert_array_equal(compiled.step(signals)["left"], wanted[1]["left"])


def test_it_flies(tmp_path):
    policy = exported(tmp_path / "p.onnx", linear_hover())
    flights = []
    for kind in CONTROLLERS:
        driver = Simulated(make("quad_hover", tilt=20.0, velocity=0.3, body_rate=0.3))
        run(controller(policy, kind), driver, steps=200)
        flights.append(driver.flight()["position"])
    for flight in flights[1:]:
        np.testing.assert_allclose(flight, flights[0], atol=1e-4)


def test_an_unknown_controller_lists_the_choices(tmp_path):
    with pytest.raises(ValueError, match="unknown controller 'rust'; choices: onnxruntime, c, emulated, or a board"):
        controller(exported(tmp_path / "p.onnx"), "rust")


def test_the_shipped_policy_compiles():
    policy = PolicyFile.load("quad_any")
    assert Path(controller(policy, "c").path).name == "quad_any"


def test_a_board_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OSError, match="/dev/ttyNONE: No such file"):
        controller(exported(tmp_path / "p.onnx"), "/dev/ttyNONE")
