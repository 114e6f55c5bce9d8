"""Cloning of who points: words first, then the rest."""

import copy
import dataclasses

import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.vla import Vla, VlaConfig
from policies.learning.vla.looking import TinyConfig
from policies.models.vision import EncoderConfig
from sim.tasks import make
from sim.tasks.abilities import meaning_of
from tests.policies.language.spoken_words import encoder


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


@pytest.mark.parametrize("head", ["tokens", "flow"])
def test_words_learn_first_and_then_nothing_more(task, shown, monkeypatch, head):
    made = learner(task, shown, monkeypatch, head=head)
    before = copy.deepcopy(made.pointing.state_dict())
    learning = made.learn()
    assert next(learning)["pointing_loss"] == made.misunderstood > 0.0
    pointing = copy.deepcopy(made.pointing.state_dict())
    assert not torch.equal(before["which"], pointing["which"])
    for _ in learning:
        pass
    for policy in (made.policy, made.average):
        assert all(torch.equal(value, pointing[name]) for name, value in policy.pointing.state_dict().items())


def test_it_goes_on_exactly_from_where_it_was_saved(task, shown, monkeypatch):
    whole, first, second = (learner(task, shown, monkeypatch) for _ in range(3))
    told = [*whole.learn()]
    next(first.learn())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert [*second.learn()][-1]["pointing_loss"] == told[-1]["pointing_loss"]
    ours, theirs = (made.average.state_dict() for made in (whole, second))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("looks", [True, False])
def test_eyes_learn_to_find_things_first_and_then_nothing_more(seen, monkeypatch, looks):
    made, again = (cloning(seen, beside=4, looks=looks) for _ in range(2))
    told = made._shown()
    for one in (made, again):
        monkeypatch.setattr(one, "_shown", lambda: told)
    before = copy.deepcopy(made.pointing.find.state_dict())
    learning = made.learn()
    assert next(learning)["finding_error"] == made.missed > 0.0
    assert told[0].found.shape == (len(told[0].wanted), 3, 3)
    find = copy.deepcopy(made.pointing.find.state_dict())
    assert all(not torch.equal(before[name], value) for name, value in find.items())
    again.load_state_dict(copy.deepcopy(made.state_dict()))
    for one in (learning, again.learn()):
        assert [*one][-1]["finding_error"] == made.missed
    for policy in (made.policy, made.average, again.average):
        assert all(torch.equal(value, find[name]) for name, value in policy.pointing.find.state_dict().items())
    ours, theirs = (one.average.state_dict() for one in (made, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


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
