"""PPO and what it is made of: advantages, distributions, normalisers; exact resume; learning."""

import math
from types import FunctionType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from policies.algorithms.ppo import Ppo, PpoConfig
from policies.learning.buffers import RolloutBuffer, advantages
from policies.learning.fused import parallel, work_queue
from policies.learning.networks import Normalizer, gaussian_log_prob, linear_layers, mlp, moments, squashed_sample
from policies.runner import checkpoint
from sim import tasks
from sim.vec_env import VecEnv
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_task import PointTask, use_points
from tests.sim.toy_frail import frail

TINY = {"num_envs": 8, "rollout_steps": 8, "epochs": 2, "minibatches": 2, "hidden": [16], "critic_hidden": [16]}


def learner(seed=0, task=None, **settings):
    return Ppo(task or tasks.make("quad_hover"), PpoConfig(**(TINY | {"evaluate_every": 0} | settings)), seed)


def torch_path(seed=0, task=None, **settings):
    return learner(seed, task, path="torch", **settings).path


def run(algorithm, count):
    """The metrics of the next `count` yields."""
    return [metrics for _, metrics in zip(range(count), algorithm.learn(), strict=False)]


def naive_advantage(t, reward, value, next_value, lost, done, gamma, decay):
    """The definition: the sum over k of (gamma lambda)^k delta_(t+k) until the episode or the rollout ends."""
    total = 0.0
    for k in range(len(reward) - t):
        i = t + k
        delta = reward[i] + gamma * next_value[i] * (1.0 - lost[i]) - value[i]
        total += (gamma * decay) ** k * delta
        if done[i]:
            break
    return total


@given(seed=st.integers(0, 10_000), steps=st.integers(1, 12), gamma=st.floats(0.1, 0.999), decay=st.floats(0.0, 1.0))
def test_advantages_follow_the_definition(seed, steps, gamma, decay):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, steps, 4))
    lost = rng.random((steps, 4)) < 0.2
    done = lost | (rng.random((steps, 4)) < 0.2)
    arguments = [torch.from_numpy(a) for a in (reward, value, next_value, lost, done)]
    found = advantages(*arguments, gamma, decay)
    for e in range(4):
        columns = [a[:, e] for a in (reward, value, next_value, lost, done)]
        wanted = [naive_advantage(t, *columns, gamma, decay) for t in range(steps)]
        np.testing.assert_allclose(found[:, e], wanted, atol=1e-9)


def test_time_limits_do_not_look_like_the_end(monkeypatch):
    use_points(monkeypatch)
    ppo = torch_path(task=PointTask(costs=(), alive_bonus=1.0), rollout_steps=25, gamma=0.9)
    with torch.no_grad():
        for parameter in ppo.critic.parameters():
            parameter.zero_()
    ppo.value_norm.update(torch.full((1000, 1), 10.0))  # a critic that says 1 / (1 - gamma) everywhere
    data, metrics = ppo._collect()
    assert metrics["episode_length"] <= 10.0  # so that there were time limits within the rollout
    torch.testing.assert_close(data[0]["target"], torch.full((200,), 10.0), atol=1e-3, rtol=0.0)


@pytest.mark.parametrize("task", [PointTask(costs=(), alive_bonus=1.0), "quad_hover"], ids=["stepped", "compiled"])
def test_time_limits_do_not_look_like_the_end_without_torch(task):
    if task == "quad_hover":
        task = tasks.make("quad_hover", guidance=1.0, delay_high=0.0)  # nobody falls within a few steps
        task.costs, task.alive_bonus = (), 1.0
    ppo = learner(task=task, num_envs=16, rollout_steps=25, gamma=0.9, lengths=[0.01, 0.01], initial_std=0.02)
    ppo = ppo.path
    for weight, bias in ppo.critic.views():
        weight[:], bias[:] = 0.0, 0.0
    ppo.value.add(np.full((1000, 1), 10.0, np.float32))
    ppo._refresh()
    metrics = ppo._collect()
    ppo._judge()
    assert metrics["episode_length"] <= 10.0 and metrics["lost"] == 0.0
    np.testing.assert_allclose(ppo.rollouts.samples.target, 10.0, atol=1e-3)


