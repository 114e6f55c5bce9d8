"""Reinforcement of what says action tokens: on a toy, without the wheel of the sentence encoder."""

import copy
from contextlib import closing

import numpy as np
import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.vla import Vla, VlaConfig
from policies.algorithms.vla_rl import VlaRl, VlaRlConfig, progress
from policies.algorithms.vla_rl.curriculum import Curriculum
from policies.algorithms.vla_rl.exploration import blurred
from policies.algorithms.vla_rl.insight import Insight, unseen
from policies.algorithms.vla_rl.practice import Practice
from policies.algorithms.vla_rl.progress import Progress, shares
from policies.algorithms.vla_rl.returns import estimated, grouped, levelled, rewarded
from policies.learning.demonstrations import demonstrated
from policies.learning.vla.looking import TinyConfig
from policies.models.tokens.bins import BinTokens
from policies.models.vision import EncoderConfig
from policies.runner import checkpoint
from sim.env import make_env
from tests.policies.toy_words import ToyWords


@pytest.fixture(scope="module")
def task():
    return ToyWords()


def cloned(**settings):
    network = TinyConfig(
        width=16, layers=1, heads=2, keypoints=4, parallel=True, sight=EncoderConfig(channels=[4, 4], strides=[2, 2])
    )
    return VlaConfig(
        **{"horizon": 3, "bins": 9, "episodes": 8, "updates": 1, "batch_size": 16, "network": network} | settings
    )


def few(**settings):
    quick = {"clone": cloned(), "iterations": 4, "episodes": 16, "num_envs": 4, "batch_size": 32, "critic_alone": 1}
    return VlaRlConfig(**quick | {"temperature": 1.0, "blur": [1.0], "critic_hidden": [16]} | settings)


QUICK = {"iterations": 10, "episodes": 48, "num_envs": 24, "learning_rate": 3e-3, "target_kl": 0.1, "epochs": 4}


@pytest.mark.slow
@pytest.mark.parametrize(("advantage", "iterations"), [("gae", 10), pytest.param("grpo", 20, marks=pytest.mark.long)])
def test_the_success_of_a_poor_clone_rises(task, advantage, iterations):
    settings = QUICK | {"iterations": iterations, "advantage": advantage, "clone": cloned(updates=100)}
    learner = VlaRl(task, few(**settings), 0)
    told = [metrics for metrics in learner.learn() if "success" in metrics]
    success = [metrics["success"] for metrics in told]
    assert np.mean(success[-3:]) > np.mean(success[:2]) + 0.1
    learned = [
        metrics["disagreement"] for metrics in told[2:] if "disagreement" in metrics
    ]  # equal groups tell nothing
    assert told[-1]["progress"] == 1.0 and len(learned) > iterations / 2 and max(learned) < 1e-4
    assert told[-1]["entropy"] < told[2]["entropy"] < np.log(9.0) + 1e-4
    assert {"kl", "clipped", "clone_kl", "learning_rate", "success_open", "success_close"} <= {*told[-1]}


def test_it_goes_on_exactly_from_where_it_was_saved(task, tmp_path):
    torch.manual_seed(7)  # nothing may depend on it
    whole, first = (VlaRl(task, few(), 0) for _ in range(2))
    rows = [*whole.learn()]
    for _ in zip(range(3), first.learn(), strict=False):
        pass
    checkpoint.save(tmp_path / "checkpoint.npz", first.state_dict())
    second = VlaRl(task, few(), 1)  # whatever it drew must be overwritten
    second.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert [*second.learn()] == rows[3:]
    ours, theirs = (made.improvement.average.state_dict() for made in (whole, second))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_it_begins_with_what_a_run_of_cloning_left(task, tmp_path):
    clone = Vla(task, cloned(updates=3), 5)
    for _ in clone.learn():
        pass
    checkpoint.save(tmp_path / "checkpoint.npz", {"algorithm": clone.state_dict(), "log": {}})
    settings = {"start": str(tmp_path), "clone": cloned(updates=3), "iterations": 2}
    learner = VlaRl(task, few(**settings), 0)
    (first, _) = learner.learn()
    assert first["progress"] == 0.5 and first["env_steps"] > 0.0  # nothing was cloned
    theirs = clone.average.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in learner.cloning.average.state_dict().items())
    assert learner.provenance()["start"]["sha256"] and not VlaRl(task, few(), 0).provenance()
    with pytest.raises(LearningError, match="no checkpoint is not what this run began with"):
        VlaRl(task, few(), 0).load_state_dict(learner.state_dict())
    checkpoint.save(tmp_path / "again.npz", {"algorithm": learner.state_dict(), "log": {}})
    on = VlaRl(task, few(**{**settings, "start": str(tmp_path / "again.npz")}), 0)
    ours = learner.improvement.average.state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in on.cloning.average.state_dict().items())
    assert not all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_start_that_does_not_fit_is_named(task, tmp_path):
    with pytest.raises(ValueError, match="is no run, and no checkpoint of one"):
        VlaRl(task, few(start=str(tmp_path)), 0)
    checkpoint.save(tmp_path / "checkpoint.npz", {"algorithm": {"done": 1}})
    with pytest.raises(ValueError, match="is no checkpoint of vla or vla_rl"):
        VlaRl(task, few(start=str(tmp_path)), 0)
    checkpoint.save(tmp_path / "checkpoint.npz", {"algorithm": Vla(task, cloned(bins=11), 0).state_dict()})
    with pytest.raises(ValueError, match="head.bias is 11 there and 9 here; set algorithm.clone as it was"):
        VlaRl(task, few(start=str(tmp_path)), 0)


