"""Guidance: the wider network is the sum it stands for, in numpy, ONNX and C; without its goal it is as trained."""

import dataclasses

import numpy as np
import pytest
import torch

from deploy.runtimes import CompiledPolicy
from policies.algorithms.bc import BaseConfig, Cloning, embed
from policies.learning.demonstrations import Demonstrations
from policies.models.chunking import ChunkPolicy, NoiseTable
from policies.models.denoiser import goal, guided
from policies.models.export import export
from sim import spec
from tests.policies.algorithms.test_expo import agree
from tests.policies.models.test_chunking import base, steering
from tests.policies.toy_reach import ToyReach

GOAL = np.array([2, 3])  # of ToyReach's numbers
UNSEEN = np.random.default_rng(5).normal(size=24).astype(np.float32)


def mixed(made, seen, noise, guidance):
    """The sampler of the guided policy, one evaluation after the other."""
    x, s = noise, made.schedule
    for k in range(s.steps):
        inner = seen[:, :2] @ made.see[:, :2].T + s.scale[k] * x @ made.look.T + made.bias[k]
        told, untold = made._forward(inner + seen[:, 2:] @ made.see[:, 2:].T), made._forward(inner + UNSEEN)
        out = (1.0 + guidance) * told - guidance * untold
        x = s.keep[k] * x + s.gain[k] * (out.clip(-1.0, 1.0) if s.clip else out)
    return x.clip(-1.0, 1.0)


@pytest.mark.parametrize("kind", ["flow", "diffusion", "beso"])
@pytest.mark.parametrize("guidance", [0.5, 2.0])
def test_a_guided_network_is_the_sum_that_it_stands_for(kind, guidance):
    made, rng = base(kind), np.random.default_rng(0)
    seen, noise = rng.normal(size=(20, 4)).astype(np.float32), rng.normal(size=(20, 6)).astype(np.float32)
    got = guided(made, GOAL, UNSEEN, guidance).sample(seen, noise)
    assert np.abs(got - mixed(made, seen, noise, guidance)).max() < 1e-5
    assert np.abs(got - made.sample(seen, noise)).max() > 0.05  # and another than without


@pytest.mark.parametrize("kind", ["flow", "diffusion", "beso"])
def test_it_is_all_in_the_file(kind, tmp_path):
    made = guided(base(kind, steps=3), GOAL, UNSEEN, 1.0)
    agree(
        ChunkPolicy.from_task(ToyReach(), made, NoiseTable.normal(6, rows=5), 1),
        tmp_path / "a.onnx",
        np.random.default_rng(1),
    )


def test_a_steered_and_guided_base_is_c(tmp_path):
    made = guided(base("beso", steps=3), GOAL, UNSEEN, 1.0)
    policy = export(ChunkPolicy.from_task(ToyReach(), made, steering(6), 2), tmp_path / "policy.onnx")
    compiled, rng = CompiledPolicy(policy), np.random.default_rng(1)
    policy.reset(2)
    compiled.reset(2)
    for _ in range(7):
        signals = {s.name: rng.uniform(-1.0, 1.0, (2, 2)).astype(np.float32) for s in policy.inputs}
        assert np.abs(policy.step(signals)["velocity"] - compiled.step(signals)["velocity"]).max() < 1e-5


def trained(**settings):
    """A base of actions that are the goal, in one step."""
    config = BaseConfig(horizon=1, denoise_steps=20, hidden=[32, 32], updates=800, batch_size=128, **settings)
    cloning = Cloning(ToyReach(), config, torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1.0, 1.0, (2000, 4)).astype(np.float32) + np.float32([0.0, 0.0, 0.3, 0.0])
    action = np.clip(0.5 * seen[:, 2:] + 0.1 * rng.normal(size=(2000, 2)), -1.0, 1.0)
    list(cloning.learn(Demonstrations(seen, action.astype(np.float32))))
    return cloning, seen


def alone(cloning):
    """The base that does not see its goal: the guided one's second half."""
    cloning.config.guidance = 1.0
    both = cloning.denoiser()
    cloning.config.guidance = 0.0
    half = both.see.shape[0] // 2
    layers = [(weight[half:, half:], bias[half:]) for weight, bias in both.layers[:-1]]
    last = (-both.layers[-1][0][:, half:], both.layers[-1][1])
    parts = {"see": both.see[half:], "look": both.look[half:], "bias": both.bias[:, half:]}
    return dataclasses.replace(both, **parts, layers=[*layers, last])


