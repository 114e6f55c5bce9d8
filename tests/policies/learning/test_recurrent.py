"""PPO with an actor that remembers: gradients through time, memories at the ends of episodes, resume, learning."""

import numpy as np
import pytest
import torch

from policies.algorithms.ppo import Ppo, PpoConfig
from policies.algorithms.ppo.fused import Fused
from policies.algorithms.ppo.tutor import Lesson
from policies.learning.fused import recurrent
from policies.learning.fused.surrogate import Loss
from policies.runner import checkpoint
from sim import tasks
from sim.env import Step
from tests.outsider.ball_game import BallGame, GameConfig
from tests.policies.toy_reach import Cell, Config, ToyReach
from tests.policies.toy_task import PointTask

SETTINGS = {"network": "gru", "hidden": [16, 20], "critic_hidden": [16], "num_envs": 32, "rollout_steps": 20}
SETTINGS |= {"epochs": 2, "minibatches": 3, "evaluate_every": 0, "lengths": [0.01, 0.2]}


def learner(task=None, seed=7, **settings):
    return Ppo(task or tasks.make("quad_hover", history=1), PpoConfig(**(SETTINGS | settings)), seed)


def run(algorithm, count):
    """The metrics of the next `count` yields."""
    return [metrics for _, metrics in zip(range(count), algorithm.learn(), strict=False)]


def collected(task=None, **settings):
    """The fused path after some iterations, with another rollout of its present weights, and its returns judged."""
    ppo = learner(task, **settings)
    run(ppo, 3)
    fused = ppo.path
    fused.actor.views()[-1][0][...] *= 30.0  # so that what is remembered matters
    fused.actor.turn()
    fused._refresh()
    fused._collect()
    fused._judge()
    return fused


def numbers(array, rows, size):
    """Samples of whole vectors as (rows, size)."""
    return array.reshape(rows, -1)[:, :size].copy()


def over_time(fused):
    """What the actor saw and did (T, n, k), and whether an episode ended with that step (T, n)."""
    samples, shape = fused.rollouts.samples, (fused.config.rollout_steps, fused.config.num_envs)
    n = len(samples.reward)
    seen = numbers(samples.seen, len(samples.value), fused.rollouts.features)[:n]
    action = numbers(samples.action, n, fused.actions)
    return seen.reshape(*shape, -1), action.reshape(*shape, -1), (samples.ended != -1).reshape(shape)


def in_torch(fused):
    """The actor's layers, with torch's own GRU cell."""
    encoder, inward, across, last = [[torch.from_numpy(x) for x in pair] for pair in fused.actor.matrices()]
    first, end = torch.nn.Linear(*encoder[0].shape[::-1]), torch.nn.Linear(*last[0].shape[::-1])
    cell = torch.nn.GRUCell(inward[0].shape[1], across[0].shape[1])
    parts = [first.weight, first.bias, cell.weight_ih, cell.bias_ih, cell.weight_hh, cell.bias_hh, end.weight, end.bias]
    with torch.no_grad():
        for parameter, value in zip(parts, (x for pair in (encoder, inward, across, last) for x in pair), strict=True):
            parameter.copy_(value)
    return first, cell, end, parts


class Says:
    """Who says at random what would have been right."""

    columns = [0]

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def act(self, signals):
        rows = len(next(iter(signals.values())))
        return self.rng.uniform(-1.0, 1.0, (rows, len(self.columns))).astype(np.float32)

    def begin(self, rows):
        assert rows.any()


def told(task, **settings):
    """As `collected`, of a path that hears somebody, and tells what is privileged."""
    config = PpoConfig(**(SETTINGS | {"path": "fused"} | settings))
    fused = Fused(task, config, 7, practised=task, lesson=Lesson(first=0.7, estimate=2.0))
    fused.hear(Says())
    [_ for _, _ in zip(range(3), fused.learn(), strict=False)]
    fused._collect()
    fused._tell()
    fused._judge()
    return fused