def test_what_is_compared_must_be_judged_as_it_was_drawn(task):
    learner = VlaRl(task, few(), 0)
    likely = learner.improvement.likely

    def other(policy, prefix, tokens):
        return likely(policy, prefix, tokens) - 1e-3

    learner.improvement.likely = other
    with pytest.raises(LearningError, match="nats from how it was drawn"):
        for _ in learner.learn():
            pass


def test_the_anchor_and_the_clip_hold_it_back(task):
    def moved(**settings):
        learner = VlaRl(task, few(iterations=5, learning_rate=0.01, target_kl=1.0, **settings), 0)
        return [*learner.learn()][-1]["clone_kl"]

    free = moved(anchor=1e-6)
    assert moved(anchor=3.0) < 0.5 * free
    assert moved(anchor=1e-6, clip=0.01, clip_above=0.01) < free


def said_by(task, numbers, horizon=3, num=3, command=1.0):
    """Chunks of episodes in which `command` is said all the time, and the scenes."""
    batches = []

    def speak(episodes, measured, shown):
        batches.append(episodes.tolist())
        tokens = torch.full((len(episodes), 2), len(batches))
        chunk = np.full((len(episodes), horizon, 2), command, np.float32)
        return tokens, torch.zeros(len(episodes)), chunk

    with closing(make_env(task, num, 0)) as env:
        looks = task.looks
        chunks = Practice(task, env, Insight(task), horizon)(numbers, speak)
        return chunks, batches, env, task.looks - looks


def test_all_scenes_plan_at_the_same_moment_and_who_is_done_rests():
    task = ToyWords()
    chunks, batches, env, looks = said_by(task, [0, 2, 1, 4, 3])
    assert env.drawn == [0, 2, 1, 4, 3] and looks == len(batches)
    assert chunks.success.tolist() == [True, True, False, True, False]  # odd ones are the other corner
    assert chunks.steps == env.moved  # nobody moved whose episode was over
    assert chunks.counts.sum() == sum(map(len, batches)) == len(chunks.tokens)
    of_each = [[k + 1 for k, batch in enumerate(batches) if episode in batch] for episode in range(5)]
    assert chunks.tokens[:, 0].tolist() == [time for times in of_each for time in times]
    assert chunks.last.tolist() == [k == len(times) - 1 for times in of_each for k in range(len(times))]
    failed = chunks.passed[chunks.episode == 2]
    assert failed.tolist() == [0.0, 0.25, 0.5, 0.75][: len(failed)]


def test_a_subset_of_chunks_keeps_what_belongs_together():
    chunks, *_ = said_by(ToyWords(), [0, 1, 2])
    some = chunks.some(chunks.episode == 1)
    rows = (chunks.episode == 1).nonzero()[:, 0]
    assert torch.equal(some.numbers, chunks.numbers[rows]) and np.array_equal(some.seen, chunks.seen[rows.numpy()])
    assert torch.equal(some.pictures["camera"], chunks.pictures["camera"][rows])


def test_the_same_episode_begins_alike_in_every_scene():
    chunks, *_ = said_by(ToyWords(), [4, 4, 4])
    first = [chunks.numbers[chunks.episode == k][0] for k in range(3)]
    assert torch.equal(first[0], first[1]) and torch.equal(first[1], first[2])


