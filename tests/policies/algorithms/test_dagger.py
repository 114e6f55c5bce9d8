"""DAgger, HG-DAgger and RLIF: each makes a mediocre clone better from corrections, continues exactly, is one file."""

import dataclasses
import os
import struct

import numpy as np
import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.bc import BaseConfig, Bc, BcConfig
from policies.algorithms.dagger import Dagger
from policies.algorithms.hg_dagger import HgDagger
from policies.algorithms.rlif import Rlif
from policies.learning.interventions import InterventionEpisode
from sim.env import NoExpertError
from sim.spec import Signal
from tests.policies.algorithms.test_dsrl import success
from tests.policies.algorithms.test_expo import agree
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach

BASE = BaseConfig(horizon=2, hidden=[32, 32], updates=300, episodes=60, corruption=1.2)
CORRECTED = {"base": BASE, "total_steps": 1000, "episodes_per_round": 10, "updates_per_round": 100}
STEERED = {
    "base": BASE,
    "total_steps": 1200,
    "warmup_episodes": 15,
    "head_start": 200,
    "hidden": [32, 32],
    "critics": 3,
}
STEERED |= {"prior_steps": 1600, "critic_updates": 2, "actor_updates": 1, "batch_size": 64}
KINDS = {Dagger: CORRECTED, HgDagger: CORRECTED, Rlif: STEERED}


def small(kind, **changes):
    tiny = {"base": dataclasses.replace(BASE, updates=20, episodes=20), "num_envs": 2, "total_steps": 400}
    tiny |= (
        {"warmup_episodes": 2, "head_start": 8, "batch_size": 16}
        if kind is Rlif
        else {"episodes_per_round": 4, "updates_per_round": 5}
    )
    return kind.Config(**(KINDS[kind] | tiny | changes))


def weights(learner):
    modules = [learner.cloning.average] + ([learner.training.average] if isinstance(learner, Rlif) else [])
    return torch.cat([p.flatten() for module in modules for p in module.parameters()])


@pytest.fixture(scope="module")
def cloned():
    """Success of the base alone."""
    clone = Bc(ToyReach(), BcConfig(**vars(BASE), noise="none"), 0)
    list(clone.learn())
    return success(ToyReach(), clone.controller(), 100)


@pytest.mark.parametrize(("kind", "gain"), [(Dagger, 0.4), (HgDagger, 0.3)])
def test_corrections_make_a_mediocre_clone_better(kind, gain, cloned):
    task = ToyReach()
    learner = kind(task, kind.Config(**KINDS[kind]), 0)
    rows = list(learner.learn())
    after = success(task, learner.controller(), 100)
    assert after > cloned + gain, (cloned, after)
    flown = [row for row in rows if row["env_steps"]]
    assert all({"labels", "interventions"} <= row.keys() for row in flown)
    labels = [row["labels"] for row in flown]
    assert labels == sorted(labels) and (labels[-1] == flown[-1]["env_steps"]) == (kind is Dagger)


@pytest.mark.long  # what is learned from is defined below, and that it is learned exactly as before
def test_rlif_learns_what_makes_somebody_intervene():
    """Its critics were told of interventions only: they prefer what the expert would do, in states never seen."""
    learner = Rlif(ToyReach(), Rlif.Config(**STEERED), 0)
    row = list(learner.learn())[-1]
    assert row["interventions"] > 50 and 100 < row["labels"] < 1100
    rng = np.random.default_rng(0)
    position, goal = rng.uniform(-0.9, 0.9, (2, 300, 2)).astype(np.float32)
    seen = np.concatenate([position, goal], axis=1)[np.linalg.norm(goal - position, axis=1) > 0.3]
    right = np.tile(ToyReach().expert({"position": seen[:, :2], "goal": seen[:, 2:]})["velocity"], (1, 2))
    own = learner.run.base.sample(seen, 0.6 * rng.normal(size=(len(seen), 4)).astype(np.float32))
    x = learner.cloning.see(seen)
    with torch.no_grad():
        good, bad = (
            learner.judges.ensemble(torch.cat([x, torch.from_numpy(chunk)], -1)).mean(0) for chunk in (right, own)
        )
    assert (good > bad).float().mean() > 0.9 and float((good - bad).mean()) > 1.0, (good.mean(), bad.mean())


