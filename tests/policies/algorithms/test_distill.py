"""Distillation: the student's gradient, who teaches whom and what, exact resume in both phases, learning."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.algorithms.distill import TEACHERS, VEHICLE, Distill, DistillConfig, Table, consult, with_robot
from policies.algorithms.distill.fused_student import Student, to_segment
from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from policies.runner import checkpoint
from policies.runner.config import RunError
from sim import tasks
from sim.env import with_engine
from sim.robots.random_quadrotor import ANY

TINY = {
    "teachers": 2,
    "teacher_budget": 2,
    "accept": 0.0,
    "rounds": 4,
    "guided": 1,
    "num_envs": 32,
    "rollout_steps": 20,
    "epochs": 2,
    "batch_size": 16,
    "evaluations": 1,
    "evaluation_episodes": 4,
}


def learner(seed=0, task=None, **changes):
    return Distill(task or tasks.make("quad_any", episode_s=2.5), DistillConfig(**(TINY | changes)), seed)


def run(algorithm, count):
    """The metrics of the next `count` yields."""
    return list(itertools.islice(algorithm.learn(), count))


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def recording(rng, steps=19, n=32, features=6, hidden=8, actions=4):
    """A random segment, (T, n, k) each, with episodes that end within it; (n, hidden)."""
    x, label = rng.normal(size=(steps, n, features)), rng.uniform(-1.0, 1.0, (steps, n, actions))
    goes_on = rng.random((steps, n, 1)) > 0.1
    return [v.astype(np.float32) for v in (x, label, goes_on, rng.normal(0.0, 0.3, (n, hidden)))]


def torch_error(network, x, label, goes_on, hidden):
    """The mean squared error by torch's own GRU cell; the gradient is left in the tensors returned."""
    arrays = [*network.input, network.w_ih, network.w_hh, network.b_ih, network.b_hh, *network.output]
    tensors = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    w_in, b_in, w_ih, w_hh, b_ih, b_hh, w_out, b_out = tensors
    x, label, goes_on, h = (torch.from_numpy(v).double() for v in (x, label, goes_on, hidden))
    actions = []
    for now, on in zip(x, goes_on, strict=True):
        h = torch.gru_cell(torch.relu(now @ w_in.T + b_in), h, w_ih, w_hh, b_ih, b_hh)
        actions.append(torch.tanh(h @ w_out.T + b_out))
        h = h * on
    error = (torch.stack(actions) - label).square().mean()
    error.backward()
    return float(error.detach()), [(w_in, b_in), (w_ih, b_ih), (w_hh, b_hh), (w_out, b_out)]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=5, deadline=None)
def test_the_gradient_is_that_of_torch(seed):
    rng = np.random.default_rng(seed)
    student = Student(6, [8, 8], 4, rng, 0.2, steps=19)
    parts = recording(rng)
    wanted, tensors = torch_error(student.network(), *parts)
    assert student.error(to_segment(*parts), 0, 2) == pytest.approx(wanted, rel=1e-5)
    for layer, pair in zip(student.layout.layers, tensors, strict=True):
        matrix = student.gradient[layer.weight : layer.bias].reshape(layer.rows, layer.columns)[:, : layer.inputs]
        found = matrix, student.gradient[layer.bias : layer.bias + layer.rows]
        for ours, theirs in zip(found, pair, strict=True):
            np.testing.assert_allclose(ours, theirs.grad, atol=1e-6)


def test_a_table_draws_whole_vehicles():
    rows = ANY.draw(np.random.default_rng(0), 5)
    robot = Table.of(ANY, rows)
    drawn = robot.draw(np.random.default_rng(1), 200)
    number = drawn[VEHICLE.name][:, 0].astype(int)
    assert set(number) == set(range(5))
    for name, value in rows.items():
        np.testing.assert_array_equal(drawn[name], value[number])
    alone = Table.of(ANY, {name: value[3:4] for name, value in rows.items()}).parameters()
    assert all((alone[name] == value[3]).all() for name, value in rows.items())


def mlp(rng, inputs, outputs=4):
    sizes = [inputs, 8, outputs]
    return Mlp([(rng.normal(size=(b, a)), rng.normal(size=b)) for a, b in itertools.pairwise(sizes)])


def test_everybody_asks_the_own_teacher():
    rng = np.random.default_rng(0)
    teachers = [mlp(rng, 3) for _ in range(4)]
    features, vehicle = rng.normal(size=(50, 3)).astype(np.float32), rng.choice([0, 1, 3], 50)
    answer = consult(teachers, features, vehicle)
    for x, number, action in zip(features, vehicle, answer, strict=True):
        np.testing.assert_allclose(action, teachers[number].forward(x[None], {})[0][0], atol=1e-6)