def test_potentials_reward_progress_and_cancel():
    last = torch.tensor([False, False, True, True])
    success = torch.tensor([False, False, True, False])
    potential = torch.tensor([0.2, 0.6, 0.9, 0.5])
    reward = rewarded(success, potential, last, 0.5, 0.9)
    assert reward.tolist() == pytest.approx([0.5 * (0.54 - 0.2), 0.5 * (0.81 - 0.6), 1.0 - 0.45, -0.25])
    total = sum(0.9**k * float(reward[k]) for k in range(3))
    assert total == pytest.approx(0.9**2 - 0.5 * 0.2)  # success, whatever lay between
    assert rewarded(success, potential, last, 0.0, 0.9).tolist() == [0.0, 0.0, 1.0, 0.0]


def test_a_potential_that_is_kept_prefers_failing_near_to_failing_far():
    last = torch.tensor([False, True, False, True, False, True])
    success = torch.tensor([False, False, False, False, False, True])
    potential = torch.tensor([0.2, 0.2, 0.2, 0.8, 0.2, 0.8])
    for kept, told_apart in ((False, False), (True, True)):
        reward = rewarded(success, potential, last, 0.5, 0.9, kept)
        far, near, done = (float(reward[k] + 0.9 * reward[k + 1]) for k in (0, 2, 4))
        assert done > max(near, far) + 0.5
        assert (near > far + 0.1) == told_apart
        assert told_apart or near == pytest.approx(far)


def test_advantages_end_with_their_episode():
    last = torch.tensor([False, True, True])
    reward, value = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, 0.4, 0.1])
    found = estimated(reward, value, last, 0.9, 0.8)
    second = 1.0 - 0.4
    assert found.tolist() == pytest.approx([0.9 * 0.4 - 0.5 + 0.72 * second, second, 1.9])


def test_groups_that_agree_say_nothing():
    success = torch.tensor([True, False, True, True, False, False])
    group = torch.tensor([0, 0, 1, 1, 2, 2])
    found = grouped(success, torch.tensor([3, 5, 3, 9, 5, 5]), group, 0.9)
    assert found[0] > 0.8 and found[1] == -found[0] and not found[2:].any()
    early = grouped(torch.tensor([True, True, False]), torch.tensor([2, 6, 6]), torch.zeros(3), 0.9)
    assert early[0] > early[1] > early[2]


def test_everything_that_is_asked_for_counts_as_much():
    thing = torch.tensor([0] * 50 + [1] * 50)
    drawn = torch.randn(100, generator=torch.Generator().manual_seed(0))
    found = levelled(torch.where(thing == 0, drawn, 5.0 + 20.0 * drawn), thing)
    for number in (0, 1):
        assert float(found[thing == number].std()) == pytest.approx(1.0, abs=0.05)
    assert float(levelled(torch.full((9,), 3.0), torch.zeros(9)).abs().max()) == 0.0


def test_what_is_settled_is_practised_seldom(task):
    curriculum = Curriculum(task, 0, even=False)
    assert curriculum.counts(20).tolist() == [10, 10]
    drawn = curriculum.draw(8)
    assert [task.asked(number, 0) for number, _ in drawn] == [thing for _, thing in drawn]
    things = np.array([thing for _, thing in drawn])
    rates = curriculum.learn(things, (things == 0) | (np.arange(8) % 2 == 0))
    assert rates[0] == 1.0 and curriculum.counts(24).tolist() == [4, 20]
    again = curriculum.draw(12)
    assert not {number for number, _ in drawn} & {number for number, _ in again}
    assert [thing for _, thing in again] == sorted([thing for _, thing in again], reverse=True)  # the worst first
    curriculum.learn(np.array([0, 1]), np.array([False, True]))
    assert curriculum.success[0] == pytest.approx(0.7)
    assert Curriculum(task, 0, even=True).counts(3).sum() == 3
    nearing = Curriculum(task, 0, even=False, nearing=True)
    nearing.success[:] = 0.0, 1.0
    assert nearing.counts(24).tolist() == [20, 4]