def both(**settings):
    """The two paths with the same weights, and the fused one's first rollout."""
    task = tasks.make("quad_hover", history=2)
    settings = {"num_envs": 32, "rollout_steps": 40, "lengths": [0.01, 0.2], "entropy": 0.01} | settings
    fused, torched = (learner(7, task, path=path, **settings).path for path in ("fused", "torch"))
    for network, made in ((torched.actor, fused.actor), (torched.critic, fused.critic)):
        values = [torch.from_numpy(x) for pair in made.matrices() for x in pair]
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), values, strict=True):
                parameter.copy_(value)
    torched.average.load_state_dict(torched.actor.state_dict())
    torched.value_norm.count = 0
    fused._refresh()
    fused._collect()
    fused._learn_scales()
    for one, other in ((torched.actor_norm, fused.seen), (torched.critic_norm, fused.judged)):
        one.load_state_dict(other.state_dict())
    return fused, torched


def as_torch(path):
    """What the fused path has collected, as the torch path has it: (T, n, ...)."""
    rollouts, samples = path.rollouts, path.rollouts.samples
    shape, n = (path.config.rollout_steps, path.config.num_envs), len(samples.reward)

    def numbers(array, rows, size):
        return torch.from_numpy(array.reshape(rows, -1)[:, :size].copy())

    judged = numbers(samples.judged, len(samples.value), rollouts.judged)
    seen = numbers(samples.seen, len(samples.value), rollouts.features)
    data = {"x": seen[:n], "c": judged[:n], "action": numbers(samples.action, n, 4)}
    constant = np.float32(0.5 * math.log(2.0 * math.pi) * 4)
    data["log_prob"] = torch.from_numpy(samples.log_prob - constant)
    for name in ("reward", "advantage", "target"):
        data[name] = torch.from_numpy(getattr(samples, name).copy())
    ended = torch.from_numpy(samples.ended.copy())
    return {name: value.unflatten(0, shape) for name, value in data.items()}, ended.unflatten(0, shape), judged


@pytest.mark.parametrize("mirrors", [False, True])
def test_both_paths_have_one_meaning(mirrors):
    """Values, advantages and targets, and what a gradient step makes of them."""
    fused, torched = both(epochs=1, minibatches=1, mirrors=mirrors)
    samples = fused.rollouts.samples
    fused._judge()
    data, ended, judged = as_torch(fused)
    with torch.no_grad():
        value = torched.value(judged)
        now = torched.value(data["c"])
    last = value[len(samples.reward) : len(samples.reward) + 32]
    following = torch.cat((now[1:], last[None]))
    assert (ended == -2).any() and (ended >= 0).any()  # some are lost, some are out of time
    following[ended >= 0] = value[ended[ended >= 0]]
    gamma, decay = fused.config.gamma, fused.config.gae_lambda
    wanted = advantages(data["reward"], now, following, ended == -2, ended != -1, gamma, decay)
    torch.testing.assert_close(data["advantage"], wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(data["target"], wanted + now, atol=1e-4, rtol=1e-4)
    normal = (wanted - wanted.mean()) / (wanted.std(correction=0) + 1e-8)
    torched._set_schedule()
    torched._rescale_value(moments(data["target"][..., None]))
    told = {name: data[name].flatten(0, 1) for name in ("x", "c", "action", "log_prob", "target")}
    torched.counts = [len(told["x"])]
    theirs = torched._update([told | {"advantage": normal.flatten(0, 1)}])
    ours = fused._update()
    for name in ("kl", "value_loss", "loss"):
        assert ours[name] == pytest.approx(theirs[name], abs=2e-5), name
    for network, made in ((torched.actor, fused.actor), (torched.critic, fused.critic)):
        found = [x for pair in made.matrices() for x in pair]
        for parameter, value in zip(network.parameters(), found, strict=True):
            np.testing.assert_allclose(value, parameter.detach(), atol=2e-4)
    np.testing.assert_allclose(fused.log_std, torched.log_std.detach(), atol=1e-5)
    np.testing.assert_allclose(fused.seen.std, torched.actor_norm.std, rtol=1e-4)


def test_threads_change_no_result():
    one, two, four = (learner(3, num_envs=64, threads=threads) for threads in (1, 2, 4))
    assert run(one, 2) == run(two, 2) == run(four, 2)
    for more in (two, four):
        np.testing.assert_array_equal(one.path.actor.net.weights, more.path.actor.net.weights)


def test_helpers_call_what_is_compiled_for_the_first_thread():
    """Constants among the arguments would be types of their own. Toys, as what is on the disk hides what was called."""
    called = {
        "improve": njit(lambda queue, leads, bounds, steps, rate, clip, least, w, actor, critic, scratches: True),
        "value": njit(lambda queue, leads, count, w, scratch: True),
        "play": njit(lambda queue, leads, flight, scratch: True),
    }
    helper = njit(FunctionType(parallel.help.py_func.__code__, {**vars(parallel), **called}))
    queue, some = work_queue.empty(), np.zeros(1)
    queue[work_queue.STOPPED] = 1
    helper(queue, some, some, some, some, (some, some))
    for toy in called.values():
        assert toy.signatures and "Literal" not in str(toy.signatures)


@given(seed=st.integers(0, 10_000))
def test_log_densities_agree_with_torch(seed):
    generator = torch.Generator().manual_seed(seed)
    mean, log_std, noise = (torch.randn((6, 3), generator=generator, dtype=torch.float64) for _ in range(3))
    normal = torch.distributions.Normal(mean, log_std.exp())
    plain = mean + log_std.exp() * noise
    torch.testing.assert_close(gaussian_log_prob(plain, mean, log_std), normal.log_prob(plain).sum(-1))
    action, log_prob = squashed_sample(mean, log_std, noise)
    squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform())
    inside = action.abs().amax(-1) < 1.0 - 1e-6  # torch inverts tanh, which fails where it saturates
    torch.testing.assert_close(log_prob[inside], squashed.log_prob(action).sum(-1)[inside], rtol=1e-4, atol=1e-4)
    far = squashed_sample(torch.full((1, 1), 30.0), torch.zeros(1, 1), torch.zeros(1, 1))[1]
    assert far.isfinite().all()