def test_with_and_without_the_goal_it_is_the_trained_network():
    config = BaseConfig(kind="flow", horizon=3, denoise_steps=4, hidden=[24, 24], goal_dropout=0.4)
    cloning = Cloning(ToyReach(), config, torch.Generator().manual_seed(0), delay=2)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in cloning.average.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    seen = torch.randn(20, 4, generator=generator) * 2.0 + 1.0
    cloning.normalizer.update(seen)
    x = torch.randn(20, 6, generator=generator)
    for hidden, made in ((False, cloning.denoiser()), (True, alone(cloning))):
        told = cloning.normalizer(seen)
        if hidden:
            told[:, 2:] = 0.0
        flag, prefix = torch.full((20, 1), float(hidden)), torch.zeros(20, 6)
        time = embed(torch.full((20,), float(made.schedule.time[1])))
        with torch.no_grad():
            wanted = cloning.average(torch.cat([told, flag, prefix, x, time], -1)).numpy()
        got = made._forward(seen.numpy() @ made.see.T + x.numpy() @ made.look.T + made.bias[1])
        assert np.abs(got - wanted).max() < 1e-5


def test_a_dropped_goal_is_learned_and_guidance_overstates_it():
    cloning, seen = trained(goal_dropout=0.3)
    noise = np.random.default_rng(1).normal(size=(300, 2)).astype(np.float32)
    without = alone(cloning).sample(seen[:300], noise)
    assert abs(without.mean(axis=0) - [0.15, 0.0]).max() < 0.08
    assert without.std(axis=0).min() > 0.15  # any goal's: of one it is 0.1
    slopes = []
    for guidance in (0.0, 1.0):
        cloning.config.guidance = guidance
        chunk = cloning.denoiser().sample(seen[:300], noise)
        slopes.append(np.polyfit(seen[:300, 3], chunk[:, 1], 1)[0])
    assert abs(slopes[0] - 0.5) < 0.05 and slopes[1] > slopes[0] + 0.05


def test_without_guidance_nothing_is_evaluated_twice():
    cloning = Cloning(ToyReach(), BaseConfig(hidden=[32], goal_dropout=0.3), torch.Generator())
    assert cloning.denoiser().see.shape == (32, 4)
    cloning.config = dataclasses.replace(cloning.config, guidance=1.0)
    assert cloning.denoiser().see.shape == (64, 4)


def test_the_goal_is_what_the_task_says():
    from sim.tasks import make

    assert np.flatnonzero(goal(ToyReach(), 4)).tolist() == GOAL.tolist()
    for name in ("arm_push", "metaworld/reach-v3"):
        task = make(name)
        assert goal(task, spec.size(task.policy)).sum() == 3
    door = make("gymnasium/AdroitHandDoorSparse-v1")
    with pytest.raises(ValueError, match="AdroitHandDoorSparse-v1 is told no goal that could be dropped"):
        Cloning(door, BaseConfig(goal_dropout=0.1), torch.Generator())


def test_the_goal_alone_is_jittered():
    cloning = Cloning(ToyReach(), BaseConfig(hidden=[32], goal_jitter=0.5), torch.Generator().manual_seed(0))
    seen = torch.randn(4000, 4, generator=cloning.generator)
    moved = cloning._told(seen, torch.zeros(4000, 8)) - seen
    others = np.setdiff1d(np.arange(4), GOAL)
    assert (moved[:, others] == 0.0).all() and (moved[:, GOAL].std(0) - 0.5).abs().max() < 0.03


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="goal_jitter must be zero or positive, got -0.1"):
        BaseConfig(goal_jitter=-0.1)
    with pytest.raises(ValueError, match="guidance needs a base that can do without its goal: set goal_dropout"):
        BaseConfig(guidance=1.0)
    with pytest.raises(ValueError, match="needs 0 <= goal_dropout < 1 and guidance >= 0, got 1.0 and 0.0"):
        BaseConfig(goal_dropout=1.0)
