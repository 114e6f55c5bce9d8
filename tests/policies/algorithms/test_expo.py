"""EXPO and residual learning: edits bring a mediocre base to the goal, continue exactly, and are all in the file."""

import dataclasses

import numpy as np
import pytest
import torch

from deploy.policy_file import PolicyFile
from policies.algorithms.bc import BaseConfig
from policies.algorithms.expo import Expo, ExpoConfig, Residual, ResidualConfig
from policies.collect import stream
from policies.learning.actor_critic import Critics, judges
from policies.learning.online import OnlineFinetuning
from policies.models.action_selection import BestOfN, BestOfNNoise
from policies.models.chunking import ChunkPolicy, NoiseTable
from policies.models.export import export
from tests.policies.algorithms.test_dsrl import success
from tests.policies.models.test_chunking import base
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach

QUICK = {
    "base": BaseConfig(horizon=2, hidden=[32, 32], updates=400, episodes=60, corruption=1.6),
    "total_steps": 2400,
    "warmup_episodes": 20,
    "head_start": 200,
    "hidden": [48, 48],
    "prior_steps": 3000,
    "critic_updates": 2,
    "actor_updates": 1,
}


def small(kind, **changes):
    tiny = {"base": dataclasses.replace(QUICK["base"], updates=20, episodes=20)}
    tiny |= {"total_steps": 800, "warmup_episodes": 2, "head_start": 8, "batch_size": 16}
    return kind.Config(**(QUICK | tiny | changes))


def weights(learner):
    return torch.cat([p.flatten() for p in learner.training.average.parameters()])


@pytest.mark.parametrize(("kind", "least", "gain"), [(Expo, 0.5, 0.35), (Residual, 0.4, 0.25)])
@pytest.mark.long
def test_edits_bring_a_mediocre_base_to_the_goal(kind, least, gain):
    task = ToyReach()
    learner = kind(task, kind.Config(**QUICK), 0)
    metrics = list(learner.learn())
    assert metrics[-1]["progress"] == 1.0 and metrics[-1]["env_steps"] == 2400
    before = {name: success(task, controller, 100) for name, controller in learner.baselines().items()}
    after = success(task, learner.controller())
    assert {"random noise", "no noise"} <= set(before) and ("best of 16" in before) == (kind is Expo)
    assert after > least and after > before["random noise"] + gain, (before, after)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Expo, pytest.param(Residual, marks=pytest.mark.long)])  # in test_tables.py both
def test_it_continues_exactly(kind, monkeypatch):
    monkeypatch.setattr("policies.learning.online.REPORT", 25)  # as many rows, of a quarter as many steps
    whole = kind(ToyReach(), small(kind, total_steps=200), 0)
    rows, others = learned(whole, lambda: kind(ToyReach(), small(kind, total_steps=200), 0))
    assert rows[-1]["divergence"] > 0.0 and len(rows) == 3
    for second in others[:2]:  # after cloning, and while practising
        assert list(second.learn())[-1] == rows[-1]
        assert torch.equal(weights(whole), weights(second))


def agree(controller, path, rng):
    """The file does what the numpy data do, over an episode in seven scenes."""
    policy: PolicyFile = export(controller, path)
    policy.reset(7)
    state = controller.initial_state(7)
    moved = set()
    for _ in range(12):
        signals = {s.name: rng.uniform(-1.0, 1.0, (7, 2)).astype(np.float32) for s in controller.inputs}
        wanted, state = controller.act(signals, state)
        got = policy.step(signals)["velocity"]
        assert np.abs(got - wanted["velocity"]).max() < 1e-5
        moved.add(got.tobytes())
    assert len(moved) == 12


@pytest.mark.parametrize(("kind", "same"), [(Expo, False), (Expo, True), (Residual, False)])
def test_the_file_is_the_whole_controller(kind, same, tmp_path):
    learner = kind(ToyReach(), small(kind, same_edit=same, total_steps=200), 0)
    list(learner.learn())
    rng = np.random.default_rng(0)
    for name, controller in {"learned": learner.controller(), **learner.baselines()}.items():
        agree(controller, tmp_path / f"{name}.onnx", rng)


def drawn_judges(size, count=4):
    learner = OnlineFinetuning(ToyReach(), small(Expo), 0)
    learner.cloning.normalizer.update(torch.randn(50, 4, generator=learner.generator) * 3.0 + 1.0)
    critics = Critics(small(Expo), 4 + size, learner.generator, count)
    return learner.cloning.normalizer, critics, judges(critics, learner.cloning.normalizer)