@given(seed=st.integers(0, 10_000), parts=st.integers(1, 5))
def test_normalizer_sees_all_samples_and_folds_into_a_layer(seed, parts):
    rng = np.random.default_rng(seed)
    samples = rng.normal(3.0, [0.1, 5.0, 1.0], (parts * 40, 3)).astype(np.float32)
    normalizer = Normalizer(3)
    for part in np.split(samples, parts):
        normalizer.update(torch.from_numpy(part))
    np.testing.assert_allclose(normalizer.mean, samples.astype(float).mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.variance, samples.astype(float).var(0), rtol=1e-4)
    network = mlp([3, 5, 2], torch.Generator().manual_seed(seed))
    x = torch.from_numpy(samples)
    torch.testing.assert_close(normalizer.invert(normalizer(x)), x)
    (first, bias), (last, offset) = linear_layers(network, normalizer)
    folded = np.tanh(samples @ first.T + bias) @ last.T + offset
    np.testing.assert_allclose(folded, network(normalizer(x)).detach(), atol=2e-4)


def test_rollout_buffer_refuses_to_overflow():
    buffer = RolloutBuffer(2)
    for value in (1.0, 2.0):
        buffer.add(reward=torch.full((3,), value))
    assert buffer["reward"].tolist() == [[1.0] * 3, [2.0] * 3]
    with pytest.raises(IndexError, match="already holds its 2 steps"):
        buffer.add(reward=torch.zeros(3))
    buffer.clear()
    buffer.add(reward=torch.zeros(3))
    assert len(buffer["reward"]) == 1


TASKS = {
    "torch": ({"path": "torch"}, None),
    "compiled": ({"num_envs": 32}, None),
    "stepped": ({"num_envs": 6}, None),
    "own world": ({"num_envs": 6}, ToyReach),
    "workers": ({"num_envs": 6, "workers": 2}, frail),
}


@pytest.mark.parametrize("kind", TASKS)
def test_resume_is_exact(tmp_path, kind):
    settings, own = TASKS[kind]

    def made(seed):
        return learner(seed, own() if own else None, **settings)

    whole = made(5)
    told = run(whole, 8)
    half = made(5)
    run(half, 4)
    checkpoint.save(tmp_path / "checkpoint.npz", half.state_dict())
    run(half, 1)  # what was saved must not change with the learner
    resumed = made(6)
    resumed.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert run(resumed, 4)[-1] == told[-1]
    (one, other) = (learned.controller().network.layers for learned in (whole, resumed))
    for pair, same in zip(one, other, strict=True):
        np.testing.assert_array_equal(pair[0], same[0])
        np.testing.assert_array_equal(pair[1], same[1])


