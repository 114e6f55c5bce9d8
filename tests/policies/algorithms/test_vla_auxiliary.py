"""Cloning that is asked what only a simulator knows: on a toy, without the wheel."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from policies.algorithms import LearningError
from policies.algorithms.vla import Vla, VlaConfig
from policies.algorithms.vla.auxiliary import Auxiliary
from policies.learning.vla.flow import FlowConfig
from policies.learning.vla.looking import TinyConfig
from policies.learning.vla.pretrained import PretrainedConfig
from policies.models.vision import EncoderConfig
from sim.spec import Signal
from tests.policies.toy_words import ToyWords


@pytest.fixture(scope="module")
def task():
    return ToyWords()


def cloning(task, **settings):
    sight = EncoderConfig(channels=[4, 4], strides=[2, 2])
    quick = {"horizon": 3, "episodes": 8, "updates": 60, "batch_size": 32, "bins": 16, "auxiliary": 1.0}
    quick |= {"network": TinyConfig(width=16, layers=1, heads=2, points=4, parallel=True, sight=sight)}
    return Vla(task, VlaConfig(**quick | {"flow": FlowConfig(readouts=2, hidden=[32, 32])} | settings), 0)


def unexplained(made):
    """The share of the goal's variance that what the policy sees does not tell; no word left out, nothing moved."""
    shown, sentences = made._shown()
    with torch.no_grad():
        told = made.policy.tell(*sentences.draw(shown.asked, torch.Generator().manual_seed(0)))
        seen = made.head.see(made.policy, told, shown.numbers, shown.pictures)
        return float(made.auxiliary.loss(made.head.start(seen), shown.truth))


@pytest.mark.parametrize("head", ["tokens", "flow"])
def test_it_learns_to_tell_where_the_goal_is_that_the_words_mean(task, head):
    made = cloning(task, head=head, updates=100, learning_rate=1e-2)
    made.auxiliary.normalise(made._shown()[0].truth)
    assert unexplained(made) == pytest.approx(1.0, abs=1e-4)
    losses = [metrics["loss"] for metrics in made.learn()]
    assert np.isfinite(losses).all() and unexplained(made) < 0.3


def test_signals_count_the_same_whatever_their_size():
    aside = Auxiliary(2, (Signal("place", (3,)), Signal("on", (1,))))
    truth = torch.tensor([[1.0, 0.0, 5.0, 1.0], [-1.0, 0.0, 5.0, -1.0]])
    aside.normalise(truth)
    # One of three numbers of the first differs, and all of the second: in its deviations.
    assert aside.loss(torch.zeros(2, 2), truth).item() == pytest.approx((1.0 / 3.0 + 1.0) / 2.0)
    aside.bias.data[3] = 1.0
    assert aside.loss(torch.zeros(2, 2), truth).item() == pytest.approx((1.0 / 3.0 + 2.0) / 2.0)


def test_the_policy_has_none_of_it(task):
    made, plain = cloning(task, updates=2), cloning(task, updates=2, auxiliary=0.0)
    ours, theirs = made.average.state_dict(), plain.average.state_dict()
    assert {name: value.shape for name, value in ours.items()} == {name: value.shape for name, value in theirs.items()}
    assert "goal" not in {s.name for s in made.controller().inputs}
    assert [*plain.auxiliary.state_dict()["weight"].shape] == [0, 1] and plain._shown()[0].truth.shape[1] == 0


def test_it_goes_on_exactly_from_where_it_was_saved(task):
    whole, first = (cloning(task) for _ in range(2))
    for _ in whole.learn():
        pass
    next(first.learn())
    state = copy.deepcopy(first.state_dict())
    second = cloning(task)
    second.load_state_dict(state)
    for _ in second.learn():
        pass
    for part in ("average", "auxiliary"):
        ours, theirs = (getattr(made, part).state_dict() for made in (whole, second))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_demonstrations_that_do_not_tell_it_are_named(task, monkeypatch):
    made = cloning(task)
    episodes, shown = made._demonstrations()
    signals = {name: value for name, value in episodes[1].signals.items() if name != "goal"}
    robots = dataclasses.replace(episodes[1], signals=signals)
    monkeypatch.setattr(made, "_demonstrations", lambda: ([episodes[0], robots, *episodes[2:]], shown))
    with pytest.raises(LearningError, match="demonstration 1 does not tell goal.*set algorithm.auxiliary=0"):
        next(made.learn())


@pytest.mark.parametrize(
    "settings", [{"auxiliary": -1.0}, {"auxiliary": 1.0, "pretrained": PretrainedConfig(folder="somewhere")}], ids=str
)
def test_bad_settings_are_named(task, settings):
    with pytest.raises(ValueError, match="auxiliary must not be negative, and is of no pretrained policy"):
        cloning(task, **settings)
