"""Cloning of who points: words first, then the rest."""

import copy
import dataclasses

import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.vla import Vla, VlaConfig, stages
from policies.learning.vla.looking import TinyConfig
from policies.models.vision import EncoderConfig
from policies.runner import checkpoint
from sim.tasks import make
from sim.tasks.abilities import meaning_of
from tests.policies.language.spoken_words import encoder
from tests.policies.resumed import same


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make("arm_words", cameras=[], encoder=encoder(tmp_path_factory.mktemp("words")))


@pytest.fixture(scope="module")
def seen(task):
    """The same by one camera."""
    return make("arm_words", cameras=["front_camera"], encoder=str(task.encoder))


def cloning(task, head="tokens", **settings):
    network = TinyConfig(width=16, layers=1, heads=2, points=4, parallel=True, sight=EncoderConfig(), **settings)
    quick = {"horizon": 5, "episodes": 2, "updates": 60, "batch_size": 16, "bins": 16, "grounding": 20, "finding": 20}
    return Vla(task, VlaConfig(**quick, head=head, network=network), 0)


@pytest.fixture(scope="module")
def shown(task):
    return cloning(task, beside=4)._shown()


def learner(task, shown, monkeypatch, **settings):
    made = cloning(task, **{"beside": 4} | settings)
    if made.config.head == "tokens":  # a flow learns other things
        monkeypatch.setattr(made, "_shown", lambda: shown)
    return made


@pytest.fixture(scope="module")
def looked_at(seen):
    """The same with pictures."""
    return cloning(seen, beside=4)._shown()


def finding(seen, looked_at, monkeypatch, **settings):
    made = cloning(seen, **{"beside": 4, "looks": False} | settings)
    monkeypatch.setattr(made, "_shown", lambda: looked_at)
    return made


@pytest.fixture(scope="module")
def finders(seen, looked_at):
    """Rows of a run that tells something within its stages, its states after each, who it was, and what makes more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "REPORT", 15)
        torch.manual_seed(7)  # nothing may depend on it
        whole, rows, states = finding(seen, looked_at, patch), [], []
        for row in whole.learn():
            rows.append(row)
            states.append(copy.deepcopy(whole.state_dict()))
        yield rows, states, whole, lambda: finding(seen, looked_at, patch)


@pytest.mark.parametrize("head", ["tokens", "flow"])
def test_words_learn_first_and_then_nothing_more(task, shown, monkeypatch, head):
    made = learner(task, shown, monkeypatch, head=head)
    before = copy.deepcopy(made.pointing.state_dict())
    learning = made.learn()
    assert next(learning)["grounding_loss"] > 0.0 == made.done
    pointing = copy.deepcopy(made.pointing.state_dict())
    assert not torch.equal(before["which"], pointing["which"])
    assert {row["grounding_loss"] for row in learning} == {made.stages[0].metrics()["grounding_loss"]}
    for policy in (made.policy, made.average):
        assert all(torch.equal(value, pointing[name]) for name, value in policy.pointing.state_dict().items())


@pytest.mark.parametrize(
    ("row", "stage"),
    [
        (0, "its words learn what they mean"),
        (1, "its eyes learn to find things"),
        (2, "its eyes learn to find things"),
        (3, "the clone learns"),
        (4, "the clone learns"),
    ],
    ids=["words", "between", "eyes", "before", "clone"],
)
def test_who_is_killed_goes_on_exactly_where_he_was(finders, tmp_path, row, stage):
    rows, states, whole, finder = finders
    checkpoint.save(tmp_path / "checkpoint.npz", states[row])
    again = finder()
    again.load_state_dict(checkpoint.load(tmp_path / "checkpoint.npz"))
    assert again.stage() == stage and again.stages[1].done == [0, 0, 15, 20, 20][row]
    assert [*again.learn()] == rows[row + 1 :]
    same(whole.state_dict(), again.state_dict())


def test_what_learns_first_is_part_of_the_progress(finders):
    rows, *_ = finders
    progress, losses = ([row[name] for row in rows] for name in ("progress", "loss"))
    assert progress == pytest.approx([1.5 / 82, 2 / 82, 17 / 82, 22 / 82, 72 / 82, 1.0])  # 0.1 * 20 + 20 + 60 updates
    assert losses == [
        *(rows[k][name] for k, name in enumerate(["grounding_loss"] * 2 + ["localisation_loss"] * 2)),
        *losses[4:],
    ]
    assert {*rows[4]} >= {"grounding_loss", "localisation_error", "loss_floor"} and rows[3]["env_steps"] == 0.0


@pytest.mark.parametrize("looks", [True, False])
def test_eyes_learn_to_find_things_first_and_then_nothing_more(seen, looked_at, monkeypatch, looks):
    made = finding(seen, looked_at, monkeypatch, looks=looks)
    before = copy.deepcopy(made.pointing.find.state_dict())
    learning = made.learn()
    while not made.stages[1].over:
        next(learning)
    find = copy.deepcopy(made.pointing.find.state_dict())
    assert all(not torch.equal(before[name], value) for name, value in find.items())
    told = {row["localisation_error"] for row in learning}
    assert told == {made.stages[1].metrics()["localisation_error"]} and min(told) > 0.0
    assert looked_at[0].found.shape == (len(looked_at[0].wanted), 3, 3)
    for policy in (made.policy, made.average):
        assert all(torch.equal(value, find[name]) for name, value in policy.pointing.find.state_dict().items())


def test_the_clone_is_shown_what_its_eyes_find(seen, monkeypatch):
    made = cloning(seen, beside=4, looks=False)
    told, sentences = made._shown()
    made.pointing.normalise(told.truth)
    told.found = told.truth[:, :3] + 0.01
    drawn = made._drawn(told, sentences, torch.arange(16))
    usual = 5.0 * made.config.jitter * made.pointing.deviation[:3]
    assert ((drawn["found"] - told.found[:16]).abs() < usual).all() and not any("camera" in name for name in drawn)
    torch.nn.init.normal_(made.policy.head.weight)
    elsewhere = {**drawn, "found": drawn["found"] + 0.1}
    assert made._loss(drawn) != made._loss(elsewhere)


def test_who_is_told_what_is_meant_does_not_point(task, tmp_path):
    told = make("arm_words", cameras=[], meaning=True, encoder=encoder(tmp_path))
    assert meaning_of(task) == ("cube_position", ("object_position", "goal_position")) and not meaning_of(told)[1]
    assert cloning(told, beside=4).pointing is None and cloning(task, beside=0).pointing is None


def test_demonstrations_that_do_not_tell_it_are_named(task, monkeypatch):
    made = cloning(task, beside=4)
    episodes, shown = made._demonstrations()
    signals = {name: value for name, value in episodes[1].signals.items() if name != "goal_position"}
    robots = dataclasses.replace(episodes[1], signals=signals)
    monkeypatch.setattr(made, "_demonstrations", lambda: ([episodes[0], robots], shown))
    with pytest.raises(LearningError, match="demonstration 1 does not tell goal_position.*network.beside=0"):
        next(made.learn())


def test_bad_settings_are_named():
    for name in ("grounding", "finding"):
        with pytest.raises(ValueError, match="grounding and finding are at least 1"):
            VlaConfig(**{name: 0})
