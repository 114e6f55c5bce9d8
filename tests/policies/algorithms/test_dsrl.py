"""DSRL: it improves a base that it knows only by its samples, continues exactly, and its file does what it learned."""

import dataclasses

import numpy as np
import pytest
import torch

from deploy.policy_file import PolicyFile
from policies.algorithms import LearningError
from policies.algorithms.bc import BaseConfig
from policies.algorithms.dsrl import Dsrl, DsrlConfig
from policies.collect import episodes, stream
from policies.learning.actor_critic import Actor
from policies.models.export import export
from policies.runner.config import compose
from policies.train import train
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach

QUICK = DsrlConfig(
    base=BaseConfig(horizon=2, hidden=[32, 32], updates=400, episodes=60, corruption=1.6),
    total_steps=4000,
    magnitude=1.5,
    warmup_episodes=20,
    head_start=200,
    hidden=[48, 48],
    prior_steps=3000,
    critic_updates=2,
    actor_updates=1,
)


class Flown:
    """A controller at work in scenes."""

    def __init__(self, controller, num):
        self.controller, self.state, self.first = (controller, *(controller.initial_state(num) for _ in range(2)))

    def __call__(self, signals, numbers, begun):
        for name, value in self.state.items():
            value[begun] = self.first[name][begun]
        command, self.state = self.controller.act(signals, self.state)
        return command


def success(task, controller, count=200):
    return np.mean([e.succeeded for e in episodes(task, Flown(controller, 8), count, stream(0, 99))])


@pytest.mark.long
def test_it_steers_a_mediocre_base_to_the_goal():
    task = ToyReach()
    learner = Dsrl(task, QUICK, 0)
    metrics = list(learner.learn())
    assert metrics[-1]["progress"] == 1.0 and metrics[-1]["env_steps"] == 4000
    before = {name: success(task, controller) for name, controller in learner.baselines().items()}
    after = success(task, learner.controller())
    chosen = before.pop("best of 16")  # by the trained critics
    assert set(before) == {"random noise", "cut noise", "no noise"} and after > chosen > max(before.values())
    assert after > 0.6 and after > max(before.values()) + 0.3, (before, after)


def small(**changes):
    base = dataclasses.replace(QUICK.base, updates=20, episodes=20)
    tiny = {"total_steps": 1200, "warmup_episodes": 4, "head_start": 8, "batch_size": 16}
    return dataclasses.replace(QUICK, base=base, **(tiny | changes))


def weights(learner):
    return torch.cat([p.flatten() for p in learner.training.average.parameters()])


def test_it_continues_exactly(monkeypatch):
    monkeypatch.setattr("policies.learning.online.REPORT", 25)  # as many rows, of a quarter as many steps
    whole = Dsrl(ToyReach(), small(total_steps=300), 0)
    rows, others = learned(whole, lambda: Dsrl(ToyReach(), small(total_steps=300), 0))
    assert rows[-1]["divergence"] > 0.0 and len(rows) >= 4
    for second in others[:2]:  # after cloning, and while practising
        assert list(second.learn())[-1] == rows[-1]
        assert torch.equal(weights(whole), weights(second))


def test_another_seed_is_another_run():
    runs = [Dsrl(ToyReach(), small(total_steps=200), seed) for seed in (0, 0, 1)]
    for run in runs:
        list(run.learn())
    assert torch.equal(weights(runs[0]), weights(runs[1])) and not torch.equal(weights(runs[0]), weights(runs[2]))


def test_the_file_is_the_whole_controller(tmp_path):
    learner = Dsrl(ToyReach(), small(same_noise=True, total_steps=200), 0)
    list(learner.learn())
    export(learner.controller(), tmp_path / "policy.onnx")
    policy = PolicyFile.load(str(tmp_path / "policy.onnx"))
    policy.verify()
    assert {s.name for s in policy.state} == {"chunk", "left"}


def test_divergence_from_the_prior():
    actor = Actor(QUICK, 4, 3, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in actor.network[-1].parameters():
            parameter.zero_()
    w, divergence = actor.sample(torch.zeros(5, 4), torch.zeros(5, 3))
    assert torch.equal(w, torch.zeros(5, 3)) and torch.allclose(divergence, torch.zeros(5))
    with torch.no_grad():
        actor.network[-1].bias[:3] = 0.4
        actor.network[-1].bias[3:] = -0.3
        _, divergence = actor.sample(torch.zeros(1, 4), torch.zeros(1, 3))
    mean, std = QUICK.magnitude * np.tanh(0.4), QUICK.prior_std * np.exp(-0.3)
    p, q = torch.distributions.Normal(mean, std), torch.distributions.Normal(0.0, QUICK.prior_std)
    assert np.isclose(float(divergence[0]), 3 * float(torch.distributions.kl_divergence(p, q)), rtol=1e-5)


def test_demonstrations_that_all_fail_are_refused():
    learner = Dsrl(ToyReach(), small(), 0)
    learner.task.expert = lambda signals: {"velocity": np.zeros_like(signals["position"])}
    learner.task.corruption = {}
    with pytest.raises(LearningError, match="none of the 20 demonstrations succeeds, so there is nothing to learn"):
        list(learner.learn())


@pytest.mark.long
def test_the_whole_chain_small(tmp_path):
    """Collect, clone, steer, export, grade: `task=metaworld/pick-place-v3 preset=dsrl` with a tiny budget."""
    tiny = [
        "base.updates=60",
        "base.episodes=8",
        "base.corruption=0.3",
        "total_steps=800",
        "warmup_episodes=2",
        "head_start=10",
    ]
    settings = compose(
        ["task=metaworld/pick-place-v3", "preset=dsrl", f"out={tmp_path}/run", "evaluation_episodes=4"]
        + [f"algorithm.{setting}" for setting in tiny]
    )
    path = train(settings)
    policy = PolicyFile.load(str(path))
    assert policy.task == "metaworld/pick-place-v3" and policy.rate_hz == 80.0
    assert policy.metadata["evaluation"]["episodes"] == 4
    assert policy.metadata["training"]["task_config"] == {"steps": 120}
