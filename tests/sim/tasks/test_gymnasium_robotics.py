"""Gymnasium-Robotics through our protocol: its own numbers in SI units, episodes decided by seed and number alone."""

from __future__ import annotations

import tempfile

import gymnasium
import numpy as np
import pytest

from policies.collect import demonstrate
from sim import spec
from sim.env import NoExpertError
from sim.tasks import make, task_class
from tests.sim.scenes import assert_same, check_decided, run

NAMES = [
    "FetchReach-v4",
    "FetchPickAndPlace-v4",
    "FetchPushDense-v4",
    "AdroitHandDoorSparse-v1",
    "AdroitHandHammer-v1",
    "AdroitHandPen-v1",
    "AdroitHandRelocateSparse-v1",
    "FrankaKitchen-v1",
    "PointMaze_UMaze-v3",
    "HandReach-v3",
    "HandManipulateBlock_ContinuousTouchSensors-v1",
]
GOALS = ["FetchReach-v4", "FetchPush-v4", "PointMaze_UMaze-v3", "HandReach-v3", "HandManipulateBlockRotateZ-v1"]
STEPS = 8
DT = 0.04  # s, Fetch's control step


def noise(task, num: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {s.name: rng.uniform(s.low, s.high, (num, *s.shape)).astype(np.float32) for s in task.commands}
        for _ in range(STEPS)
    ]


def hold(task, num: int) -> dict[str, np.ndarray]:
    return {s.name: np.zeros((num, *s.shape), np.float32) for s in task.commands}


def numbers(seen) -> np.ndarray:
    """Their observation, and the goal where it is one vector."""
    if not isinstance(seen, dict):
        return seen
    goal = seen["desired_goal"]
    return np.concatenate([seen["observation"], *([] if isinstance(goal, dict) else [goal])])


@pytest.mark.parametrize("name", NAMES)
def test_signals_reward_and_success_are_the_benchmarks(name: str, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # their mazes leave files behind
    task = make(f"gymnasium/{name}")
    env, theirs = task.open(1, seed=3), gymnasium.make(name, disable_env_checker=True)
    env.reset([0], [4])
    seen, _ = theirs.reset(seed=int(np.random.SeedSequence([3, 4]).generate_state(1, np.uint64)[0]))
    for command in noise(task, 1):
        ours = env.observe()
        assert list(ours) == [s.name for s in task.policy]
        per_step = task.kind.per_step  # velocities that they give in metres per control step
        back = {n: value[0] * (DT if n in per_step else 1.0) for n, value in ours.items()}
        np.testing.assert_allclose(spec.pack(task.policy, back), numbers(seen), rtol=1e-6, atol=1e-6)
        action = np.concatenate([command[s.name][0] / s.high for s in task.commands])
        action = np.pad(action, (0, theirs.action_space.shape[0] - len(action)))
        seen, reward, _, _, info = theirs.step(action.astype(theirs.action_space.dtype))
        outcome = env.step(command)
        assert outcome.reward[0] == pytest.approx(reward, rel=1e-4)
        if name != "FrankaKitchen-v1":
            assert outcome.success[0] == bool(info.get("is_success", info.get("success")))
        assert not outcome.terminated[0]


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_decided_by_seed_and_number(name: str):
    task = make(f"gymnasium/{name}")
    check_decided(task, noise(task, 3))


@pytest.mark.parametrize("name", GOALS)
def test_goals_can_be_relabelled_without_the_environment(name: str):
    task = make(f"gymnasium/{name}")
    env = task.open(1, seed=0)
    goals, achieved = [], []
    for episode in range(6):
        env.reset([0], [episode])
        goals.append(env.observe()[task.goal][0].astype(np.float64))
        achieved.append(env.observe()[task.achieved][0].astype(np.float64))
    goal = np.concatenate([goals, achieved, np.array(goals) + 0.001])
    reached = np.concatenate([achieved, achieved, goals])
    expected = [env.environments[0].compute_reward(a, g, {}) for a, g in zip(reached, goal, strict=True)]
    best = max(expected)
    np.testing.assert_array_equal(task.reached(reached, goal), np.array(expected) == best)
    assert task.reached(reached, goal)[6:12].all()  # what was achieved is reached
    assert not task.reached(reached, goal)[:6].all()


def test_a_task_without_goals_says_so():
    with pytest.raises(ValueError, match="has no goals to relabel"):
        make("gymnasium/AdroitHandPen-v1").reached(np.zeros((1, 3)), np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("FetchReach-v4", 10),
        ("FetchPush-v4", 20),
        ("FetchPickAndPlace-v4", 20),
        ("PointMaze_UMaze-v3", 10),
        ("PointMaze_Large_Diverse_GR-v3", 4),
        ("AdroitHandDoorSparse-v1", 8),
    ],
)
def test_the_expert_succeeds(name: str, count: int):
    succeeded = [episode.succeeded for episode in demonstrate(make(f"gymnasium/{name}"), count, seed=1)]
    assert np.mean(succeeded) >= 0.87


