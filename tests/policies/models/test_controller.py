import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.models.controller import FeaturePolicy
from policies.models.networks.activations import sigmoid
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from sim.spec import Signal
from sim.tasks import make
from sim.terms import Feature
from tests.deploy.sample_policy import linear_hover, random_gru, random_layer, random_mlp, small


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_gru_is_torchs_gru_cell(width, hidden, n, seed):
    rng = np.random.default_rng(seed)
    gru = random_gru(rng, inputs=4, outputs=3, width=width, hidden=hidden)
    cell = torch.nn.GRUCell(width, hidden)
    cell.load_state_dict(
        {
            name: torch.from_numpy(value)
            for name, value in zip(
                ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), (gru.w_ih, gru.w_hh, gru.b_ih, gru.b_hh), strict=True
            )
        }
    )
    state = gru.initial_state(n)
    hidden_torch = torch.zeros(n, hidden)
    with torch.no_grad():
        for _ in range(5):
            features = rng.normal(size=(n, 4)).astype(np.float32)
            action, state = gru.forward(features, state)
            x = torch.relu(torch.nn.functional.linear(torch.from_numpy(features), *map(torch.from_numpy, gru.input)))
            hidden_torch = cell(x, hidden_torch)
            want = torch.tanh(torch.nn.functional.linear(hidden_torch, *map(torch.from_numpy, gru.output)))
            np.testing.assert_allclose(state["hidden"], hidden_torch.numpy(), atol=2e-6)
            np.testing.assert_allclose(action, want.numpy(), atol=2e-6)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_mlp_is_torchs_linear_layers(activation):
    rng = np.random.default_rng(1)
    mlp = random_mlp(rng, 5, 2, hidden=(7, 6), activation=activation)
    x = rng.normal(size=(4, 5)).astype(np.float32)
    y = torch.from_numpy(x)
    for index, (weight, bias) in enumerate(mlp.layers):
        y = torch.nn.functional.linear(y, torch.from_numpy(weight), torch.from_numpy(bias))
        y = torch.tanh(y) if index == 2 or activation == "tanh" else torch.relu(y)
    np.testing.assert_allclose(mlp.forward(x, {})[0], y.numpy(), atol=1e-6)


def test_sigmoid_does_not_overflow():
    x = np.array([-1e4, -3.0, 0.0, 3.0, 1e4], np.float32)
    np.testing.assert_allclose(sigmoid(x), torch.sigmoid(torch.from_numpy(x)).numpy(), atol=1e-7)


def test_history_holds_past_actions_newest_first():
    controller = small(history=3)
    state = controller.initial_state(2)
    np.testing.assert_array_equal(state["history"], np.full((2, 9), 0.25, np.float32))
    rng = np.random.default_rng(0)
    low, high = controller.limits()
    actions = []
    for _ in range(5):
        signals = {s.name: rng.normal(size=(2, *s.shape)).astype(np.float32) for s in controller.inputs}
        commands, state = controller.act(signals, state)
        sent = np.concatenate([commands["left"], commands["right"]], axis=1)
        actions.insert(0, 2.0 * (sent - low) / (high - low) - 1.0)
        expected = np.concatenate([*actions[:3], np.full((2, 9), 0.25)], axis=1)[:, :9]
        np.testing.assert_allclose(state["history"], expected, atol=1e-5)


def test_saturated_actions_reach_the_limits_exactly():
    controller = small(history=0)
    controller.network = Mlp([(np.zeros((3, 8)), np.array([50.0, -50.0, 50.0]))])
    commands, state = controller.act({s.name: np.zeros((1, *s.shape), np.float32) for s in controller.inputs}, {})
    np.testing.assert_array_equal(commands["left"], np.array([[1.0, -3.0]], np.float32))
    np.testing.assert_array_equal(commands["right"], np.array([[0.2]], np.float32))
    assert state == {}


def test_a_robot_does_not_depend_on_its_neighbours():
    controller = small(random_gru)
    rng = np.random.default_rng(2)
    signals = {s.name: rng.normal(size=(7, *s.shape)).astype(np.float32) for s in controller.inputs}
    together, _ = controller.act(signals, controller.initial_state(7))
    for k in range(7):
        alone, _ = controller.act({n: v[k : k + 1] for n, v in signals.items()}, controller.initial_state(1))
        np.testing.assert_allclose(alone["left"][0], together["left"][k], atol=1e-6)


def test_from_task_takes_everything_from_the_task():
    controller = linear_hover(make("quad_hover", history=5, rate_hz=50.0))
    assert (controller.task, controller.robot, controller.rate_hz) == ("quad_hover", "crazyflie", 50.0)
    assert controller.settings["history"] == 5
    assert controller.initial_state(3)["history"].shape == (3, 20)


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Mlp([]), "at least one layer"),
        (lambda: Mlp([random_layer(np.random.default_rng(0), 3, 2)], "gelu"), "'gelu' is not one of tanh, relu"),
        (lambda: Mlp([(np.zeros((2, 3)), np.zeros(3))]), r"layer 0: W is \(out, in\)"),
        (
            lambda: Mlp([(np.zeros((2, 3)), np.zeros(2)), (np.zeros((2, 3)), np.zeros(2))]),
            "layer 1: takes 3 .* receives 2",
        ),
        (lambda: Mlp([(np.full((2, 3), np.nan), np.zeros(2))]), "not finite"),
        (
            lambda: Gru(
                (np.zeros((4, 3)), np.zeros(4)),
                np.zeros((6, 4)),
                np.zeros((9, 3)),
                np.zeros(6),
                np.zeros(9),
                (np.zeros((1, 2)), np.zeros(1)),
            ),
            "w_hh: takes 3 values but receives 2",
        ),
    ],
)
def test_malformed_networks_are_refused(make_it, message):
    with pytest.raises(ValueError, match=message):
        make_it()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"features": (Feature("wind"),)}, "reads 'wind'; the policy has: near, goal, rate, history"),
        ({"features": (Feature("rate", minus="goal"),)}, r"'goal' \(3\) does not repeat into 'rate' \(2\)"),
        ({"features": (Feature("rate"),)}, "takes 14 values, the features are 2"),
        ({"history": 1}, "takes 14 values, the features are 11"),
        ({"outputs": (Signal("torque", (3,)),)}, "'torque' needs finite limits"),
        (
            {"outputs": (Signal("torque", (2,), low=0.0, high=1.0),), "history": 3},
            "returns 3 values, the commands are 2",
        ),
        ({"inputs": (Signal("image", (4, 4)),)}, "takes vectors, not shape"),
        ({"initial_action": 1.5}, "initial_action in"),
    ],
)
def test_a_controller_that_does_not_fit_together_is_refused(changed, message):
    fields = vars(small()) | changed
    with pytest.raises(ValueError, match=message):
        FeaturePolicy(**fields)
