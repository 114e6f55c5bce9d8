"""Learning that goes on from a policy file: the same commands at first, whatever the network; and what is refused."""

import numpy as np
import pytest

from policies.algorithms.ppo import Ppo, PpoConfig
from policies.algorithms.student import StudentConfig
from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from policies.models.reading import network_of
from sim.spec import size
from sim.tasks import make

FEW = {
    "num_envs": 32,
    "rollout_steps": 16,
    "hidden": [16, 20],
    "critic_hidden": [16],
    "minibatches": 2,
    "evaluate_every": 0,
    "evaluation_episodes": 4,
    "total_steps": 32 * 16 * 4,
}


def network(kind, inputs, outputs, hidden=(16, 20)):
    rng = np.random.default_rng(0)
    a, b = hidden

    def drawn(*shape):
        return rng.normal(0.0, 0.3, shape).astype(np.float32)

    if kind == "gru":
        gates = drawn(3 * b, a), drawn(3 * b, b), drawn(3 * b), drawn(3 * b)
        return Gru((drawn(a, inputs), drawn(a)), *gates, (drawn(outputs, b), drawn(outputs)))
    layers = [(drawn(a, inputs), drawn(a)), (drawn(b, a), drawn(b)), (drawn(outputs, b), drawn(outputs))]
    return Mlp(layers, kind)


def file(tmp_path, task, kind, **options):
    inputs = sum(s.size for s in task.policy)
    policy = FeaturePolicy.from_task(task, network(kind, inputs, size(task.commands), **options))
    return export(policy, tmp_path / f"{kind}.onnx")


@pytest.fixture
def task():
    return make("soccer_1v1", steps=40)


@pytest.mark.parametrize("kind", ["tanh", "relu", "gru"])
def test_a_files_network_is_found_again(kind, task, tmp_path):
    found, made = network_of(file(tmp_path, task, kind), task), network(kind, 18, 3)
    assert type(found) is type(made)
    x, state = np.random.default_rng(1).normal(size=(5, 18)).astype(np.float32), found.initial_state(5)
    for _ in range(3):
        (mine, state), (theirs, _) = found.forward(x, state), made.forward(x, state)
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", ["tanh", "relu", "gru"])
def test_it_begins_with_what_the_file_does(kind, task, tmp_path):
    start = file(tmp_path, task, kind)
    kinds = {"network": "gru"} if kind == "gru" else {"activation": kind}
    config = PpoConfig(**FEW, **kinds, start=start.path, mirrors=False, critic_alone=2, averaged=0.0)
    learner = Ppo(task, config, 0)

    def commands():
        made, rng = learner.controller(), np.random.default_rng(2)
        state, told = made.initial_state(8), []
        for _ in range(4):
            signals = {s.name: rng.normal(size=(8, s.size)).astype(np.float32) for s in task.policy}
            command, state = made.act(signals, state)
            told.append(np.concatenate([command[s.name] for s in task.commands], axis=1))
        return np.stack(told)

    first, learning, values = commands(), learner.learn(), []
    learner.path.average = learner.path.actor.net.weights  # as it is now
    for _ in range(2):
        values.append(next(learning)["value_loss"])
        np.testing.assert_allclose(commands(), first, atol=2e-3 * 8.0)  # also when what is usual has changed
    next(learning)
    assert np.abs(commands() - first).max() > 0.02
    assert len({*values}) == 2  # the critic has learned


def test_what_cannot_go_on_is_refused(task, tmp_path):
    start, gated = file(tmp_path, task, "tanh"), file(tmp_path, task, "gru")
    other = file(tmp_path, task, "relu", hidden=(16, 32))
    for settings, message in (
        ({"start": start.path}, "was learned without the task's mirrors: set algorithm.mirrors=false"),
        ({"start": gated.path, "mirrors": False}, "a perceptron goes on from a perceptron, not from Gru"),
        ({"start": start.path, "network": "gru", "mirrors": False}, "a gated unit goes on from a gated unit"),
        ({"start": other.path, "activation": "relu", "mirrors": False}, "the network to go on from has other layers"),
        ({"start": start.path, "path": "torch"}, "algorithm.start goes with the fused path only"),
        ({"critic_alone": -1}, "critic_alone must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            Ppo(task, PpoConfig(**{**FEW, **settings}), 0)
    with pytest.raises(ValueError, match="does not hold a network for soccer_2v2"):
        Ppo(make("soccer_2v2"), PpoConfig(**FEW, start=start.path, mirrors=False), 0)


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_what_was_learned_in_mirrors_goes_on_in_them(kind, task, tmp_path):
    first = Ppo(task, PpoConfig(**FEW, network=kind), 0)
    list(first.learn())
    path = export(first.controller(), tmp_path / "first.onnx").path
    second = Ppo(task, PpoConfig(**FEW, network=kind, start=path), 1)
    assert len(list(second.learn())) == 4


def test_actions_stay_near_to_those_of_the_start(task, tmp_path):
    """The pull grows as long as they do not, and falls where there is room."""
    start = file(tmp_path, task, "gru")
    settings = {**FEW, "network": "gru", "start": start.path, "mirrors": False, "total_steps": 32 * 16 * 40}
    runs = {}
    for bound in (0.02, 1.0):
        learner = Ppo(task, PpoConfig(**settings, bound=bound, learning_rate=1e-2, final_learning_rate=1e-2), 0)
        runs[bound] = list(learner.learn())
    assert next(metrics["change"] for metrics in runs[0.02]) < 1e-3  # it begins as what it goes on from
    ends = {bound: np.mean([metrics["change"] for metrics in run[-10:]]) for bound, run in runs.items()}
    assert ends[0.02] < 0.5 * ends[1.0]
    assert runs[0.02][-1]["pull"] > 1.0 > runs[1.0][-1]["pull"]


def test_a_bounded_run_continues_exactly(task, tmp_path):
    start = file(tmp_path, task, "gru")
    config = PpoConfig(**{**FEW, "network": "gru", "start": start.path, "mirrors": False, "bound": 0.1})
    straight, first, second = (Ppo(task, config, 0) for _ in range(3))
    metrics, learning = list(straight.learn()), first.learn()
    next(learning), next(learning)
    second.load_state_dict(first.state_dict())
    assert list(second.learn()) == metrics[2:]


def test_a_bound_needs_a_start():
    with pytest.raises(ValueError, match=r"algorithm.bound is 0..2, of what algorithm.start does, got 0.1, ''"):
        PpoConfig(bound=0.1)
    with pytest.raises(ValueError, match=r"algorithm.bound is 0..2, of what algorithm.start does, got 3.0, 'x.onnx'"):
        PpoConfig(bound=3.0, start="x.onnx")
    with pytest.raises(ValueError, match="a student's practice has algorithm.practice_bound"):
        StudentConfig(bound=0.1, start="x.onnx")
