"""Transitions from within chunks: as demonstrations give them, beside those that scenes make; continued exactly."""

from functools import partial

import numpy as np
import pytest
import torch

from policies.algorithms.expo import Expo
from policies.algorithms.rlpd import Rlpd
from policies.learning.online import OnlineFinetuning
from tests.policies.algorithms.test_expo import small as small_edit
from tests.policies.algorithms.test_rlpd import small, weights
from tests.policies.resumed import learned
from tests.policies.toy_reach import ToyReach


def test_every_step_of_an_episode_begins_a_transition():
    """With those that begin with a chunk they are what a demonstration of the same episode would have given."""
    learner = Rlpd(ToyReach(), small(every_step=True, n_step=2, step_reward=-0.5), 0)
    made = []
    learner.keep = lambda transition: (made.append(transition), Rlpd.keep(learner, transition))
    list(learner.learn())
    count = 0
    between = [t for t in made if not len(t.choice)]
    assert 0.5 * len(made) < 2 * len(between) < 1.1 * len(made) and learner.memory.size == len(made)
    begun = {(t.x.tobytes(), t.chunk.tobytes()): t for t in made if len(t.choice)}
    for t in between:
        assert (t.x.tobytes(), t.chunk.tobytes()) not in begun
        assert t.discount in (0.0, pytest.approx(0.97**2))
        assert t.reward == pytest.approx(-0.5 - 0.5 * 0.97) if t.discount else t.reward in (10.0, pytest.approx(9.2))
        count += t.discount == 0.0
    assert count > 2


def test_one_episode_in_full():
    run = OnlineFinetuning(ToyReach(), small_edit(Expo, n_step=2), 0)
    seen = np.arange(8, dtype=np.float32)[:, None] * np.ones(4, np.float32)  # 7 steps
    action = np.arange(7, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    found = run.between(seen, action, True)
    assert [t.x[0] for t in found] == [1.0, 3.0, 5.0]  # chunks of 2 begin at the others
    assert [t.next_x[0] for t in found if t.discount] == [5.0]
    assert [t.discount == 0.0 for t in found] == [False, True, True]
    assert [t.chunk.tolist() for t in found] == [[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0], [5.0, 5.0, 6.0, 6.0]]
    assert found[1].reward == pytest.approx(9.7) and found[2].reward == 10.0
    assert [t.x[0] for t in run.between(seen, action, False)] == [1.0]  # what came later was not seen


@pytest.mark.parametrize(("kind", "settings"), [(Rlpd, small), (Expo, partial(small_edit, Expo))])
def test_learners_of_what_was_executed_continue_exactly(kind, settings, monkeypatch):
    monkeypatch.setattr("policies.learning.online.REPORT", 25)  # as many rows, of a quarter as many steps
    settings = partial(settings, total_steps=200)
    whole = kind(ToyReach(), settings(every_step=True), 0)
    rows, others = learned(whole, lambda: kind(ToyReach(), settings(every_step=True), 0))
    second = others[-2]
    assert list(second.learn())[-1] == rows[-1]
    assert torch.equal(weights(whole), weights(second))
    assert whole.memory.size > 1.5 * kind_count(kind, settings)


def kind_count(kind, settings):
    """Transitions of chunks alone, in as many steps."""
    return settings().total_steps / settings().base.horizon