@pytest.mark.parametrize("count", [1, 4])
def test_the_exported_critics_are_the_trained_ones(count):
    normalizer, critics, exported = drawn_judges(6, count)
    seen, choice = (torch.randn(20, size, generator=torch.Generator().manual_seed(1)) for size in (4, 6))
    with torch.no_grad():
        believed = critics.believed(torch.cat([normalizer(seen), choice], -1))
    assert np.allclose(exported.value(torch.cat([seen, choice], -1).numpy()), believed.numpy(), atol=1e-5)


def test_the_best_is_what_the_critics_say():
    """One candidate after the other, in plain loops."""
    made, rng = base(), np.random.default_rng(0)
    seen, noise = rng.normal(size=(5, 4)).astype(np.float32), rng.normal(size=(5, 3 * 6)).astype(np.float32)
    _, _, of_chunks = drawn_judges(6)
    chunks = BestOfN(of_chunks, 3).sample(made, seen, noise)
    _, _, of_noise = drawn_judges(2)
    picked = BestOfNNoise(of_noise, 9, repeat=3).sample(made, seen, noise)
    for row in range(5):
        here = seen[row : row + 1]
        options = [made.sample(here, w[None]) for w in noise[row].reshape(3, 6)]
        values = [of_chunks.value(np.concatenate([here, option], 1))[0] for option in options]
        assert np.allclose(chunks[row], options[int(np.argmax(values))][0], atol=1e-6)
        latent = noise[row].reshape(9, 2)
        best = latent[np.argmax([of_noise.value(np.concatenate([here[0], w])[None])[0] for w in latent])]
        assert np.allclose(picked[row], made.sample(here, np.tile(best, 3)[None])[0], atol=1e-6)


@pytest.mark.parametrize(("size", "repeat", "count"), [(6, 1, 4), (2, 3, 4), (6, 1, 1)])
def test_a_choice_of_noise_is_in_the_file(size, repeat, count, tmp_path):
    _, _, exported = drawn_judges(size, count)
    controller = ChunkPolicy.from_task(
        ToyReach(), base(), NoiseTable.normal(5 * size, 8), 3, BestOfNNoise(exported, 5, repeat)
    )
    agree(controller, tmp_path / "picked.onnx", np.random.default_rng(3))


def test_demonstrations_become_the_transitions_that_scenes_make():
    from policies.collect import DEMONSTRATIONS
    from policies.learning.chunk_rollout import ChunkRollout

    task, config = ToyReach(), small(Expo, step_reward=-0.5, n_step=3)
    run = OnlineFinetuning(task, config, 0)
    made, count = run.transitions(), 0
    for episode in run.demonstrations:
        starts = len(episode.reward) if episode.succeeded else max(0, len(episode.reward) - 3 * 2)
        shown, made = made[:starts], made[starts:]
        if not episode.succeeded:
            continue
        scenes = ChunkRollout(task, stream(0, DEMONSTRATIONS), 1, 2, run.rewards)
        scenes.env.reset([0], [episode.number])
        scenes.seen = scenes._look()
        found = []
        for first in range(0, starts, 2):
            scenes.plan(0, np.zeros(0, np.float32), shown[first].chunk)
            for _ in range(min(2, starts - first)):
                found += scenes.step()
        for old, new in zip(shown[::2], found, strict=True):
            assert np.allclose(old.x, new.x, atol=1e-5) and np.array_equal(old.chunk, new.chunk)
            assert np.isclose(old.reward, new.reward) and np.isclose(old.discount, new.discount)
            if old.discount:
                assert np.allclose(old.next_x, new.next_x, atol=1e-5)
                count += 1
    assert not made and count > 10


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="needs candidates >= 1 and noise_std >= 0, got 0 and 0.6"):
        ExpoConfig(candidates=0)
    with pytest.raises(ValueError, match="shown, the share of the demonstrations, lies between 0 and 1, got 1.0"):
        Expo(ToyReach(), ExpoConfig(shown=1.0), 0)
    with pytest.raises(ValueError, match="residual learning edits one chunk, not candidates=2; see algorithm=expo"):
        ResidualConfig(candidates=2)
    with pytest.raises(ValueError, match="critics must be at least 2, since their spread counts, got 1"):
        ExpoConfig(critics=1, target_critics=1)
