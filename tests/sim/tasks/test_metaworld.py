"""Meta-World through our protocol: its own numbers, its own success, episodes decided by seed and number alone."""

from __future__ import annotations

import pickle

import metaworld
import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS, MT10_V3

from policies.collect import demonstrate
from sim.env import Step
from sim.tasks import make, task_class
from sim.tasks.external.metaworld import NEAR, names
from tests.sim.scenes import check_decided

TASKS = sorted(ALL_V3_ENVIRONMENTS)
STEPS = 12


def noise(task, num: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {s.name: rng.uniform(s.low, s.high, (num, *s.shape)).astype(np.float32) for s in task.commands}
        for _ in range(STEPS)
    ]


def benchmark(name: str, drawn: np.ndarray):
    """Their environment, set as its manual says to the object and goal that were drawn."""
    made = ALL_V3_ENVIRONMENTS[name]()
    data = {"env_cls": type(made), "rand_vec": drawn, "partially_observable": False}
    made.set_task(metaworld.Task(env_name=name, data=pickle.dumps(data)))
    return made


@pytest.mark.thinned(10)
@pytest.mark.parametrize("name", TASKS)
def test_signals_reward_and_success_are_the_benchmarks(name: str):
    task = make(f"metaworld/{name}")
    env = task.open(1, seed=3)
    env.reset([0], [4])
    theirs = benchmark(name, env.environments[0]._last_rand_vec)
    seen, _ = theirs.reset()
    for _ in range(STEPS):
        signals = env.observe()
        expected = np.concatenate([seen[:18], seen[36:]]).astype(np.float32)
        ours = np.concatenate([signals[s.name][0] for s in task.policy[:-1]])
        np.testing.assert_array_equal(ours, expected[: len(ours)])
        np.testing.assert_array_equal(expected[len(ours) : 18], 0.0)  # nothing of theirs is left out
        np.testing.assert_array_equal(signals["goal_position"][0], expected[-3:])
        command = task.expert(signals)
        action = np.concatenate([command["hand_velocity"][0] / np.float32(0.8), command["gripper_effort"][0]])
        seen, reward, _, _, info = theirs.step(action)
        outcome = env.step(command)
        assert outcome.reward[0] == np.float32(reward)
        assert outcome.success[0] == (info["success"] == 1.0)
        assert not outcome.terminated[0]


@pytest.mark.parametrize("name", NEAR)
def test_what_is_reached_is_the_benchmarks_success(name: str):
    task = make(f"metaworld/{name}")
    env = task.open(1, seed=3)
    env.reset([0], [5])
    said = []
    for _ in range(task.episode_steps):
        success = env.step(task.expert(env.observe())).success
        seen = env.observe()
        np.testing.assert_array_equal(task.reached(seen[task.achieved], seen[task.goal]), success)
        said.append(bool(success[0]))
    assert {*said} == {True, False}


@pytest.mark.thinned(10)
@pytest.mark.parametrize("name", TASKS)
def test_an_episode_is_decided_by_seed_and_number(name: str):
    task = make(f"metaworld/{name}")
    first = check_decided(task, noise(task, 3))
    assert all(np.isfinite(value).all() for value in first[-1].values())


@pytest.mark.parametrize("name", ["pick-place-v3", "reach-v3", "push-v3", "window-open-v3"])
def test_the_goal_is_visible_and_new_in_every_episode(name: str):
    env = make(f"metaworld/{name}").open(4, seed=0)
    env.reset(range(4), range(4))
    goals = env.observe()["goal_position"]
    targets = np.stack([e._target_pos for e in env.environments]).astype(np.float32)
    np.testing.assert_array_equal(goals, targets)
    assert len(np.unique(goals, axis=0)) == 4
    other = make(f"metaworld/{name}").open(4, seed=1)
    other.reset(range(4), range(4))
    assert (other.observe()["goal_position"] != goals).any(axis=1).all()


@pytest.mark.parametrize("name", ["reach-v3", "button-press-v3", "drawer-close-v3", "pick-place-v3", "window-open-v3"])
def test_the_expert_succeeds(name: str):
    task = make(f"metaworld/{name}", steps=150)
    assert all(episode.succeeded for episode in demonstrate(task, 4, seed=0))


def test_a_state_that_blew_up_is_lost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a file about it
    task = make("metaworld/reach-v3")
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 1])
    env.environments[1].data.qvel[:] = 1e12

    def hold() -> Step:
        return env.step({s.name: np.zeros((2, *s.shape), np.float32) for s in task.commands})

    assert hold().terminated.tolist() == [False, True]
    env.reset([1], [2])
    assert hold().terminated.tolist() == [False, False]


def test_beyond_the_benchmarks_longest_episode_nothing_happens():
    task = make("metaworld/reach-v3")
    env = task.open(1, seed=0)
    env.reset([0], [0])
    env.environments[0].curr_path_length = 500
    before = env.observe()
    command = {s.name: np.full((1, *s.shape), s.high, np.float32) for s in task.commands}
    assert not env.step(command).success[0]
    assert all((value == before[name]).all() for name, value in env.observe().items())


def test_a_collection_goes_through_its_tasks():
    many = make("metaworld/MT10", steps=150)
    assert [m.environment for m in many.members] == list(MT10_V3)
    env = many.open(2, seed=1)
    env.reset([0, 1], [13, 5])
    env.reset([1], [23])  # the same task again, in environments that were used before
    env.reset([0], [4])
    env.reset([0], [13])
    command = {n: np.repeat(v, 2, axis=0) for n, v in noise(many, 1)[0].items()}
    for row, episode in ((0, 13), (1, 23)):
        own = many.members[3].open(1, seed=1)
        own.reset([0], [episode])
        ours, alone = env.observe(), own.observe()
        assert ours["task"][row].tolist() == np.eye(10)[3].tolist()
        for name, value in alone.items():
            np.testing.assert_array_equal(ours[name][row], value[0])
    reward = env.step(command).reward[1]
    assert reward == own.step({n: v[1:] for n, v in command.items()}).reward[0]


def test_the_experts_of_a_collection_succeed():
    assert np.mean([e.succeeded for e in demonstrate(make("metaworld/MT10", steps=150), 10, seed=0)]) >= 0.9


def test_mt50_is_all_tasks():
    assert names("MT50") == tuple(ALL_V3_ENVIRONMENTS)


def test_a_wrong_name_gets_the_nearest_one():
    with pytest.raises(ValueError, match=r"unknown task 'metaworld/pick-plac-v3' \(did you mean 'pick-place-v3'\?\)$"):
        task_class("metaworld/pick-plac-v3")
    with pytest.raises(ValueError, match="unknown task 'metaworld/what'; choices: .*MT50.* reach-v3"):
        task_class("metaworld/what")


def test_steps_stay_within_the_benchmarks():
    with pytest.raises(ValueError, match="between 1 and 500, the benchmark's longest, got 501"):
        make("metaworld/reach-v3", steps=501)