def test_what_was_cloned_is_not_demonstrated_again(task, monkeypatch):
    asked = []
    monkeypatch.setattr("policies.algorithms.vla_rl.demonstrated", lambda *_: asked.append(1) or made)
    made = demonstrated(unseen(task), cloned(), 0)
    first = VlaRl(task, few(iterations=1), 0)
    for _ in first.learn():
        pass
    assert not asked and not first.cloning.shown  # and is forgotten
    second = VlaRl(task, few(iterations=1), 0)
    for _ in second.cloning.learn():
        pass
    assert all("camera" not in episode.signals for episode in second.cloning.shown)
    second.cloning.shown = []  # as after a checkpoint
    for _ in second.learn():
        pass
    assert asked == [1]
    ours, theirs = (learner.insight.normalizer.state_dict() for learner in (first, second))
    assert all(torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(theirs[name])) for name in ours)


def test_progress_is_that_of_demonstrations(task):
    shown = demonstrated(unseen(task), cloned(episodes=12), 0)
    assert "camera" not in shown[0].signals
    insight, generator = Insight(task), torch.Generator().manual_seed(0)
    insight.learn(shown)
    assert insight.size == 2 + 2 + 3  # position, goal, and how far apart they are
    potential = Progress(insight.size, generator)
    assert potential.learn(shown, insight, generator) < 0.01
    for episode in shown:
        passed = potential(insight(insight.see(episode.signals)))
        assert passed[-1] > passed[0] and shares(episode)[0] == 0.0


def test_who_goes_astray_comes_away_from_the_end(task, monkeypatch):
    monkeypatch.setattr(progress, "HAND", "position")
    shown = demonstrated(unseen(task), cloned(episodes=12), 0)
    insight, generator = Insight(task), torch.Generator().manual_seed(0)
    insight.learn(shown)
    potential = Progress(insight.size, generator)
    potential.learn(shown, insight, generator, astray=1.0)
    for episode in shown:
        ended = {name: told[-1:] for name, told in episode.signals.items()}
        way = ended["position"] - episode.signals["position"][0]
        way *= 0.5 / np.linalg.norm(way)
        beyond = insight.displaced(insight.see(ended), "position", way)
        assert np.allclose(beyond, insight.see(ended | {"position": ended["position"] + way}), atol=1e-6)
        assert potential(insight(beyond)) < potential(insight(insight.see(ended))) - 0.1


def test_demonstrations_that_do_not_tell_what_critics_see_are_named(task):
    shown = demonstrated(unseen(task), cloned(episodes=2), 0)
    del shown[1].signals["goal"]
    with pytest.raises(
        LearningError, match="demonstration 1 does not tell goal, which critics see: take what policies"
    ):
        Insight(task).learn(shown)


def test_words_become_their_neighbours():
    blur = blurred(BinTokens(2, 3, bins=16), [2.0, 0.0, 1.0])
    assert blur.shape == (6, 16, 16) and torch.allclose(blur.sum(2), torch.ones(6, 16))
    assert torch.equal(blur[1], torch.eye(16)) and torch.equal(blur[:3], blur[3:])
    place = torch.arange(16.0)
    assert float(((blur[0, 8] * (place - 8.0) ** 2).sum()) ** 0.5) == pytest.approx(2.0, abs=0.05)
    with pytest.raises(ValueError, match="one for each of the 3 numbers of an action"):
        blurred(BinTokens(2, 3, bins=16), [1.0, 1.0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"advantage": "rloo"}, "is not one of gae, grpo"),
        ({"advantage": "grpo", "group": 1}, "a group is two episodes at least"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"progress": -1.0}, "progress must not be negative"),
        ({"kept": True, "progress": 0.0}, "kept=true is of the process reward"),
        ({"astray": -0.1}, "astray must not be negative"),
        ({"astray": 0.1}, "leads a hand_position astray, and"),
        ({"ema_decay": 1.5}, "within 0..1"),
        ({"blur": [1.0, 1.0, 1.0]}, "blur has one deviation"),
    ],
)
def test_bad_settings_are_named(task, settings, message):
    with pytest.raises(ValueError, match=message):
        VlaRl(task, few(**settings), 0)


def test_the_average_is_kept_and_the_clone_compared_with(task):
    learner = VlaRl(task, few(ema_decay=1.0), 0)
    for _ in learner.learn():
        pass
    clone, kept, last = (
        copy.deepcopy(some.state_dict())
        for some in (learner.cloning.average, learner.improvement.average, learner.improvement.policy)
    )
    assert all(torch.equal(clone[name], kept[name]) for name in clone)  # nothing of what was learned was taken in
    assert not all(torch.equal(clone[name], last[name]) for name in clone)
    assert learner.controller().policy is learner.improvement.average
    assert learner.baselines()["clone"].policy is learner.cloning.average