@pytest.mark.parametrize("kind", ["compiled", "stepped", "told"])
def test_gradients_are_those_of_torch(kind):
    settings = {"mirrors": False, "entropy": 0.01}
    told_of = tasks.make("soccer_vision_1v1", perception="detector", steps=17)
    fused = told(told_of, **settings) if kind == "told" else None
    fused = fused or collected(ToyReach() if kind == "stepped" else None, **settings)
    assert kind != "told" or fused.outputs > fused.actions
    samples, state = fused.rollouts.samples, fused.actor.sizes[2]
    seen, action, ended = over_time(fused)
    assert ended[:-1].any() and not ended[:-1].all()
    rows = np.array([3, 0, *range(5, 25)])  # neither all of them nor whole chunks
    first, cell, end, parts = in_torch(fused)
    log_std = torch.from_numpy(fused.log_std.copy()).requires_grad_()
    hidden = torch.from_numpy(numbers(fused.actor.net.before, fused.config.num_envs, state))[rows]
    assert hidden.abs().mean() > 0.01
    x = torch.from_numpy(((seen - fused.seen.mean) / fused.seen.std).astype(np.float32))[:, rows]
    log_prob, means, stop = [], [], torch.from_numpy(ended[:, rows])
    for t in range(len(x)):
        hidden = cell(torch.relu(first(x[t])), hidden)
        mean = torch.tanh(end(hidden))
        means.append(mean)
        u = (torch.from_numpy(action)[t, rows] - mean[:, : fused.actions]) / log_std.exp()
        log_prob.append((-0.5 * u * u - log_std).sum(-1))
        hidden = torch.where(stop[t, :, None], 0.0, hidden)
    advantage, old = (
        torch.from_numpy(x.reshape(ended.shape)[:, rows].copy()) for x in (samples.advantage, samples.log_prob)
    )
    old = old + 0.3 * torch.randn(old.shape, generator=torch.Generator().manual_seed(0))  # so that some are clipped
    samples.log_prob.reshape(ended.shape)[:, rows] = old
    ratio = (torch.stack(log_prob) - old).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    apart = torch.zeros(())
    if kind == "told":
        wanted = numbers(samples.wanted, len(samples.reward), fused.outputs).reshape(*ended.shape, -1)[:, rows]
        assert np.abs(wanted[..., fused.actions :]).max() > 0.1  # of what is privileged
        heed = torch.from_numpy(samples.heed.reshape(-1)[: fused.outputs].copy())
        assert heed[0] == pytest.approx(0.7) and heed[-1] > 0.0 and (fused.actions == 1 or heed[1] == 0.0)
        apart = (heed * (torch.stack(means) - torch.from_numpy(wanted)).square()).sum(-1).mean()
    (-gain.mean() + apart - 0.01 * log_std.sum()).backward()
    g, metrics = np.zeros_like(fused.work.actor_gradients[0]), np.zeros(4)
    loss = Loss(*fused.work.numbers[:4])
    recurrent.policy_gradients(
        *(rows, np.float32(1.0 / gain.numel()), samples, fused.actor.net, fused.seen.scale, loss, fused.std),
        *(g, g[fused.actor.extra :], fused.scratches[0][0], metrics),
    )
    assert metrics[3] / gain.numel() == pytest.approx(-float(gain.detach().mean()), abs=1e-4)
    assert 0.0 < metrics[2] < gain.numel()
    found = [x for pair in fused.actor.matrices(g) for x in pair]
    for parameter, value in zip(parts, found, strict=True):
        wanted = parameter.grad.numpy()
        np.testing.assert_allclose(value, wanted, atol=1e-4 * np.abs(wanted).max())
    deviations = g[fused.actor.extra :].reshape(-1)[: fused.actions]
    np.testing.assert_allclose(deviations, log_std.grad, atol=1e-4 * float(log_std.grad.abs().max()))


@pytest.mark.parametrize("kind", ["compiled", "stepped", "own world", "team"])
def test_the_file_does_what_the_actor_did(kind):
    """Also after the ends of episodes, with which memories end."""
    game = BallGame(GameConfig(steps=18))
    task = {"compiled": None, "stepped": PointTask(), "own world": ToyReach(), "team": game}[kind]
    fused = collected(task, num_envs=16)
    fused.average[:] = fused.actor.net.weights
    network = fused.controller().network
    seen, action, ended = over_time(fused)
    state = {"hidden": numbers(fused.actor.net.before, 16, fused.actor.sizes[2])}
    assert ended.any()
    for t in range(len(seen)):
        mean, state = network.forward(seen[t], state)
        u = (action[t] - mean) * np.exp(-fused.log_std)
        density = -0.5 * (u * u).sum(-1) - fused.log_std.sum()
        np.testing.assert_allclose(density, fused.rollouts.samples.log_prob.reshape(ended.shape)[t], atol=2e-3)
        state["hidden"][ended[t]] = 0.0
    np.testing.assert_allclose(state["hidden"], numbers(fused.actor.net.state, 16, fused.actor.sizes[2]), atol=1e-4)


