"""The torch path of apg: the same loss and gradient as the fused kernel, exact resume, and what only it can do."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from policies.algorithms.apg import Apg, ApgConfig
from policies.algorithms.apg import fused_network as network
from policies.algorithms.apg.autograd import Physics, Step
from policies.algorithms.apg.critic import Critic, View
from policies.algorithms.apg.torch_path import Differentiated, Sensing
from policies.runner import checkpoint
from sim import tasks
from sim.engines.flight import dynamics
from sim.engines.vector.blocks import to_lanes
from sim.engines.vector.simd import LANES
from sim.env import with_engine
from sim.randomize import Delay, Dropout
from sim.robots import robot
from sim.tasks.quad_hover import HoverConfig, QuadHover

WINDOW = 16
SHORT = 0.4  # s, of an episode: whole ones are flown to measure what was learned
HIDDEN = {"mlp": [16, 12], "gru": [8, 8]}


def start(task: Any, seed: int = 0, path: str = "torch", kind: str = "mlp", **changes: Any) -> Apg:
    settings = {"network": kind, "hidden": HIDDEN.get(kind, [8, 8]), "window": WINDOW, "updates": 6, "num_envs": LANES}
    return Apg(task, ApgConfig(path=path, **{**settings, **changes}), seed)


def flat(layout: network.Layout, found: Any) -> np.ndarray:
    """The fused trainer's weight vector from a controller's network."""
    if hasattr(found, "layers"):
        return network.flatten(layout, found.layers)
    inner = [(found.w_ih, found.b_ih), (found.w_hh, found.b_hh)]
    return network.flatten(layout, [found.input, *inner, found.output])


def torch_gradient(path: Differentiated, layout: network.Layout) -> np.ndarray:
    """The gradient in the order of the fused trainer, by way of `network()`."""
    with torch.no_grad():
        kept = [p.clone() for p in path.policy.parameters()]
        for p in path.policy.parameters():
            p.copy_(p.grad)
        found = flat(layout, path.network())
        for p, value in zip(path.policy.parameters(), kept, strict=True):
            p.copy_(value)
            p.grad = None
    return found


def test_step_has_the_right_derivative() -> None:
    rng = np.random.default_rng(0)
    parameters = {
        k: np.tile(v.astype(np.float64), (LANES, 1)) for k, v in robot("crazyflie_decks").parameters().items()
    }
    state = np.tile(dynamics.REST.astype(np.float64), (LANES, 1)) + 0.2 * rng.normal(size=(LANES, 17))
    state[:, 3:7] /= np.linalg.norm(state[:, 3:7], axis=1, keepdims=True)
    state[:, 13:17] = rng.uniform(0.2, 0.4, (LANES, 4))
    physics = Physics("flight", to_lanes(dynamics.derive(parameters, 0.01), np.float64), 0.01)
    lanes = torch.from_numpy(to_lanes(state, np.float64)).requires_grad_()
    command = torch.from_numpy(rng.uniform(0.5, 0.9, (LANES, 4))).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, c: Step.apply(s, c, physics), (lanes, command), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("adjoint_clip", [1e6, 3.0])
@pytest.mark.parametrize("kind", ["mlp", "gru"])
@pytest.mark.parametrize("task_name", ["quad_hover", "quad_track"])
def test_loss_and_gradient_are_those_of_the_kernel(task_name: str, kind: str, adjoint_clip: float) -> None:
    """Two windows of two blocks, with sensor noise: the second one starts from what the first one left."""
    settings = {"kind": kind, "num_envs": 2 * LANES, "adjoint_clip": adjoint_clip}
    kernel, other = (start(tasks.make(task_name), 3, path, **settings).path for path in ("fused", "torch"))
    np.testing.assert_array_equal(flat(kernel.layout, other.network()), kernel.weights)
    for _ in range(2):
        costs, _ = kernel.window(kernel.vehicles)
        _, cost, means, _ = other.gradient()
        gradient = torch_gradient(other, kernel.layout)
        np.testing.assert_allclose(means.numpy(), costs, rtol=2e-5)
        assert float(cost.mean()) == pytest.approx(float(costs @ kernel.plan.cost_weight), rel=1e-5)
        assert np.linalg.norm(gradient - kernel.gradient) < 1e-5 * np.linalg.norm(kernel.gradient)
        kernel.gradient[...] = 0.0
        np.testing.assert_allclose(other.vehicles.batch.past, kernel.vehicles.batch.past, atol=1e-5)


@pytest.mark.slow
def test_leeway_is_the_same_on_both_paths() -> None:
    task = tasks.make("quad_any", range="wide", path="hold")
    settings = {"num_envs": 2 * LANES, "adjoint_clip": 3.0, "adjoint_power": 1.0}
    kernel, other = (start(task, 3, path, **settings).path for path in ("fused", "torch"))
    kernel.window(kernel.vehicles)
    other.gradient()
    gradient = torch_gradient(other, kernel.layout)
    assert np.linalg.norm(gradient - kernel.gradient) < 1e-4 * np.linalg.norm(kernel.gradient)
    alike = start(task, 3, "fused", **settings | {"adjoint_power": 0.0}).path
    alike.window(alike.vehicles)
    assert np.linalg.norm(alike.gradient - kernel.gradient) > 0.1 * np.linalg.norm(kernel.gradient)


def test_adjoint_power_is_checked() -> None:
    with pytest.raises(ValueError, match=r"algorithm\.adjoint_power must be 0 or more, got -1"):
        ApgConfig(adjoint_power=-1.0)
    with pytest.raises(ValueError, match=r"algorithm\.adjoint_power is not for tasks .*, as quad_swarm: set it to 0"):
        Apg(tasks.make("quad_swarm"), ApgConfig(adjoint_power=1.0), 0)


def test_the_adjoint_clip_of_these_tests_binds() -> None:
    norms = [
        float(next(iter(start(tasks.make("quad_hover"), 3, adjoint_clip=clip).learn()))["gradient_norm"])
        for clip in (1e6, 3.0)
    ]
    assert norms[1] < 0.9 * norms[0]


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_training_curves_stay_together(kind: str) -> None:
    kernel, other = (
        list(start(tasks.make("quad_hover", episode_s=SHORT), 1, path, kind).learn()) for path in ("fused", "torch")
    )
    assert [m.keys() for m in kernel] == [m.keys() for m in other]
    for a, b in zip(kernel, other, strict=True):
        for name in ("progress", "env_steps", "loss", "learning_rate", "lost", "cost/position", "gradient_norm"):
            assert a[name] == pytest.approx(b[name], rel=1e-3), name


def test_both_paths_follow_the_curriculum() -> None:
    """The loss of a window a million steps into training, under the published reward."""
    losses = []
    for path in ("torch", "fused"):
        algorithm = start(tasks.make("quad_hover", reward="l2f"), path=path)
        config = algorithm.path.config
        algorithm.path.update = 1_000_000 // (config.num_envs * config.window)
        config.updates = algorithm.path.update + 1
        losses.append(next(algorithm.learn())["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def late_task() -> Any:
    """quad_hover with a position that is late and sometimes lost."""
    task = tasks.make("quad_hover", episode_s=SHORT)
    late = (*task.policy[0].imperfections, Delay(0.01, 0.03), Dropout(0.2))
    task.policy = (replace(task.policy[0], imperfections=late), *task.policy[1:])
    return task


class Rewarded(QuadHover):
    """quad_hover whose reward is written in torch: the declared costs, twice."""

    def reward(self, signals: dict[str, torch.Tensor]) -> torch.Tensor:
        assert all(value.ndim == 2 for value in signals.values())
        return -2.0 * sum(cost.weight * cost.evaluate(signals) for cost in self.costs)


class Linear(torch.nn.Module):
    """A user's policy."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


