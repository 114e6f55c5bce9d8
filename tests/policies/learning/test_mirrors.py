"""Mirrors: what a robot does in one is the mirror image of what it does."""

import numpy as np
import pytest

from policies.learning.fused.network import Perceptron, room
from policies.learning.fused.symmetry import Symmetric, constant, images, task_images
from sim.engines.flight import Flight
from sim.robots.mirrors import quadrotor_mirrors
from sim.robots.quadrotors import CRAZYFLIE
from sim.tasks import make
from sim.terms import Mirror

STATE = (("position", 3), ("linear_velocity", 3), ("angular_velocity", 3), ("rotor_speed", 4))


@pytest.mark.parametrize("name", ["quad_hover", "quad_track", "quad_any"])
def test_flights_are_mirrored(name):
    """Physics, targets and thrust of each rotor: all images of a flight are flights."""
    task = make(name)
    rng, n = np.random.default_rng(0), 20
    state = task.reset(rng, n)
    state.pop("motion")
    actions = rng.random((60, n, 4)).astype(np.float32)
    health = rng.uniform(0.8, 1.2, (n, 4)).astype(np.float32)

    def flown(begun, told, scale):
        engine = Flight(CRAZYFLIE, n, 0.01)
        engine.reset(None, begun)
        engine.set_parameters(None, {"thrust_scale": scale})
        for command in told:
            engine.step(command)
        return {name: engine.read(name) for name in (*(name for name, _ in STATE), "rotation")}

    def turned(name, values, one):
        places, signs = one.of(name, values.shape[-1])
        return np.ascontiguousarray(values[..., places] * np.float32(signs))

    plain = flown(state, actions, health)
    assert len(task.mirrors) == 2 and task_images(task)
    for mirror in task.mirrors:
        axis = np.float32(mirror.of("angular_velocity", 3)[1])  # as the axis of a rotation
        begun = {name: turned(name, state[name], mirror) for name, _ in STATE}
        begun["quaternion"] = state["quaternion"] * np.concatenate([[1.0], axis]).astype(np.float32)
        seen = flown(begun, turned("motor_command", actions, mirror), turned("thrust_scale", health, mirror))
        for name, value in plain.items():
            np.testing.assert_allclose(seen[name], turned(name, value, mirror), atol=2e-4 * (1.0 + np.abs(value).max()))


def test_a_robot_with_a_rotor_elsewhere_has_no_mirrors():
    parts = {**vars(CRAZYFLIE), "rotor_position": ((0.03, -0.02), *CRAZYFLIE.rotor_position[1:])}
    assert quadrotor_mirrors(type(CRAZYFLIE)(**parts)) == ()
    parts["rotor_position"] = ((0.03, -0.028), (-0.028, -0.028), (-0.028, 0.028), (0.03, 0.028))
    assert len(quadrotor_mirrors(type(CRAZYFLIE)(**parts))) == 1  # longer in front: left and right are alike


def test_what_a_mirror_does_not_know_is_refused():
    mirror = Mirror({"position": ((0, 1, 2), (1.0, -1.0, 1.0))})
    assert mirror.of("mass", 1) == ([0], [1.0])
    assert mirror.of("position", 6) == ([0, 1, 2, 3, 4, 5], [1.0, -1.0, 1.0] * 2)
    with pytest.raises(ValueError, match="does not say what becomes of 'lidar'; it knows position"):
        mirror.of("lidar", 8)
    with pytest.raises(ValueError, match="3 elements of 'position', which has 4"):
        mirror.of("position", 4)


def answered(network, x):
    for weight, bias in network.matrices()[:-1]:
        x = np.tanh(x @ weight.T + bias)
    weight, bias = network.matrices()[-1]
    return x @ weight.T + bias


@pytest.mark.parametrize("hidden", [[16], [32, 64], [64, 32, 16]])
def test_networks_answer_mirror_images_with_mirror_images(hidden):
    task, rng = make("quad_hover", history=2), np.random.default_rng(3)
    seen, judged, actions = task_images(task)
    assert seen.places.shape == (4, 26)
    for inputs, outputs, count in ((seen, actions, 4), (judged, constant(1, judged), 1)):
        width = inputs.places.shape[1]
        network = Perceptron([width, *hidden, count], "tanh", rng, last_bias=0.3, more=1)
        symmetric = Symmetric(network, inputs, outputs)
        for step in range(1, 4):  # and stay so while they learn
            gradient = room(network.size)
            gradient[:] = rng.normal(size=gradient.shape)
            symmetric.average(gradient)
            network.descend(gradient, 1e-2, 1.0)
            x = rng.normal(size=(7, width))
            for g in range(4):
                mirrored = answered(network, x[:, inputs.places[g]] * inputs.signs[g])
                wanted = answered(network, x)[:, outputs.places[g]] * outputs.signs[g]
                np.testing.assert_allclose(mirrored, wanted, atol=1e-5 * step)


def test_averaging_is_a_projection():
    task, rng = make("quad_hover", history=1), np.random.default_rng(1)
    seen, _, actions = task_images(task)
    network = Perceptron([seen.places.shape[1], 16, 16, 4], "tanh", rng, more=1)
    symmetric = Symmetric(network, seen, actions)
    one = room(network.size)
    one[:] = rng.normal(size=one.shape)
    symmetric.average(one)
    twice = one.copy()
    symmetric.average(twice)
    np.testing.assert_allclose(one, twice, atol=1e-6)


def test_images_of_one_mirror():
    mirror = Mirror({"x": ((1, 0), (1.0, -1.0))})
    places, signs = images([mirror], [("mass", 1), ("x", 2)])
    assert places.tolist() == [[0, 1, 2], [0, 2, 1]] and signs.tolist() == [[1, 1, 1], [1, 1, -1]]
