"""Stream AC(lambda) with ObGD: the equations, against sums and torch's gradients; and that it learns."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from policies.algorithms.streaming import Streaming, StreamingConfig
from policies.algorithms.streaming.actor import StreamedActor
from policies.algorithms.streaming.stream_ac import LEAK, Perceptron, Rules, Running, StreamAC, bounded_step
from sim.tasks import make
from tests.policies.toy_reach import ToyReach

FINITE = st.floats(-1e3, 1e3)


@given(error=FINITE, size=st.floats(0.0, 1e6), rate=st.floats(1e-3, 10.0), kappa=st.floats(1.0, 10.0))
def test_a_step_is_bounded_as_obgd_says(error, size, rate, kappa):
    step = bounded_step(error, size, rate, kappa)
    assert 0.0 < step <= rate
    assert step * kappa * max(abs(error), 1.0) * size <= 1.0 + 1e-9
    if rate * kappa * max(abs(error), 1.0) * size < 1.0:
        assert step == rate


@given(x=st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=8), error=FINITE)
def test_a_linear_prediction_is_never_overshot(x, error):
    x = np.array(x)
    step = bounded_step(error, float(np.abs(x).sum()), 1.0, 2.0)
    left = error - step * error * float(x @ x)
    assert abs(left) <= abs(error) and left * error >= 0.0


def test_traces_are_the_discounted_sum_of_gradients():
    rng = np.random.default_rng(0)
    network, kept, gradients = Perceptron([3, 4, 2], rng, 0.5), 0.7, []
    for _ in range(6):
        network.forward(rng.normal(size=3))
        gradients.append(network.backward(rng.normal(size=2)))
        network.remember(gradients[-1], kept)
    for at, trace in enumerate(network.traces):
        wanted = sum(kept ** (5 - k) * gradient[at] for k, gradient in enumerate(gradients))
        np.testing.assert_allclose(trace, wanted, rtol=1e-12, atol=1e-15)
    network.forget()
    assert not any(trace.any() for trace in network.traces)


def test_running_moments_are_those_of_all_samples():
    x = np.random.default_rng(0).normal(3.0, [1.0, 20.0], (50, 2))
    running = Running(2)
    assert running.std.tolist() == pytest.approx([1.0, 1.0])
    for row in x:
        running.update(row)
    np.testing.assert_allclose(running.mean, x.mean(0))
    np.testing.assert_allclose(running.std, x.std(0, ddof=1), rtol=1e-6)


def test_most_weights_into_a_unit_begin_as_zero():
    network = Perceptron([20, 30, 1], np.random.default_rng(0), 0.9)
    for weight in network.weights[::2]:
        kept = (weight != 0.0).sum(axis=1)
        assert (kept == weight.shape[1] - int(0.9 * weight.shape[1])).all()
        assert np.abs(weight).max() <= 1.0 / np.sqrt(weight.shape[1])


class Reference:
    """The same by torch's automatic gradients, written from the paper's pseudocode."""

    def __init__(self, learner: StreamAC) -> None:
        self.rules = learner.rules
        self.weights = {
            name: [torch.tensor(w, requires_grad=True) for w in getattr(learner, name).weights]
            for name in ("actor", "critic")
        }
        self.traces = {name: [torch.zeros_like(w) for w in some] for name, some in self.weights.items()}

    def forward(self, name: str, x: np.ndarray) -> torch.Tensor:
        *layers, last = zip(self.weights[name][::2], self.weights[name][1::2], strict=True)
        y = torch.from_numpy(x)
        for weight, bias in layers:
            y = functional.leaky_relu(functional.layer_norm(weight @ y + bias, bias.shape), LEAK)
        return last[0] @ y + last[1]

    def learn(self, seen, action, scaled, then, lost, ended) -> float:
        rules = self.rules
        worth = 0.0 if lost else self.forward("critic", then)[0].detach()
        value = self.forward("critic", seen)[0]
        error = float(scaled + rules.gamma * worth - value.detach())
        mean, deviation = self.forward("actor", seen).chunk(2)
        mean = mean / (1.0 + mean.abs()) if rules.bounded else mean
        normal = torch.distributions.Normal(mean, functional.softplus(deviation))
        said = normal.log_prob(torch.from_numpy(action)).sum() + rules.entropy * np.sign(error) * normal.entropy().sum()
        for name, what, kappa in (("actor", said, rules.actor_kappa), ("critic", value, rules.critic_kappa)):
            gradients = torch.autograd.grad(what, self.weights[name])
            with torch.no_grad():
                for trace, gradient in zip(self.traces[name], gradients, strict=True):
                    trace.mul_(rules.gamma * rules.trace).add_(gradient)
                bound = (
                    rules.learning_rate * kappa * max(abs(error), 1.0) * sum(z.abs().sum() for z in self.traces[name])
                )
                step = rules.learning_rate / max(1.0, float(bound))
                for weight, trace in zip(self.weights[name], self.traces[name], strict=True):
                    weight += step * error * trace
                    if lost or ended:
                        trace.zero_()
        return error


@pytest.mark.parametrize("hidden", [[5], [6, 4]])
@pytest.mark.parametrize("bounded", [False, True])
def test_updates_are_those_of_automatic_gradients(hidden, bounded):
    rng = np.random.default_rng(1)
    learner = StreamAC(3, 2, hidden, rng, Rules(bounded=bounded, sparsity=0.5))
    reference, seen = Reference(learner), learner.see(rng.normal(size=3))
    rewards, sums = Running(1), 0.0
    for k in range(40):
        action, reward, then = rng.normal(size=2), rng.normal(), learner.see(rng.normal(2.0, 3.0, 3))
        lost, ended = k == 10, k in (10, 25)
        sums = learner.rules.gamma * sums + reward
        rewards.update(np.array([sums]))
        sums = 0.0 if lost or ended else sums
        wanted = reference.learn(seen, action, reward / rewards.std[0], then, lost, ended)
        assert learner.learn(seen, action, reward, then, lost, ended) == pytest.approx(wanted, abs=1e-9)
        seen = then
    for name in ("actor", "critic"):
        for ours, theirs in zip(getattr(learner, name).weights, reference.weights[name], strict=True):
            np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-9)


def test_the_critic_may_begin_alone():
    rng = np.random.default_rng(0)
    learner = StreamAC(2, 1, [4], rng, Rules(critic_alone=3))
    actor, critic = (learner.actor.weights[-1].copy(), learner.critic.weights[-1].copy())
    for k in range(4):
        learner.learn(rng.normal(size=2), rng.normal(size=1), 1.0, rng.normal(size=2), False, False)
        assert (learner.actor.weights[-1] == actor).all() == (k < 3)
    assert (learner.critic.weights[-1] != critic).all()


def test_the_exported_actor_is_the_mean():
    rng = np.random.default_rng(0)
    learner = StreamAC(3, 2, [8, 8], rng)
    for _ in range(20):
        learner.see(rng.normal(5.0, 3.0, 3))
    x = rng.normal(5.0, 3.0, 3)
    found, _ = StreamedActor.of(learner).forward(x[None].astype(np.float32), {})
    wanted = learner.distribution((x - learner.seen.mean) / learner.seen.std)[0]
    np.testing.assert_allclose(found[0], np.clip(wanted, -1.0, 1.0), atol=1e-5)


def test_what_cannot_be_learned_from_is_refused():
    with pytest.raises(ValueError, match="device=cpu"):
        Streaming(ToyReach(), StreamingConfig(), 0, "cuda")
    with pytest.raises(ValueError, match="shows pictures"):
        Streaming(make("tests.policies.toy_sight:ToySight"), StreamingConfig(), 0)
    for wrong in ({"gamma": 1.5}, {"hidden": []}, {"actor_kappa": 0.0}, {"total_steps": 0}):
        with pytest.raises(ValueError, match="must be|needs"):
            StreamingConfig(**wrong)


def test_it_learns_to_go_to_a_place():
    """On a line, from within 1 m, at 0.2 m a step at most: the reward is minus the distance."""
    rng = np.random.default_rng(0)
    learner, returns = StreamAC(1, 1, [16], rng, Rules(gamma=0.9)), []
    for _ in range(60):
        place = rng.uniform(-1.0, 1.0)
        seen, total = learner.see(np.array([place])), 0.0
        for step in range(15):
            mean, std = learner.distribution(seen)
            action = mean + std * rng.standard_normal(1)
            place = float(np.clip(place + 0.2 * np.clip(action[0], -1.0, 1.0), -2.0, 2.0))
            then = learner.see(np.array([place]))
            learner.learn(seen, action, -abs(place), then, False, step == 14)
            seen, total = then, total - abs(place)
        returns.append(total)
    assert np.mean(returns[-20:]) > -3.0  # who stands still loses 7.5