def test_the_seed_decides_and_global_random_state_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = run(learner(seed=3), 3)[-1]
    assert torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(np.random.get_state()[1], before[1])
    torch.manual_seed(2)
    assert run(learner(seed=3), 3)[-1] == first != run(learner(seed=4), 3)[-1]


def test_the_controller_is_the_policy():
    ppo = torch_path(num_envs=16, averaged=0.0)
    for _ in zip(range(3), ppo.learn(), strict=False):
        pass
    controller, env = ppo.controller(), VecEnv(ppo.task, 5, seed=9)
    state = controller.initial_state(5)
    observation = env.observation
    for _ in range(4):
        with torch.no_grad():
            action = ppo.kept(env.features(observation), {})
        signals = {name: value.numpy() for name, value in observation["policy"].items()}
        commands, state = controller.act(signals, state)
        np.testing.assert_allclose(2.0 * commands["motor_command"] - 1.0, action, atol=1e-5)
        observation = env.step(action).observation


def test_the_average_is_that_of_the_end():
    ppo = learner(task=PointTask(), num_envs=16, rollout_steps=8, total_steps=16 * 8 * 10, averaged=0.3)
    kept = [ppo.path.actor.net.weights.copy() for _ in ppo.learn()]
    np.testing.assert_allclose(ppo.path.average, np.mean(kept[-3:], axis=0), atol=1e-5)
    assert not np.allclose(ppo.path.average, kept[-1], atol=1e-6)


@pytest.mark.parametrize("path", ["fused", "torch"])
def test_it_learns_to_go_to_zero(monkeypatch, path):
    use_points(monkeypatch)
    rates = {"learning_rate": 1e-2, "final_learning_rate": 1e-3}
    ppo = learner(task=PointTask(), num_envs=64, total_steps=40_000, initial_std=0.3, path=path, **rates)
    metrics = run(ppo, 10_000)
    assert metrics[-1]["success"] > 0.95
    assert metrics[-1]["progress"] == 1.0 and metrics[-1]["env_steps"] <= 40_000


@pytest.mark.long
def test_it_learns_on_the_quadrotor():
    settings = {
        "num_envs": 256,
        "rollout_steps": 16,
        "epochs": 4,
        "minibatches": 4,
        "hidden": [32, 32],
        "total_steps": 400_000,
    }
    settings |= {"critic_hidden": [64, 64], "lengths": [1.0, 1.0], "final_easy": 0.9}
    ppo = learner(seed=1, **settings)
    returns = [metrics["episode_return"] for metrics in run(ppo, 10_000) if "episode_return" in metrics]
    assert np.mean(returns[-10:]) > np.mean(returns[5:15]) + 10.0


def test_bad_settings_are_named():
    for settings, message in (
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"gamma": 1.0}, "gamma must be between 0 and 1"),
        ({"correlation": 1.0}, "correlation must be between -1 and 1"),
        ({"lengths": [0.5]}, "lengths and final_lengths are two shares each"),
        ({"min_std": 0.5}, "min_std <= initial_std"),
        ({"path": "fast"}, "'fast' is not one of auto, fused, torch"),
        ({"path": "fused", "hidden": [1024]}, "path=fused does not do layers of more than 512 units"),
        ({"final_learning_rate": 1.0}, "0 < final_learning_rate <= learning_rate"),
        ({"averaged": 2.0}, "averaged must be within 0..1"),
        ({"hidden": [18]}, "4 mirror images need hidden layers of a multiple of 4 units"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"threads": 5}, "threads must be at most 4, got 5"),
        ({"minibatches": 65}, "64 samples do not make 65 minibatches"),
        ({"activation": "gelu"}, "unknown activation 'gelu'; choices: tanh, relu"),
    ):
        with pytest.raises(ValueError, match=message):
            learner(**settings)


def test_flying_the_untrained_policy_does_nothing_wild():
    env = VecEnv(tasks.make("quad_hover", guidance=1.0), 20)
    ppo = torch_path()
    assert math.isfinite(float(ppo.log_std.detach().sum()))
    scores = env.fly(lambda observation: ppo.mean(env.features(observation), {}).detach())
    assert (scores["control_effort"] < 0.05).all()
