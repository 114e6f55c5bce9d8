"""PPO and what it is made of: advantages, distributions, normalisers; exact resume; learning."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policies.algorithms.ppo import Ppo, PpoConfig
from policies.learning.buffers import RolloutBuffer, advantages
from policies.learning.networks import Normalizer, gaussian_log_prob, linear_layers, mlp, squashed_sample
from policies.runner import checkpoint
from sim import tasks
from sim.vec_env import VecEnv
from tests.policies.toy_task import PointTask, use_points

TINY = {"num_envs": 8, "rollout_steps": 8, "epochs": 2, "minibatches": 2, "hidden": [16], "critic_hidden": [16]}


def learner(seed=0, task=None, **settings):
    return Ppo(task or tasks.make("quad_hover"), PpoConfig(**(TINY | {"evaluate_every": 0} | settings)), seed)


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
    ppo = learner(task=PointTask(costs=(), alive_bonus=1.0), rollout_steps=25, gamma=0.9)
    with torch.no_grad():
        for parameter in ppo.critic.parameters():
            parameter.zero_()
    ppo.value_norm.update(torch.full((1000, 1), 10.0))  # a critic that says 1 / (1 - gamma) everywhere
    data, metrics = ppo._collect()
    assert metrics["episode_length"] <= 10.0  # so that there were time limits within the rollout
    torch.testing.assert_close(data["target"], torch.full((200,), 10.0), atol=1e-3, rtol=0.0)


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


def test_resume_is_exact(tmp_path):
    whole = learner(seed=5)
    run(whole, 6)
    half = learner(seed=5)
    run(half, 3)
    checkpoint.save(tmp_path / "checkpoint.npz", half.state_dict())
    run(half, 1)  # what was saved must not change with the learner
    resumed = learner(seed=6)
    resumed.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert run(resumed, 3)[-1] == run(learner(seed=5), 6)[-1]
    for one, other in zip(whole.parameters, resumed.parameters, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(whole.actor_norm.mean, resumed.actor_norm.mean)


def test_the_seed_decides_and_global_random_state_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = run(learner(seed=3), 3)[-1]
    assert torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(np.random.get_state()[1], before[1])
    torch.manual_seed(2)
    assert run(learner(seed=3), 3)[-1] == first != run(learner(seed=4), 3)[-1]


def test_the_controller_is_the_policy():
    ppo = learner(num_envs=16)
    run(ppo, 3)
    controller, env = ppo.controller(), VecEnv(ppo.task, 5, seed=9)
    state = controller.initial_state(5)
    observation = env.observation
    for _ in range(4):
        with torch.no_grad():
            action = ppo.mean(env.features(observation), {})
        signals = {name: value.numpy() for name, value in observation["policy"].items()}
        commands, state = controller.act(signals, state)
        np.testing.assert_allclose(2.0 * commands["motor_command"] - 1.0, action, atol=1e-5)
        observation = env.step(action).observation


def test_it_learns_to_go_to_zero(monkeypatch):
    use_points(monkeypatch)
    ppo = learner(task=PointTask(), num_envs=64, total_steps=40_000, initial_std=0.3, learning_rate=1e-2)
    before = ppo.evaluate(200, seed=1)["success"].mean()
    metrics = run(ppo, 10_000)
    assert before < 0.3 and metrics[-1]["success"] > 0.95
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
        ({"gamma": 1.0}, "0 < gamma < 1"),
        ({"lengths": [0.5]}, "lengths are two shares"),
        ({"min_std": 0.5}, "min_std <= initial_std"),
        ({"minibatches": 65}, "64 samples do not make 65 minibatches"),
        ({"activation": "gelu"}, "unknown activation 'gelu'; choices: tanh, relu"),
    ):
        with pytest.raises(ValueError, match=message):
            learner(**settings)


def test_flying_the_untrained_policy_does_nothing_wild():
    env = VecEnv(tasks.make("quad_hover", guidance=1.0), 20)
    ppo = learner()
    assert math.isfinite(float(ppo.log_std.detach().sum()))
    scores = env.fly(lambda observation: ppo.mean(env.features(observation), {}).detach())
    assert (scores["control_effort"] < 0.05).all()