@pytest.mark.parametrize("name", ["FetchPush-v4", pytest.param("FetchPickAndPlace-v4", marks=pytest.mark.long)])
def test_the_corrupted_expert_is_mediocre(name: str):
    succeeded = [e.succeeded for e in demonstrate(make(f"gymnasium/{name}"), 40, seed=1, corruption=1.0)]
    assert 0.1 < np.mean(succeeded) < 0.6  # 20-45 %, give or take what 40 episodes can tell


def test_no_expert_is_an_error_with_a_name():
    task = make("gymnasium/FetchSlide-v4")
    with pytest.raises(NoExpertError, match="gymnasium/FetchSlide-v4 has no scripted expert"):
        task.expert({})


def test_the_kitchen_counts_its_tasks():
    task = make("gymnasium/FrankaKitchen-v1", tasks=["microwave", "slide cabinet"])
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 1])
    flight: dict[str, list[np.ndarray]] = {"success": [], "reward": []}
    for joint, position in ((22, -0.75), (19, 0.37)):  # the microwave's door and the cabinet's, at their goals
        env.environments[0].data.qpos[joint] = position
        outcome = env.step(hold(task, 2))
        flight["success"].append(outcome.success[:, None].astype(np.float32))
        flight["reward"].append(outcome.reward[:, None])
    scores = task.score({name: np.stack(values) for name, values in flight.items()})
    assert scores["tasks"].tolist() == [2.0, 0.0]
    assert scores["success"].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(scores["duration"], 2 / 12.5)


@pytest.mark.parametrize("name", ["FetchPush-v4", "PointMaze_UMaze-v3", "FrankaKitchen-v1", "AdroitHandDoor-v1"])
def test_a_state_that_blew_up_is_lost(name: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a file about it
    task = make(f"gymnasium/{name}")
    env = task.open(2, seed=0)
    env.reset([0, 1], [0, 1])
    env.environments[1].data.qpos[:] = np.nan
    assert env.step(hold(task, 2)).terminated.tolist() == [False, True]
    env.reset([1], [2])
    assert env.step(hold(task, 2)).terminated.tolist() == [False, False]


def test_mazes_leave_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make("gymnasium/PointMaze_UMaze-v3").open(2, seed=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["FetchReach-v4", "PointMaze_UMaze-v3", "HandReach-v3"])
def test_a_picture_shows_the_scene_and_changes_nothing(name: str):
    task = make(f"gymnasium/{name}")
    looked, blind = task.open(1, seed=0), task.open(1, seed=0)
    for env in (looked, blind):
        env.reset([0], [0])
        env.step(hold(task, 1))
    picture = looked.render(0, 48, 64)
    assert picture.shape == (48, 64, 3)
    assert picture.std() > 5.0
    assert_same(run(looked, noise(task, 1), row=0), run(blind, noise(task, 1), row=0))
    looked.reset([0], [1])
    looked.step(hold(task, 1))
    assert (looked.render(0, 48, 64) != picture).any()  # another goal


def test_a_wrong_name_gets_the_nearest_one():
    with pytest.raises(ValueError, match=r"unknown task 'gymnasium/FetchPush-v3' \(did you mean 'FetchPush-v4'\?\)$"):
        task_class("gymnasium/FetchPush-v3")
    with pytest.raises(
        ValueError, match="unknown task 'gymnasium/what'; choices: .*AdroitHandDoor-v1.* PointMaze_UMaze-v3"
    ):
        task_class("gymnasium/what")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("FetchPush-v4", {"steps": 51}, "between 1 and 50, the benchmark's longest, got 51"),
        ("FrankaKitchen-v1", {"steps": 281}, "between 1 and 280"),
        ("FrankaKitchen-v1", {"tasks": ["microwaves"]}, "tasks must be some of bottom burner.*got microwaves"),
        ("FrankaKitchen-v1", {"tasks": []}, "got none"),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make(f"gymnasium/{name}", **settings)
