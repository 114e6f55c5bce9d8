"""Hindsight: relabelled transitions are what the task itself says of them; learners with them continue exactly."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from policies.algorithms.dsrl_na import DsrlNa, DsrlNaConfig
from policies.algorithms.rlpd import Rlpd
from policies.learning.chunk_rollout import ChunkRewards, ChunkRollout
from policies.learning.hindsight import Hindsight
from sim import spec
from sim.tasks import make
from tests.policies.algorithms.test_dsrl_na import small as small_alias
from tests.policies.algorithms.test_rlpd import small, weights
from tests.policies.learning.test_asymmetric import SIGHT
from tests.policies.resumed import learned
from tests.policies.toy_goals import ToyGoals, ToySpot
from tests.policies.toy_reach import ToyReach
from tests.policies.toy_sight import ToySight

REWARDS = ChunkRewards(success=10.0, step=-0.5, gamma=0.9, n_step=3)


def practised(task, horizon, steps, low=-1.0):
    """What random chunks lead to: real transitions and relabelled ones, and what was seen per episode."""
    hindsight = Hindsight(task, 4, REWARDS, horizon, 0, spec.slices(task.policy))
    trails, relabel = [], hindsight.transitions

    def noted(key, seen, starts):
        made = relabel(key, seen, starts)
        trails.append((seen, starts, made))
        return made

    hindsight.transitions = noted
    scenes = ChunkRollout(task, 5, 2, horizon, REWARDS, hindsight=hindsight)
    rng, all_made = np.random.default_rng(0), []
    for _ in range(steps):
        for row in scenes.idle():
            scenes.plan(
                row, np.zeros(0, np.float32), rng.uniform(low, 1.0, horizon * scenes.actions).astype(np.float32)
            )
        all_made += scenes.step()
    scenes.close()
    return trails, all_made


@pytest.mark.parametrize(
    ("task", "steps"), [(ToyGoals(), 120), (make("gymnasium/FetchReach-v4"), 50)], ids=["toy", "FetchReach"]
)
def test_relabelled_rewards_are_what_the_task_says_is_reached(task, steps):
    horizon = 3
    trails, all_made = practised(task, horizon, steps)
    goal, achieved = (spec.slices(task.policy)[name] for name in (task.goal, task.achieved))
    ends, count = set(), 0
    for seen, starts, made in trails:
        assert all(any(t is one for one in all_made) for t in made)
        for t in made:
            first = next(
                k
                for k, chunk in starts
                if np.array_equal(seen[k, : goal.start], t.x[: goal.start]) and np.array_equal(chunk, t.chunk)
            )
            hits = [k for k in range(first, len(seen)) if task.reached(seen[k : k + 1, achieved], t.x[None, goal])[0]]
            assert hits and hits[0] > first and np.array_equal(t.next_x[goal], t.x[goal])
            assert any(np.array_equal(seen[k, achieved], t.x[goal]) for k in range(first + 1, len(seen)))
            chunks = math.ceil((hits[0] - first) / horizon)
            assert np.isclose(t.value, sum(-0.5 * 0.9**k for k in range(chunks - 1)) + 10.0 * 0.9 ** (chunks - 1))
            after = hits[0] if chunks <= 3 else first + 3 * horizon
            assert np.array_equal(t.next_x[achieved], seen[after, achieved])
            assert t.discount == (0.0 if chunks <= 3 else pytest.approx(0.9**3))
            assert np.isclose(t.reward, t.value if chunks <= 3 else -0.5 * (1 + 0.9 + 0.81))
            ends.add(t.discount == 0.0)
            count += 1
    assert count > 40 and ends == {True, False}


def test_goals_come_from_the_future_of_the_same_episode_and_are_the_same_again():
    task = ToyGoals()
    hindsight = Hindsight(task, 2, REWARDS, 2, 7, spec.slices(task.policy))
    seen = np.random.default_rng(0).uniform(-1.0, 1.0, (9, 4)).astype(np.float32)
    starts = [(0, np.zeros(4, np.float32)), (6, np.ones(4, np.float32))]
    made = hindsight.transitions((3,), seen, starts)
    for t in made:
        where = int(np.flatnonzero((seen[:, :2] == t.x[2:]).all(1))[0])
        assert where > (6 if t.chunk[0] else 0)
    again = hindsight.transitions((3,), seen, starts)
    assert len(made) > 2 and all(np.array_equal(a.x, b.x) for a, b in zip(made, again, strict=True))
    other = hindsight.transitions((4,), seen, starts)
    assert any(not np.array_equal(a.x, b.x) for a, b in zip(made, other, strict=False))
    seen[4] = np.nan
    assert hindsight.transitions((3,), seen, starts) == []


def seeing(**changes):
    settings = small_alias(**changes)
    return replace(settings, base=replace(settings.base, sight=SIGHT))


def test_goals_of_policies_that_see_pictures_are_relabelled_too():
    learner = DsrlNa(ToySpot(), seeing(hindsight=2, total_steps=300), 0)
    relabel, checked = learner.run.hindsight.transitions, 0
    (goal, position), points = (learner.insight.where()[name] for name in ("goal", "position")), slice(2, -2)
    assert (goal, position) == (slice(0, 2), slice(learner.insight.size - 2, learner.insight.size))

    def checking(key, seen, starts):
        nonlocal checked
        made = relabel(key, seen, starts)
        for t in made:
            first = next(k for k, chunk in starts if np.array_equal(seen[k, points], t.x[points]) and chunk is t.chunk)
            assert any(np.array_equal(t.x[goal], place) for place in seen[first + 1 :, position])
            assert np.array_equal(t.x[position], seen[first, position]) and np.array_equal(t.x[goal], t.next_x[goal])
        checked += len(made)
        return made

    learner.run.hindsight.transitions = checking
    *_, last = learner.learn()
    assert checked > 100 and last["env_steps"] >= learner.config.total_steps
    with pytest.raises(ValueError, match="nobody sees 'position' of toy_spot, .* set algorithm.hindsight=0, or"):
        DsrlNa(ToySpot(), seeing(hindsight=2, asymmetric=False), 0)


def test_a_goal_that_the_policy_sees_in_a_picture_alone_is_not_relabelled():
    class Shown(ToySight):
        achieved, reached = "position", ToyGoals.reached

    with pytest.raises(ValueError, match="toy_sight does not tell its policy 'goal' as numbers: set"):
        DsrlNa(Shown(), seeing(hindsight=2), 0)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), [(Rlpd, small), (DsrlNa, small_alias)])
def test_learners_with_it_continue_exactly(kind, settings, monkeypatch):
    monkeypatch.setattr("policies.learning.online.REPORT", 25)  # as many rows, of a quarter as many steps
    whole = kind(ToyGoals(), settings(hindsight=2, total_steps=200), 0)
    rows, others = learned(whole, lambda: kind(ToyGoals(), settings(hindsight=2, total_steps=200), 0))
    plain = kind(ToyGoals(), settings(hindsight=0, total_steps=200), 0)
    list(plain.learn())
    assert whole.memory.prior.size > 2 * plain.memory.prior.size
    second = others[-2]
    assert list(second.learn())[-1] == rows[-1]
    assert torch.equal(weights(whole), weights(second))


@pytest.mark.parametrize("task", [ToyReach(), make("metaworld/reach-v3")], ids=lambda task: task.name)
def test_tasks_without_goals_are_refused(task):
    for kind, settings in ((Rlpd, small(hindsight=4)), (DsrlNa, DsrlNaConfig(hindsight=4))):
        with pytest.raises(ValueError, match=f"hindsight needs a task with goals.*{task.name}' has none"):
            kind(task, settings, 0)