def test_before_a_step_nothing_has_diverged():
    ppo = learner(epochs=1, minibatches=1)
    told = run(ppo, 4)
    assert [metrics["kl"] for metrics in told[1:]] == pytest.approx([0.0] * 3, abs=1e-6)


@pytest.mark.long  # 12 s to compile what helps in flight; test_ppo.py and test_student.py say it of each half of that
def test_threads_change_no_result():
    one, two = (learner(num_envs=64, threads=threads) for threads in (1, 2))
    assert run(one, 2) == run(two, 2)
    np.testing.assert_array_equal(one.path.actor.net.weights, two.path.actor.net.weights)


@pytest.mark.parametrize("kind", ["compiled", "own world"])
def test_resume_is_exact(tmp_path, kind):
    task = ToyReach() if kind == "own world" else None
    whole = learner(task, 5)
    told = run(whole, 6)
    half = learner(task, 5)
    run(half, 3)
    checkpoint.save(tmp_path / "checkpoint.npz", half.state_dict())
    run(half, 1)  # what was saved must not change with the learner
    resumed = learner(task, 6)
    resumed.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert run(resumed, 3)[-1] == told[-1]
    np.testing.assert_array_equal(whole.path.average, resumed.path.average)


def test_mirror_images_are_answered_with_mirror_images():
    fused = collected(hidden=[16, 24])
    seen, told = fused.symmetry[0].inputs, fused.symmetry[0].outputs
    fused.average[:] = fused.actor.net.weights
    network = fused.controller().network
    rng = np.random.default_rng(0)
    flight = rng.normal(size=(5, 3, network.inputs)).astype(np.float32) * fused.seen.std + fused.seen.mean
    for places, signs, ends, factors in zip(seen.places, seen.signs, told.places, told.signs, strict=True):
        one = other = network.initial_state(3)
        for x in flight.astype(np.float32):
            action, one = network.forward(x, one)
            mirrored, other = network.forward((x[:, places] * signs).astype(np.float32), other)
            np.testing.assert_allclose(mirrored, action[:, ends] * factors, atol=1e-4)
    assert len(seen.places) == 4


class ToldOnce(ToyReach):
    """Its goal is shown in the first step only; what counts is how close it gets."""

    def open(self, num, seed):
        return Fading(self, num, seed)


class Fading(Cell):
    def __init__(self, task, num, seed):
        super().__init__(task, num, seed)
        self.age = np.zeros((num, 1), np.int64)

    def reset(self, rows, episodes):
        super().reset(rows, episodes)
        self.age[rows] = 0

    def observe(self):
        return super().observe() | {"goal": np.where(self.age == 0, self.goal, np.float32(0.0))}

    def step(self, command):
        step = super().step(command)
        self.age += 1
        distance = np.linalg.norm(self.goal - self.position, axis=1)
        return Step(5.0 * step.reward - distance, step.success, step.terminated)


@pytest.mark.parametrize(
    ("network", "path"), [("gru", "fused"), pytest.param("gru", "torch", marks=pytest.mark.long), ("mlp", "fused")]
)
def test_it_learns_to_remember(network, path):
    settings = {"network": network, "path": path, "hidden": [32, 32], "critic_hidden": [32, 32]}
    settings |= {"num_envs": 64, "rollout_steps": 24}
    settings |= {"minibatches": 4, "epochs": 4, "total_steps": 100_000, "initial_std": 0.4, "gamma": 0.95}
    settings |= {"learning_rate": 5e-3, "final_learning_rate": 5e-4}
    success = run(learner(ToldOnce(Config(radius=0.2)), 0, **settings), 1000)[-1]["success"]
    assert success > 0.8 if network == "gru" else success < 0.3


def test_bad_settings_are_named():
    for settings, message in (
        ({"network": "lstm"}, "'lstm' is not one of mlp, gru"),
        ({"hidden": [16]}, r"a gru takes two sizes in algorithm.hidden \(encoder, state\), got \[16\]"),
        ({"minibatches": 33}, "32 rows do not make 33 minibatches"),
        ({"path": "fused", "hidden": [600, 16]}, "path=fused does not do layers of more than 512 units"),
        ({"hidden": [16, 18]}, "4 mirror images need hidden layers of a multiple of 4 units"),
    ):
        with pytest.raises(ValueError, match=message):
            learner(**settings)