def test_dagger_needs_no_help_and_cloning_alone_is_all_help():
    rows = [list(Dagger(ToyReach(), small(Dagger, beta=beta), 0).learn())[-1] for beta in (0.0, 1.0)]
    assert [row["intervention_rate"] for row in rows] == [0.0, 1.0] and rows[1]["success_with_help"] == 1.0
    decaying = Dagger(ToyReach(), small(Dagger, beta=0.5), 0)
    list(decaying.learn())
    assert decaying.rounds > 2 and decaying.adviser.share == 0.5 ** (decaying.rounds + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_continues_exactly(kind, monkeypatch):
    monkeypatch.setattr("policies.learning.interventions.REPORT", 50)  # as many rows, of half as many steps
    whole = kind(ToyReach(), small(kind, total_steps=200), 0)
    rows, others = learned(whole, lambda: kind(ToyReach(), small(kind, total_steps=200), 1))
    assert len(rows) == 3 and "loss" in rows[-1]
    for second in others[:2]:  # after cloning, and while practising
        assert list(second.learn())[-1] == rows[-1]
        assert torch.equal(weights(whole), weights(second))


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_the_whole_controller(kind, tmp_path):
    noise = {} if kind is Rlif else {"noise": "normal"}
    learner = kind(ToyReach(), small(kind, total_steps=200, **noise), 0)
    list(learner.learn())
    agree(learner.controller(), tmp_path / "policy.onnx", np.random.default_rng(0))


def test_corrections_have_their_share_of_what_is_learned_from():
    for shown in (0.0, 0.25, 0.6):
        learner = Dagger(ToyReach(), small(Dagger, shown=shown), 0)
        learner.seen, learner.chunks = np.full((7, 4), 9.0, np.float32), np.zeros((7, 4), np.float32)
        data = learner._aggregate()
        own = (data.observation == 9.0).all(axis=1)
        assert abs(own.mean() - (1.0 - shown)) < 0.01 and not data.chunk[own].any()
        assert (~own).sum() >= (sum(len(e.reward) for e in learner.run.demonstrations) if shown else 0)


def test_what_hg_dagger_learns_is_what_the_intervener_did():
    learner = HgDagger(ToyReach(), small(HgDagger), 0)
    action = np.arange(10, dtype=np.float32).reshape(5, 2)
    lesson = InterventionEpisode(
        np.arange(24.0).reshape(6, 4), action, action, np.array([0, 1, 1, 0, 0], bool), True, False
    )
    seen, chunks = learner.corrections(lesson)
    assert seen[:, 0].tolist() == [4.0, 8.0] and chunks.tolist() == [[2, 3, 4, 5], [4, 5, 6, 7]]


def naive(lesson, config, horizon):
    """Reward, discount and the index of the last state, per step, by the definition."""
    steps, gamma = len(lesson.action), config.gamma ** (1.0 / horizon)
    for first in range(steps):
        reward, factor, k = 0.0, 1.0, first
        while k < min(first + config.n_step * horizon, steps):
            if k + 1 < steps and lesson.taken[k + 1] and not lesson.taken[k]:
                reward -= factor * config.cost
            if k == steps - 1:
                reward += factor * (config.success_reward * lesson.success - config.cost * lesson.lost)
            factor, k = factor * gamma, k + 1
        yield reward, 0.0 if k == steps and (lesson.success or lesson.lost) else factor, k


@pytest.mark.parametrize("end", ["success", "lost", "time"])
def test_an_intervention_is_the_reward(end):
    learner = Rlif(ToyReach(), small(Rlif, n_step=2, cost=3.0, success_reward=7.0, gamma=0.8), 0)
    rng = np.random.default_rng(0)
    steps = 19
    taken = np.repeat([1, 0, 1, 0, 1], [2, 4, 3, 6, 4]).astype(bool)
    action, seen = rng.normal(size=(steps, 2)).astype(np.float32), rng.normal(size=(steps + 1, 4)).astype(np.float32)
    lesson = InterventionEpisode(seen, action, action, taken, end == "success", end == "lost")
    made, count = learner.transitions(lesson), 0
    for first, (t, (reward, discount, last)) in enumerate(zip(made, naive(lesson, learner.config, 2), strict=True)):
        assert np.isclose(t.reward, reward) and np.isclose(t.discount, discount)
        assert np.array_equal(t.x, seen[first]) and np.array_equal(t.next_x, seen[last])
        assert np.array_equal(t.chunk, action[[first, min(first + 1, steps - 1)]].ravel())
        count += t.reward < -2.0
    assert count >= 6


def test_a_human_corrects(tmp_path):
    """A gamepad's events bring the point to its goal whenever it is far away; the policy learns those commands."""
    os.mkfifo(tmp_path / "js0")
    reader = os.open(tmp_path / "js0", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "js0", os.O_WRONLY)

    class Watched(ToyReach):
        rate_hz = 2000.0

        def open(self, num, seed):
            cell = super().open(num, seed)
            read = cell.observe

            def reading():
                seen = read()
                away = (seen["goal"] - seen["position"])[0]
                for axis, sign in ((1, away[0]), (0, away[1])):
                    value = 0 if np.abs(away).max() < 0.6 or abs(sign) < 0.1 else -32767 * int(np.sign(sign))
                    os.write(writer, struct.pack("=IhBB", 0, value, 2, axis))
                return seen

            cell.observe = reading
            return cell

    settings = small(HgDagger, intervener=str(tmp_path / "js0"), num_envs=1, total_steps=400, hold=0.0)
    learner = HgDagger(Watched(), settings, 0)
    row = list(learner.learn())[-1]
    os.close(writer)
    os.close(reader)
    assert 20 < row["labels"] < 400 and row["interventions"] > 3 and learner.rounds > 1
    assert set(np.abs(learner.chunks[:, :2]).round(2).ravel()) == {0.0, 0.25}  # at the default speed
    away = learner.seen[:, 2:] - learner.seen[:, :2]
    assert (np.abs(away).max(axis=1) > 0.5).all()


def test_where_nothing_can_be_learned():
    quiet = {"threshold": 9.0, "base": dataclasses.replace(BASE, updates=5)}
    with pytest.raises(LearningError, match="nobody took over in 400 steps"):
        list(HgDagger(ToyReach(), small(HgDagger, **quiet), 0).learn())
    with pytest.raises(LearningError, match="nobody intervened in the . episodes of the warm-up"):
        list(Rlif(ToyReach(), small(Rlif, **quiet), 0).learn())

    class Orphan(ToyReach):
        """Its expert is gone when the demonstrations have been made."""

        def open(self, num, seed):
            if self.opened:
                self.expert = self.none
            return super().open(num, seed)

        def none(self, signals):
            raise NoExpertError("orphan has no scripted expert")

    for kind in KINDS:
        with pytest.raises(LearningError, match="orphan has no scripted expert; a human can intervene: algorithm=hg_"):
            list(kind(Orphan(), small(kind), 0).learn())


@pytest.mark.parametrize("kind", [Dagger, HgDagger])
def test_pictures_are_refused_where_they_are_not_kept(kind):
    task = ToyReach()
    task.policy = (*task.policy, Signal("camera", (16, 16, 3), "1", "", 0.0, 255.0, dtype="uint8"))
    with pytest.raises(ValueError, match="corrections are kept as numbers, but toy_reach shows pictures: camera"):
        kind(task, small(kind), 0)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (Dagger, {"intervener": "keyboard"}, "intervener=keyboard: DAgger asks in every state"),
        (Dagger, {"beta": 1.5}, "beta, the expert's share of the steps, lies between 0 and 1, got 1.5"),
        (HgDagger, {"shown": 1.0}, "shown, the share of the demonstrations, lies between 0 and 1, got 1.0"),
        (HgDagger, {"noise": "pink"}, "noise 'pink' is not one of none, normal"),
        (HgDagger, {"episodes_per_round": 0}, "episodes_per_round must be at least 1, got 0"),
        (HgDagger, {"intervener": "keyboard"}, "intervener=keyboard watches one scene, not num_envs=4"),
        (Rlif, {"cost": 0.0}, "an intervention needs cost > 0, got 0.0"),
        (Rlif, {"threshold": -1.0}, "needs threshold > 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        kind(ToyReach(), kind.Config(**changes), 0)