CASES: dict[str, Any] = {
    "mlp": (lambda: tasks.make("quad_track", episode_s=1.2), {}),
    "gru": (lambda: tasks.make("quad_hover", episode_s=SHORT), {"kind": "gru"}),
    "critic": (lambda: tasks.make("quad_hover", episode_s=SHORT), {"critic": True}),
    "late": (late_task, {"kind": "gru"}),
}


@pytest.mark.parametrize("case", CASES)
def test_resume_is_exact_and_seeds_decide(case: str, tmp_path: Any) -> None:
    make, settings = CASES[case][0], {**CASES[case][1], "updates": 4}
    whole, again, other = (start(make(), seed, **settings) for seed in (0, 0, 1))
    metrics = list(whole.learn())
    assert repr(list(again.learn())) == repr(metrics)
    assert repr(list(other.learn())) != repr(metrics)

    first = start(make(), **settings)
    learning = first.learn()
    for _ in range(3):
        next(learning)
    checkpoint.save(tmp_path / "saved", first.state_dict())
    list(learning)  # what follows must not reach into the saved state
    second = start(make(), seed=5, **settings)
    second.load_state_dict(checkpoint.load(tmp_path / "saved"))
    assert repr(list(second.learn())) == repr(metrics[3:])
    for a, b in zip(whole.path.policy.parameters(), second.path.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_late_signals_arrive_late() -> None:
    task = tasks.make("quad_hover", noise=0.0)
    task.policy = (replace(task.policy[0], imperfections=(Delay(0.02, 0.02),)), *task.policy[1:])
    assert start(task).path.sensing is not None
    sensing = Sensing(task, 2, seed=0, device="cpu")
    got = []
    for t in range(5):
        truth = {s.name: torch.full((2, s.size), float(t)) for s in task.policy}
        got.append(sensing(truth, torch.arange(2) if t == 0 else None))
    assert [float(g["position"][0, 0]) for g in got] == pytest.approx([0.0, 0.0, 0.0, 1.0, 2.0], abs=1e-5)
    assert [float(g["linear_velocity"][0, 0]) for g in got] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("rate", [np.inf, 1e4])  # rad/s: not finite at once, and some steps later
def test_a_block_that_is_not_finite_stays_out_of_the_gradient(rate: float) -> None:
    settings = {"num_envs": 2 * LANES}
    kernel, other = (start(tasks.make("quad_hover"), 0, path, **settings).path for path in ("fused", "torch"))
    for path in (kernel, other):
        path.vehicles.batch.state[1, 10:13, 3] = rate
    assert kernel.window(kernel.vehicles)[1] == 1
    flown, _, _, _ = other.gradient()
    gradient = torch_gradient(other, kernel.layout)
    assert flown.broken == 1
    assert np.linalg.norm(gradient - kernel.gradient) < 1e-5 * np.linalg.norm(kernel.gradient)
    other.vehicles.after_window(1000)
    assert np.isfinite(other.vehicles.batch.state).all()
    assert other.vehicles.age[LANES + 3] == 0


def test_a_reward_written_in_torch_takes_the_place_of_the_costs() -> None:
    algorithm = start(Rewarded(HoverConfig()), path="auto", adjoint_clip=1e9)  # a clip would not scale
    plain = start(tasks.make("quad_hover"), adjoint_clip=1e9)
    (_, cost, _, _), (_, half, _, _) = algorithm.path.gradient(), plain.path.gradient()
    torch.testing.assert_close(cost, 2.0 * half)
    for a, b in zip(algorithm.path.policy.parameters(), plain.path.policy.parameters(), strict=True):
        torch.testing.assert_close(a.grad, 2.0 * b.grad, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match=r"algorithm\.path=torch"):
        start(Rewarded(HoverConfig()), path="fused")


def test_a_module_of_ones_own_learns_and_is_the_controller() -> None:
    algorithm = start(tasks.make("quad_hover", noise=0.0, episode_s=SHORT), path="auto", kind=f"{__name__}:Linear")
    before = [p.detach().clone() for p in algorithm.path.policy.parameters()]
    list(algorithm.learn())
    assert all((a != b).any() for a, b in zip(before, algorithm.path.policy.parameters(), strict=True))
    controller = algorithm.controller()
    signals = {s.name: np.full((3, s.size), 0.1, np.float32) for s in controller.inputs}
    command, _ = controller.act(signals, controller.initial_state(3))
    assert np.isfinite(command["motor_command"]).all()
    with pytest.raises(ValueError, match="module:Class"):
        start(tasks.make("quad_hover"), kind="transformer")


def test_targets_of_the_critic() -> None:
    """Without a loss: the discounted sum and the last value, blended; a lost vehicle pays its last cost for ever."""
    critic = Critic(2, 0.9, seed=0, device="cpu")
    with torch.no_grad():
        critic.target[-1].weight.zero_()
        critic.target[-1].bias.fill_(3.0)  # cost per step, everywhere
    cost = torch.full((4, 2), 3.0)
    cost[1, 1] = 8.0
    gone = torch.zeros((5, 2), dtype=torch.bool)
    gone[2:, 1] = True
    found = critic.targets(View(torch.zeros(5, 2, 2), gone), cost)
    torch.testing.assert_close(found[:, 0], torch.full((4,), 3.0))
    assert float(found[1, 1]) == pytest.approx(0.1 * 8.0 + 0.9 * 8.0)
    assert float(found[0, 1]) == pytest.approx(0.1 * 3.0 + 0.9 * (0.05 * 3.0 + 0.95 * 8.0))


def test_the_critic_learns_and_its_gradient_reaches_the_policy() -> None:
    task = tasks.make("quad_hover", episode_s=SHORT)
    algorithm = start(task, critic=True, gamma=0.95, updates=80, num_envs=2 * LANES, learning_rate=3e-3)
    path = algorithm.path
    metrics = list(algorithm.learn())
    early, late = (np.mean([m["critic_loss"] for m in part]) for part in (metrics[:5], metrics[-20:]))
    assert late < 0.5 * early
    flown = path.window(path.vehicles)
    (cost, _), view = path.costs(flown), path.view(flown)
    assert view.features.shape == (WINDOW + 1, 2 * LANES, path.critic.normalizer.mean.numel())
    assert not view.gone[-1].all()
    end = path.critic.value(view.features[-1])[~view.gone[-1]].sum()
    steps = (0.95 ** torch.arange(WINDOW)[:, None] * cost).sum()
    torch.testing.assert_close(path.loss(cost, view), (steps + 0.95**WINDOW * end) / cost.numel(), rtol=1e-4, atol=0.0)
    end.backward()
    assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0.0 for p in path.policy.parameters())
    assert all(p.grad is None for p in path.critic.target.parameters())


@pytest.mark.long  # its curve is that of the fused path, above, which test_fused.py has learn
def test_it_learns() -> None:
    metrics = list(start(tasks.make("quad_hover", episode_s=1.2), updates=120, window=32).learn())
    assert np.mean([m["loss"] for m in metrics[-10:]]) < 0.7 * np.mean([m["loss"] for m in metrics[:10]])
    assert 0.0 <= metrics[-1]["success"] <= 1.0


def test_what_it_cannot_do_is_said() -> None:
    task = tasks.make("quad_hover")
    with pytest.raises(ValueError, match="device=cuda"):
        Apg(task, ApgConfig(path="torch"), 0, device="cuda")
    with pytest.raises(ValueError, match="no adjoint"):
        Apg(with_engine(task, "mujoco"), ApgConfig(path="torch"), 0)
    with pytest.raises(ValueError, match=r"algorithm\.gamma"):
        start(task, critic=True, gamma=1.0)
    assert math.isnan(start(task).path.critic_loss)
