"""Scenes that execute chunks: transitions as the definition has them, and an exact continuation."""

import dataclasses

import numpy as np
import pytest

from policies.learning.chunk_rollout import ChunkRewards, ChunkRollout
from policies.learning.demonstrations import Demonstrations
from policies.learning.online import transitions as recorded
from tests.policies.toy_reach import Cell, Config, ToyReach

HORIZON, GAMMA, N_STEP = 4, 0.9, 3
REWARDS = ChunkRewards(success=10.0, step=-0.5, gamma=GAMMA, n_step=N_STEP)


def drive(scenes, rng, steps, wild=0.0):
    """Head for the goal, with noise; every transition, and per scene what happened at each control step."""
    transitions = []
    for _ in range(steps):
        for row in scenes.idle():
            away = scenes.seen[row, 2:] - scenes.seen[row, :2]
            action = np.clip(np.tile(2.0 * away, HORIZON) + wild * rng.normal(size=2 * HORIZON), -1.0, 1.0)
            scenes.plan(int(row), np.array([len(transitions)], np.float32), action.astype(np.float32))
        transitions += scenes.step()
    return transitions


def test_transitions_follow_from_the_chunks():
    scenes = ChunkRollout(ToyReach(), seed=3, num=5, horizon=HORIZON, rewards=REWARDS)
    transitions = drive(scenes, np.random.default_rng(0), 300, wild=0.5)
    assert len(transitions) > 200 and scenes.finished > 20
    seen = set()
    for t in transitions:
        if t.discount == 0.0:  # success, or lost: the last chunk alone decides
            for chunks in range(N_STEP):
                for reward in (10.0, -0.5):
                    if np.isclose(t.reward, sum(-0.5 * GAMMA**k for k in range(chunks)) + GAMMA**chunks * reward):
                        seen.add((chunks, reward))
                        break
            continue
        assert t.reward < 0.0
        chunks = round(np.log(t.discount) / np.log(GAMMA))
        assert 1 <= chunks <= N_STEP and np.isclose(t.discount, GAMMA**chunks)  # 24 steps are whole chunks
        assert np.isclose(t.reward, sum(-0.5 * GAMMA**k for k in range(chunks)))
    assert {(c, 10.0) for c in range(N_STEP)} <= seen


def test_it_is_told_how_long_the_newest_successes_took():
    scenes = ChunkRollout(ToyReach(), seed=3, num=5, horizon=HORIZON, rewards=REWARDS)
    assert scenes.rates() == {}
    rng, took = np.random.default_rng(0), []
    for _ in range(80):
        before, count = scenes._length.copy(), len(scenes.outcomes)
        drive(scenes, rng, 1)
        ended = scenes.outcomes[count:]
        took += [length + 1 for length, good in zip(before[scenes._length == 0], ended, strict=True) if good]
    assert len(set(took)) > 1 and len(took) > 20
    seconds = float(np.median(took[-20:])) / ToyReach().rate_hz
    assert scenes.rates() == {"success": np.mean(scenes.outcomes), "score_duration": pytest.approx(seconds)}
    again = ChunkRollout(ToyReach(), seed=3, num=5, horizon=HORIZON, rewards=REWARDS)
    again.load_state_dict(scenes.state_dict())
    assert again.rates() == scenes.rates()


def test_time_that_runs_out_in_a_chunk_counts_as_much_as_it_took():
    scenes = ChunkRollout(ToyReach(Config(steps=6, radius=1e-6)), 0, 1, HORIZON, REWARDS)
    first, second = drive(scenes, np.random.default_rng(0), 6)
    assert np.isclose(first.discount, GAMMA**1.5) and np.isclose(second.discount, GAMMA**0.5)
    assert np.isclose(first.reward, -0.5 - 0.5 * GAMMA) and np.isclose(second.reward, -0.5)
    assert np.allclose(first.next_x, second.next_x) and scenes.outcomes == [False]


