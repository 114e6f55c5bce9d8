"""The one loop over episodes: who begins when, what ends an episode, and what is kept of it."""

import numpy as np
import pytest

from sim.rollout import rollout
from tests.policies.toy_reach import Cell, Config, ToyReach


def expert(task, log=None):
    def act(signals, numbers, begun):
        if log is not None:
            log.append((numbers.copy(), begun.copy()))
        return task.expert(signals)

    return act


def test_episodes_begin_in_order_in_the_row_that_is_free():
    task, log = ToyReach(), []
    flown = list(rollout(task, task.open(3, 0), expert(task, log), range(5, 12)))
    assert sorted(e.number for e in flown) == [*range(5, 12)]
    assert log[0][0].tolist() == [5, 6, 7] and log[0][1].all()
    begun = [int(numbers[row]) for numbers, new in log for row in np.flatnonzero(new)]
    assert begun == [*range(5, 12)]  # each once, and said to whoever acts
    with pytest.raises(ValueError, match="3 environments need as many episodes, got 2"):
        next(rollout(task, task.open(3, 0), expert(task), [0, 1]))


def test_it_lingers_after_success_and_keeps_every_step():
    task = ToyReach(Config(steps=60))
    short, long = (
        {e.number: e for e in rollout(task, task.open(2, 0), expert(task), range(6), linger)} for linger in (0, 3)
    )
    for number, episode in short.items():
        steps = len(episode.reward)
        assert episode.success.tolist() == [False] * (steps - 1) + [True] and not episode.terminated.any()
        assert len(long[number].reward) == steps + 3
        for name, values in {**episode.signals, **episode.commands}.items():
            np.testing.assert_array_equal(values, {**long[number].signals, **long[number].commands}[name][:steps])


def test_time_and_being_lost_end_an_episode_and_scores_are_its_own():
    task = ToyReach(Config(steps=7))
    still = {"velocity": np.zeros((2, 2), np.float32)}
    for episode in rollout(task, task.open(2, 0), lambda *_: still, range(4)):
        assert len(episode.reward) == 7 and not episode.succeeded
        score = task.score(episode.flight())
        assert score["success"] == [0.0] and score["distance"].shape == (1,)
    away = {"velocity": np.ones((2, 2), np.float32)}
    task = ToyReach(Config(steps=200, radius=0.0))
    for episode in rollout(task, task.open(2, 0), lambda *_: away, range(2)):
        assert episode.terminated.tolist() == [False] * (len(episode.reward) - 1) + [True]


def test_the_truth_is_kept_where_it_is_asked_for():
    class Misled(Cell):
        def observe(self):
            return {name: value + 9.0 for name, value in super().observe().items()}

        def truth(self):
            return super().observe()

    task = ToyReach()
    env = Misled(task, 1, 0)
    (true,), (seen,) = (rollout(task, env, expert(task), [0], truth=truth) for truth in (True, False))
    np.testing.assert_allclose(true.signals["position"] + 9.0, seen.signals["position"], atol=1e-5)
    np.testing.assert_array_equal(true.commands["velocity"], seen.commands["velocity"])
