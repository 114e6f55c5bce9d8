"""RLPD: from mediocre demonstrations and no base to the goal, exactly continued, and all in the file."""

import dataclasses

import numpy as np
import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.rlpd import Rlpd, RlpdConfig, SeenConfig
from tests.policies.algorithms.test_dsrl import success
from tests.policies.algorithms.test_expo import agree
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach

QUICK = RlpdConfig(
    base=SeenConfig(horizon=2, episodes=60, corruption=1.6),
    total_steps=1600,
    head_start=200,
    hidden=[48, 48],
    batch_size=64,
)


def small(**changes):
    tiny = {
        "base": dataclasses.replace(QUICK.base, episodes=20),
        "total_steps": 800,
        "warmup_episodes": 2,
        "head_start": 8,
    }
    return dataclasses.replace(QUICK, **(tiny | {"batch_size": 16, "hidden": [16, 16], "critic_updates": 2} | changes))


def weights(learner):
    return torch.cat([p.flatten() for p in learner.training.average.parameters()])


def test_it_finds_to_the_goal_without_a_base():
    task = ToyReach()
    learner = Rlpd(task, QUICK, 0)
    assert list(learner.learn())[-1]["env_steps"] == 1600
    shown = np.mean([episode.succeeded for episode in learner.run.demonstrations])
    before = success(task, learner.baselines()["before practice"], 50)
    after = success(task, learner.controller(), 100)
    assert before < 0.2 and after > 0.55 and after > shown + 0.2, (before, shown, after)


def test_it_continues_exactly(monkeypatch):
    monkeypatch.setattr("policies.learning.online.REPORT", 25)  # as many rows, of a quarter as many steps
    whole = Rlpd(ToyReach(), small(total_steps=200), 0)
    rows, (second, _) = learned(whole, lambda: Rlpd(ToyReach(), small(total_steps=200), 0))
    assert rows[-1]["divergence"] > 0.0
    assert list(second.learn())[-1] == rows[-1]
    assert torch.equal(weights(whole), weights(second))


@pytest.mark.parametrize("horizon", [1, 2])
def test_the_file_is_the_whole_controller(horizon, tmp_path):
    base = dataclasses.replace(QUICK.base, episodes=20, horizon=horizon)
    learner = Rlpd(ToyReach(), small(base=base, total_steps=200), 0)
    list(learner.learn())
    agree(learner.controller(), tmp_path / "policy.onnx", np.random.default_rng(0))


def test_half_of_a_batch_are_demonstrations():
    learner = Rlpd(ToyReach(), small(total_steps=200), 0)
    list(learner.learn())
    shown = learner.run.transitions()
    assert learner.memory.prior.size == len(shown)
    kept = learner.memory.prior.data["w"][: len(shown)].numpy()
    assert np.array_equal(kept, np.stack([t.chunk for t in shown]))
    batch = learner.memory.sample(2000, learner.generator)
    of_past = {row.tobytes() for row in kept}
    share = np.mean([row.tobytes() in of_past for row in batch["w"].numpy()])
    assert abs(share - 0.5) < 0.05


def test_what_it_cannot_learn_from_is_refused():
    learner = Rlpd(ToyReach(), small(), 0)
    learner.task.expert = lambda signals: {"velocity": np.zeros_like(signals["position"])}
    learner.task.corruption = {}
    with pytest.raises(LearningError, match="none of the 20 demonstrations succeeds, so there is nothing to learn"):
        list(learner.learn())
    with pytest.raises(ValueError, match="same_noise=true does not go with demonstrations"):
        RlpdConfig(same_noise=True)
    with pytest.raises(ValueError, match="hindsight, the copies of each transition, must be at least 0, got -1"):
        Rlpd(ToyReach(), small(hindsight=-1), 0)
