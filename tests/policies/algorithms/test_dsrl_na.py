"""DSRL-NA: it steers a base by critics of executed chunks, continues exactly, and its file does what it learned."""

import dataclasses

import numpy as np
import pytest
import torch

from deploy.policy_file import PolicyFile
from policies.algorithms.bc import BaseConfig
from policies.algorithms.dsrl_na import DsrlNa, DsrlNaConfig
from policies.models.export import export
from tests.policies.algorithms.test_dsrl import success
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach

QUICK = DsrlNaConfig(
    base=BaseConfig(horizon=2, hidden=[32, 32], updates=400, episodes=60, corruption=1.6),
    total_steps=2400,
    warmup_episodes=20,
    head_start=200,
    hidden=[48, 48],
    prior_steps=3000,
    actor_updates=1,
)


def small(**changes):
    base = dataclasses.replace(QUICK.base, updates=20, episodes=20)
    tiny = {"total_steps": 800, "warmup_episodes": 2, "head_start": 8, "batch_size": 16}
    return dataclasses.replace(QUICK, base=base, **(tiny | changes))


def weights(learner):
    return torch.cat([p.flatten() for p in learner.training.average.parameters()])


@pytest.mark.long
def test_it_steers_a_mediocre_base_to_the_goal():
    task = ToyReach()
    learner = DsrlNa(task, QUICK, 0)
    assert list(learner.learn())[-1]["env_steps"] == 2400
    before = success(task, learner.baselines()["random noise"], 100)
    after = success(task, learner.controller())
    assert after > 0.5 and after > before + 0.3, (before, after)


def test_the_distilled_critic_agrees_with_those_of_chunks():
    learner = DsrlNa(ToyReach(), small(total_steps=400), 0)
    list(learner.learn())
    for _ in range(300):
        learner._update_critics()
    batch = learner.memory.sample(400, learner.generator)
    with torch.no_grad():
        of_chunk = learner.judges.believed(torch.cat([batch["x"], batch["made"]], -1))
        of_noise = learner.critics.believed(torch.cat([batch["x"], batch["w"]], -1))
    error = (of_noise - of_chunk).square().mean().sqrt()
    assert of_chunk.std() > 0.3 and error < 0.35 * of_chunk.std(), (error, of_chunk.std())


def test_it_continues_exactly(monkeypatch):
    monkeypatch.setattr("policies.learning.online.REPORT", 25)  # as many rows, of a quarter as many steps
    whole = DsrlNa(ToyReach(), small(total_steps=200), 0)
    rows, others = learned(whole, lambda: DsrlNa(ToyReach(), small(total_steps=200), 0))
    assert rows[-1]["divergence"] > 0.0 and len(rows) == 3
    for second in others[:2]:  # after cloning, and while practising
        assert list(second.learn())[-1] == rows[-1]
        assert torch.equal(weights(whole), weights(second))


def test_the_file_is_the_whole_controller(tmp_path):
    learner = DsrlNa(ToyReach(), small(same_noise=True, total_steps=200), 0)
    list(learner.learn())
    for name, controller in {"learned": learner.controller(), **learner.baselines()}.items():
        export(controller, tmp_path / f"{name}.onnx")
        policy = PolicyFile.load(str(tmp_path / f"{name}.onnx"))
        policy.verify()
        assert {"chunk", "left"} <= {s.name for s in policy.state}


def test_every_noise_that_is_kept_leads_to_its_chunk():
    learner = DsrlNa(ToyReach(), small(total_steps=400), 0)
    list(learner.learn())
    past, own = learner.memory.prior, learner.memory
    assert past.size == len(learner.run.transitions()) and own.size > 20
    for replay in (past, own):
        batch = replay.sample(50, learner.generator)
        made = learner.run.base.sample(learner._raw(batch["x"]), batch["w"].numpy())
        assert np.allclose(made, batch["made"].numpy(), atol=1e-4)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="shown, the share of the demonstrations, lies between 0 and 1, got -0.5"):
        DsrlNa(ToyReach(), small(shown=-0.5), 0)
    with pytest.raises(ValueError, match=r"target_critics must be in 1..4 \(critics\), got 5"):
        small(target_critics=5)
