"""WSRL: learned offline with calibrated pessimism, warmed up by what was learned, then no demonstrations any more."""

import dataclasses

import numpy as np
import pytest
import torch

from deploy.policy_file import PolicyFile
from policies.algorithms.rlpd import SeenConfig
from policies.algorithms.wsrl import Wsrl, WsrlConfig
from policies.runner.config import compose
from policies.train import train
from tests.policies.algorithms.test_dsrl import success
from tests.policies.algorithms.test_expo import agree
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach

QUICK = WsrlConfig(
    base=SeenConfig(horizon=2, episodes=60, corruption=1.6),
    total_steps=1600,
    offline_updates=300,
    hidden=[48, 48],
    batch_size=64,
    warmup_episodes=20,
    head_start=0,
    critics=4,
    pessimism=0.5,
    actor_learning_rate_share=1.0,
    first_prior=0.05,
    last_prior=0.02,
)


def small(**changes):
    tiny = {"base": dataclasses.replace(QUICK.base, episodes=20), "total_steps": 800, "offline_updates": 150}
    tiny |= {"warmup_episodes": 4, "batch_size": 16, "hidden": [16, 16], "critic_updates": 2}
    return dataclasses.replace(QUICK, **(tiny | changes))


def weights(learner):
    return torch.cat([p.flatten() for p in learner.training.actor.parameters()])


@pytest.mark.long  # test_rlpd.py learns in as many steps, from the same demonstrations, every time
def test_it_learns_offline_and_then_more():
    task = ToyReach()
    learner = Wsrl(task, QUICK, 0)
    rows = list(learner.learn())
    assert rows[2]["env_steps"] == 0.0 and rows[2]["progress"] == 0.2 and rows[-1]["env_steps"] == 1600
    before = success(task, learner.baselines()["before practice"], 100)
    after = success(task, learner.controller(), 100)
    assert before > 0.1 and after > 0.4 and after > before + 0.1, (before, after)


def test_the_warm_up_is_the_frozen_actors_and_leaves_no_demonstration_in_the_memory():
    learner = Wsrl(ToyReach(), small(), 0)
    prepared, kept = [], []

    def prepare(updates):
        prepared.append((learner.run.scenes.finished, weights(learner), learner.memory.size))
        Wsrl.prepare(learner, updates)

    def keep(transition):
        kept.append(transition.chunk)
        Wsrl.keep(learner, transition)

    learner.prepare, learner.keep = prepare, keep
    running = learner.learn()
    assert [next(running)["env_steps"] for _ in range(2)] == [0.0, 0.0]
    frozen = weights(learner)
    list(running)
    (finished, then, count), memory = prepared[0], learner.memory
    assert finished >= 4 and torch.equal(then, frozen) and not torch.equal(weights(learner), frozen)
    assert memory.prior is None and 0 < count < memory.size == len(kept)
    assert np.array_equal(memory.data["w"][: len(kept)].numpy(), np.stack(kept))


def test_demonstrations_know_their_returns():
    learner = Wsrl(ToyReach(), small(step_reward=-0.1, n_step=2), 0)
    made, rewards = learner.run.transitions(), learner.run.rewards
    failed = [t.value for t in made if t.value < 0.0]
    assert len(failed) > 50 and np.allclose(failed, -0.1 / 0.03)
    later = {t.x.tobytes(): t for t in made}
    count = 0
    for t in made:
        if t.discount and t.value > 0.0:
            assert np.isclose(t.value, t.reward + t.discount * later[t.next_x.tobytes()].value)
            count += 1
        elif t.value > 0.0:
            assert t.value == t.reward <= rewards.success
    assert count > 20


def test_it_continues_exactly(monkeypatch):
    monkeypatch.setattr("policies.learning.online.REPORT", 50)  # as many rows, of half as many steps
    whole = Wsrl(ToyReach(), small(total_steps=400), 0)
    rows, others = learned(whole, lambda: Wsrl(ToyReach(), small(total_steps=400), 0))
    assert rows[-1]["divergence"] > 0.0 and len(rows) == 4
    for second in others[:3]:  # learning offline, before practice, in it
        assert list(second.learn())[-1] == rows[-1]
        assert torch.equal(weights(whole), weights(second))


def test_the_file_is_the_whole_controller(tmp_path):
    learner = Wsrl(ToyReach(), small(total_steps=400), 0)
    list(learner.learn())
    for name, controller in {"learned": learner.controller(), **learner.baselines()}.items():
        agree(controller, tmp_path / f"{name}.onnx", np.random.default_rng(0))


@pytest.mark.long
def test_the_whole_chain_small(tmp_path):
    """Demonstrate, learn offline, practise, export, grade, with a tiny budget."""
    tiny = ["base.episodes=6", "base.corruption=0.3", "total_steps=800", "warmup_episodes=1", "offline_updates=40"]
    settings = compose(
        ["task=metaworld/drawer-open-v3", "algorithm=wsrl", f"out={tmp_path}/run", "evaluation_episodes=4"]
        + [f"algorithm.{setting}" for setting in tiny]
    )
    policy = PolicyFile.load(str(train(settings)))
    assert policy.task == "metaworld/drawer-open-v3" and policy.metadata["evaluation"]["episodes"] == 4
    assert (tmp_path / "run" / "baselines" / "before_practice.onnx").exists()