def test_labels_are_what_the_vehicles_teacher_would_command():
    """Flown by the student; each teacher as a controller of its own, given the truth and what the student did."""
    distill = learner(teachers=3, teacher_history=5)
    run(distill, 3)
    env = distill.env = distill._flights()
    teachers = [FeaturePolicy.from_task(with_robot(distill.task, ANY, 5), n) for n in distill.networks]
    observation, generator = env.observation, torch.Generator().manual_seed(0)
    mass = np.stack(distill.rows["mass"])
    for _ in range(8):
        label = distill.label(observation)
        vehicle = observation["privileged"][VEHICLE.name].numpy()[:, 0].astype(int)
        np.testing.assert_array_equal(env.engine.read("mass"), mass[vehicle])  # the vehicle is the one it says
        signals = {name: value.numpy() for name, value in observation["truth"].items()}
        history = observation["history"].numpy()
        for number, teacher in enumerate(teachers):
            commands, _ = teacher.act(signals, {"history": history})
            mine = vehicle == number
            assert mine.any()
            np.testing.assert_allclose(label[mine], 2.0 * commands["motor_command"][mine] - 1.0, atol=1e-5)
        action = 2.0 * torch.rand((env.num_envs, 4), generator=generator) - 1.0
        observation = env.step(action).observation
        np.testing.assert_array_equal(observation["history"][:, :4], action)


def test_the_student_starts_each_episode_without_memory():
    distill = learner(task=tasks.make("quad_hover", episode_s=0.1), guided=0)
    run(distill, 3)
    segment = distill._fly(distill.env)
    ended = segment.goes_on == 0.0
    assert 0.05 < ended.mean() < 0.5
    ended_last = segment.goes_on.reshape(2, 20, 16)[:, -1].reshape(-1) == 0.0
    assert ended_last.any() and (distill.hidden[ended_last] == 0.0).all() and (distill.hidden[~ended_last] != 0.0).any()


@pytest.mark.parametrize("saved_after", [1, 3])  # among the teachers, among the rounds
def test_resume_is_exact(saved_after, tmp_path):
    whole = learner(seed=5)
    metrics = run(whole, 6)
    assert [m["teachers"] for m in metrics] == [1, 2, 2, 2, 2, 2] and metrics[-1]["progress"] == 1.0
    half = learner(seed=5)
    run(half, saved_after)
    checkpoint.save(tmp_path / "checkpoint.npz", half.state_dict())
    run(half, 1)  # what was saved must not change with the learner
    resumed = learner(seed=6)
    run(resumed, saved_after)
    resumed.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert run(resumed, 6) == metrics[saved_after:]
    assert same(resumed.state_dict(), whole.state_dict())


def test_teachers_that_cannot_fly_are_refused(monkeypatch):
    distill = learner(accept=0.9, attempts=2)
    vehicles = []
    monkeypatch.setattr("policies.algorithms.distill.HOPELESS", 4)
    with pytest.raises(RunError, match="4 teachers fly too badly, 0 well enough"):
        for metrics in distill.learn():
            vehicles.append(float(distill.vehicle["mass"][0, 0]))
            assert metrics["teachers"] == 0.0 and metrics["progress"] == 0.0
    assert vehicles[0] != vehicles[1] == vehicles[2]  # two attempts, then another vehicle


def test_other_algorithms_teach_on_engines_without_gradients(monkeypatch):
    short = {"num_envs": 8, "rollout_steps": 8, "evaluation_episodes": 2}
    monkeypatch.setitem(TEACHERS, "ppo", ("total_steps", 256, short))
    config = DistillConfig(**TINY | {"teacher": "ppo", "teacher_budget": 0, "teachers": 1, "rounds": 2})
    task = tasks.make("quad_hover", episode_s=0.5)  # one airframe: every teacher has the same vehicle
    distill = Distill(with_engine(task, "mujoco"), config, seed=0)
    metrics = run(distill, 10)
    assert len(metrics) == 3 and "reward" in metrics[0] and np.isfinite(metrics[-1]["loss"])


@pytest.mark.long
def test_it_learns_to_fly_vehicles_without_a_teacher():
    task = tasks.make("quad_any", robot="any_published", path="hold", delay_high=0.0, noise=0.0)
    settings = {"teachers": 6, "teacher_budget": 400, "accept": 0.5, "teacher_history": 2}
    settings |= {"rounds": 60, "guided": 5, "num_envs": 256, "rollout_steps": 64, "epochs": 4, "batch_size": 32}
    distill = learner(seed=1, task=task, **settings, evaluation_episodes=200)
    before = distill.evaluate(200)["success"].mean()
    metrics = run(distill, 10_000)
    losses = [m["loss"] for m in metrics if "gradient_norm" in m]
    assert np.mean(losses[-5:]) < 0.3 * losses[0]
    assert before < 0.05 and metrics[-1]["success"] > 0.5
    assert metrics[-1]["teachers"] == 6.0 and metrics[-1]["progress"] == 1.0


def test_bad_settings_are_named():
    for changes, message in (
        ({"teachers": 0}, "algorithm.teachers must be at least 1, got 0"),
        ({"batch_size": 24}, "batch_size a multiple of 16"),
        ({"num_envs": 40}, "num_envs a multiple of batch"),
        ({"accept": 1.5}, "0..1, got 1.5"),
        ({"guided": -1}, "negative, got -1"),
        ({"final_learning_rate": 1.0}, "final_learning_rate <= learning_rate"),
        ({"hidden": [16]}, "two sizes"),
        ({"teacher": "apq"}, "'apq' is not one of apg, ppo, sac"),
        ({"teacher_budget": -1}, "teacher_budget must not be negative, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            learner(**changes)
    with pytest.raises(ValueError, match="CPU only"):
        Distill(tasks.make("quad_any"), DistillConfig(), 0, device="cuda")
    with pytest.raises(ValueError, match="'mujoco' has no adjoint"):
        Distill(with_engine(tasks.make("quad_any"), "mujoco"), DistillConfig(), 0)
