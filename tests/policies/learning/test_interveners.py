"""Who takes over, when, for how long, and what is kept of it."""

import numpy as np
import pytest

from policies.learning.demonstrations import chunked
from policies.learning.interveners import Adviser, Expert, Watch, action_of, opening
from policies.learning.interventions import InterventionRollout
from policies.models.controller import physical
from sim.tasks import make
from tests.policies.toy_reach import ToyReach

HORIZON = 3


class Wanting(ToyReach):
    """Its expert wants what the test says."""

    wants = np.zeros((2, 2), np.float32)

    def expert(self, signals):
        return {"velocity": self.wants}


def decisions(watch, wants, begun=()):
    """What the rule says to a policy that never moves, while the expert of scene 0 wants (steps,) along x."""
    task = Wanting()
    expert = Expert(task, watch, 2)
    found = []
    for step, want in enumerate(wants):
        task.wants = np.array([[want, 0.0], [0.0, 0.0]], np.float32)
        taken, told = expert.decide({}, np.zeros((2, 2), np.float32), np.full(2, step in begun))
        assert not taken[1] and np.allclose(told, task.wants, equal_nan=True)
        found.append(int(taken[0]))
    return found


def test_the_expert_takes_over_when_actions_stay_apart():
    watch = Watch(threshold=0.5, patience=0.3, hold=0.2)  # at 10 Hz: 3 and 2 steps; 1.0 along x is 0.71 apart
    assert decisions(watch, [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]) == [0, 0, 0, 0, 0, 0, 1]
    assert decisions(watch, [0.7] * 9) == [0] * 9  # 0.495 apart
    assert decisions(watch, [1.0] * 3 + [0.0] * 4) == [0, 0, 0, 1, 1, 0, 0]  # for two steps
    assert decisions(watch, [1.0] * 9) == [0, 0, 0, 1, 1, 0, 0, 0, 1]  # then it looks again
    assert decisions(watch, [1.0] * 6, begun=[4]) == [0, 0, 0, 1, 0, 0]  # another episode
    assert decisions(watch, [1.0] * 3 + [np.nan] * 2) == [0] * 5


@pytest.mark.parametrize("name", ["arm_reach", "metaworld/pick-place-v3"])
def test_actions_are_what_commands_come_from(name):
    commands = make(name).commands
    action = np.random.default_rng(0).uniform(-1.0, 1.0, (5, sum(s.size for s in commands))).astype(np.float32)
    assert np.allclose(action_of(commands, physical(commands, action)), action, atol=1e-6)


class Stubborn:
    """A policy that always goes left."""

    def plan(self, base, observation):
        return np.tile(np.float32([-1.0, 0.0]), (len(observation), HORIZON))


def lessons(scenes, opened, seed=3):
    return InterventionRollout(ToyReach(), seed, scenes, HORIZON, opened)


def flown(made, count):
    found = []
    while len(found) < count:
        found += made.step(None, Stubborn())
    return found


def test_a_lesson_is_what_happened():
    task = ToyReach()
    made = lessons(3, opening(task, Watch(threshold=0.6), 3))
    found = flown(made, 30)
    for lesson in found:
        steps = len(lesson.action)
        assert lesson.seen.shape == (steps + 1, 4) and lesson.told.shape == (steps, 2)
        told = task.expert({"position": lesson.seen[:-1, :2], "goal": lesson.seen[:-1, 2:]})["velocity"]
        assert np.allclose(told, lesson.told, atol=1e-6)
        assert np.array_equal(lesson.action[lesson.taken], lesson.told[lesson.taken])
        assert np.array_equal(lesson.action[~lesson.taken], np.tile([-1.0, 0.0], ((~lesson.taken).sum(), 1)))
        moved = np.diff(lesson.seen[:, :2], axis=0)
        assert np.allclose(moved, 0.1 * lesson.action, atol=1e-5)
        assert lesson.success == (np.linalg.norm(lesson.seen[-1, 2:] - lesson.seen[-1, :2]) < 0.1)
        assert lesson.lost == (np.abs(lesson.seen[-1, :2]).max() > 2.0) and (
            lesson.success or lesson.lost or steps == 24
        )
        assert lesson.begins.sum() == np.diff(np.concatenate([[0], lesson.taken])).clip(0).sum()
    metrics = made.metrics()
    open_steps = sum(sum(row.taken) for row in made.rows)
    assert metrics["labels"] == sum(lesson.taken.sum() for lesson in found) + open_steps > 100
    assert metrics["success_with_help"] == np.mean([lesson.success for lesson in found])
    assert metrics["success"] == np.mean([lesson.success and not lesson.taken.any() for lesson in found])
    assert metrics["success_with_help"] > metrics["success"] + 0.3
    rate = sum(lesson.taken.sum() for lesson in found) / sum(len(lesson.taken) for lesson in found)
    assert np.isclose(metrics["intervention_rate"], rate)


def test_the_rest_of_a_chunk_is_dropped_when_it_is_interrupted():
    """A policy that counts its plans plans anew as soon as it is given back."""

    class Counting:
        plans = 0

        def plan(self, base, observation):
            self.plans += 1
            return np.full((1, 2 * HORIZON), -1.0 + 1e-3 * self.plans, np.float32)

    made = lessons(1, opening(ToyReach(), Watch(threshold=0.3, patience=0.3, hold=0.1), 1))
    policy, checked = Counting(), 0
    for _ in range(200):
        left = made.left[0]
        count = policy.plans
        made.step(None, policy)
        assert (policy.plans > count) == (left == 0)
        if made.rows[0].taken and made.rows[0].taken[-1]:
            assert made.left[0] == 0
            checked += 1
    assert checked > 10


def test_an_adviser_says_everywhere_and_acts_as_often_as_asked():
    for share in (0.0, 0.3, 1.0):
        made = lessons(4, lambda cell, share=share: Adviser(ToyReach(), share, 0))
        found = flown(made, 40)
        taken = np.concatenate([lesson.taken for lesson in found])
        assert abs(taken.mean() - share) < 0.08 and (share not in (0.0, 1.0) or taken.mean() == share)
        assert made.labels == sum(len(lesson.taken) for lesson in found) + sum(len(row.taken) for row in made.rows)


@pytest.mark.parametrize("opened", [opening(ToyReach(), Watch(), 4), lambda cell: Adviser(ToyReach(), 0.4, 0)])
def test_lessons_continue_exactly(opened):
    whole = lessons(4, opened)
    flown(whole, 9)
    state, continued = whole.state_dict(), lessons(4, opened)
    continued.load_state_dict(state)
    for a, b in zip(flown(whole, 12), flown(continued, 12), strict=True):
        for name, value in vars(a).items():
            assert np.array_equal(value, getattr(b, name)), name
    assert whole.metrics() == continued.metrics()


def test_chunks_hold_the_last_action():
    action = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert chunked(action, 3).tolist()[1:3] == [[2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 6, 7]]


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="needs threshold > 0, patience >= 0 and hold >= 0, got 0.0, 0.1 and 0.25"):
        Watch(threshold=0.0)
    with pytest.raises(ValueError, match="intervener=keyboard watches one scene, not num_envs=4"):
        opening(ToyReach(), Watch(intervener="keyboard"), 4)