def test_a_lost_scene_ends_without_a_future_and_is_worth_no_more_than_one_that_goes_on():
    task = ToyReach(Config(steps=100, radius=1e-6))
    scenes = ChunkRollout(task, 0, 1, HORIZON, REWARDS)
    made = []
    while not scenes.finished:
        if len(scenes.idle()):
            scenes.plan(0, np.zeros(1, np.float32), np.ones(2 * HORIZON, np.float32))
        made += scenes.step()
    assert [t.discount for t in made[-3:]] == [0.0] * 3 and made[-1].reward == pytest.approx(REWARDS.worst)


class Paid(ToyReach):
    """It pays what lacks to the goal."""

    def open(self, num, seed):
        return PaidCell(self, num, seed)


class PaidCell(Cell):
    def __init__(self, *args):
        super().__init__(*args)
        self.paid = []

    def step(self, command):
        step = super().step(command)
        self.paid.append(-np.linalg.norm(self.goal - self.position, axis=1).astype(np.float32))
        return dataclasses.replace(step, reward=self.paid[-1])


def test_what_the_task_pays_counts_of_every_control_step_in_scenes_and_recordings():
    rewards = dataclasses.replace(REWARDS, task=0.3)
    scenes, rng = ChunkRollout(Paid(), 3, 1, HORIZON, rewards), np.random.default_rng(0)
    made = drive(scenes, rng, 1)
    while not scenes.finished:
        made += drive(scenes, rng, 1)
    paid = np.concatenate(scenes.worlds.paid)
    assert scenes.outcomes == [True] and len(paid) > 2 * HORIZON
    shown = Demonstrations(np.arange(len(paid))[:, None], np.zeros((len(paid), 2 * HORIZON)))
    told = [*recorded(shown, len(paid) - 1, rewards, HORIZON, paid)]
    for k, transition in enumerate(made):
        own = [paid[s : s + HORIZON].sum() for s in range(HORIZON * k, len(paid), HORIZON)]
        rest = [-0.5] * (len(own) - 1) + [10.0]
        wanted = sum(GAMMA**j * (rest[j] + 0.3 * own[j]) for j in range(min(N_STEP, len(own))))
        assert transition.reward == pytest.approx(wanted, abs=1e-5)
        assert told[HORIZON * k].reward == pytest.approx(wanted, abs=1e-5)
        assert told[HORIZON * k].discount == pytest.approx(transition.discount)
    whole = sum(GAMMA**j * (-0.5 + 0.3 * paid[HORIZON * j : HORIZON * j + HORIZON].sum()) for j in range(len(made)))
    assert told[0].value == pytest.approx(whole + 10.5 * GAMMA ** (len(made) - 1), abs=1e-5)


def test_an_episode_is_the_same_in_any_batch():
    one = ChunkRollout(ToyReach(), 7, 1, HORIZON, REWARDS)
    many = ChunkRollout(ToyReach(), 7, 4, HORIZON, REWARDS)
    assert np.array_equal(one.seen[0], many.seen[0])


@pytest.mark.parametrize("before", [1, 37, 200])
def test_continues_exactly(before):
    whole = ChunkRollout(ToyReach(), 3, 4, HORIZON, REWARDS)
    rng = np.random.default_rng(1)
    drive(whole, rng, before, wild=0.4)
    state, noise = whole.state_dict(), rng.bit_generator.state
    rest = drive(whole, rng, 60, wild=0.4)
    continued = ChunkRollout(ToyReach(), 3, 4, HORIZON, REWARDS)
    continued.load_state_dict(state)
    again = np.random.default_rng(1)
    again.bit_generator.state = noise
    assert len(rest) > 30
    for a, b in zip(rest, drive(continued, again, 60, wild=0.4), strict=True):
        assert np.array_equal(a.x, b.x) and np.array_equal(a.chunk, b.chunk)
        assert (a.reward, a.discount) == (b.reward, b.discount) and np.array_equal(a.next_x, b.next_x)
    assert continued.outcomes == whole.outcomes and continued.finished == whole.finished
