"""The league of a run: who plays, that it is the same again, table and picture; and that a training leaves them."""

import json
from pathlib import Path

import numpy as np
import pytest

from policies.models.controller import FeaturePolicy
from policies.models.export import export
from policies.models.networks.feed_forward import Mlp
from policies.reports import league
from policies.runner import plots
from policies.runner.config import compose
from policies.train import train
from sim.env import with_engine
from sim.spec import size
from sim.tasks import make

FEW = [
    *("task.steps=40", "algorithm.total_steps=12288", "algorithm.num_envs=64", "algorithm.rollout_steps=16"),
    *("algorithm.league_every=4", "algorithm.hidden=[16,16]", "algorithm.critic_hidden=[16]"),
    *("algorithm.evaluation_episodes=4", "evaluation_episodes=4"),
]


def learner(seed: int, task) -> FeaturePolicy:
    rng = np.random.default_rng(seed)
    weight = rng.normal(0.0, 0.5, (size(task.commands), size(task.policy)))
    return FeaturePolicy.from_task(task, Mlp([(weight, np.zeros(len(weight)))]))


def test_everybody_plays_everybody(tmp_path, monkeypatch):
    monkeypatch.setattr(league, "GAMES", 4)
    task = make("soccer_1v1", steps=60)
    final = export(learner(0, task), tmp_path / "policy.onnx")
    snapshots = {0: learner(1, task), 2_000_000: learner(2, task), 1500: learner(3, task)}
    found = league.played(task, final, snapshots, 3_000_000, 7)
    learned = ("after 0 steps", "after 1.5 k steps", "after 2 M steps", "this policy")
    assert found.names == (*learned, "still", "slow", "slower", "chaser")
    assert found.steps == (0, 1500, 2_000_000, 3_000_000, None, None, None, None)
    np.testing.assert_array_equal(found.won + found.won.T, 4.0 * (1.0 - np.eye(8)))
    np.testing.assert_array_equal(found.won, league.played(task, final, snapshots, 3_000_000, 7).won)
    assert found.elo[-1] == 1000.0 and found.points.mean() == pytest.approx(0.5)
    rows = league.text(found).splitlines()[2:]
    elo = [float(row.split()[-2]) for row in rows]
    assert elo == sorted(elo, reverse=True) and len(rows) == 8
    told = json.loads(json.dumps(found.json()))
    assert told["players"][3]["name"] == "this policy" and told["players"][3]["env_steps"] == 3_000_000
    assert Path(plots.league(found, str(tmp_path / "league.png"))).stat().st_size > 10_000


def test_snapshots_are_chosen_evenly():
    kept = league._chosen(dict.fromkeys(range(0, 100, 5), None), 6)
    assert [*kept] == [0, 20, 40, 55, 75, 95]
    assert [*league._chosen({3: None}, 6)] == [3] and len(league._chosen(dict.fromkeys(range(6), None), 6)) == 6


def test_robots_that_see_play_those_that_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(league, "GAMES", 2)
    task = make("soccer_vision_1v1", perception="detector", steps=20)
    told = task.teacher_task()
    final = export(learner(0, task), tmp_path / "policy.onnx")
    found = league.played(task, final, {0: learner(1, told), 10: learner(2, task)}, 20, 0)
    assert found.task == "soccer_vision_1v1" and len(found.names) == 7


def test_a_student_and_its_teacher_are_in_the_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(league, "GAMES", 2)
    teacher = export(learner(3, make("soccer_1v1")), tmp_path / "teacher.onnx").path
    small = [
        *("task.steps=20", "task.perception=detector", f"algorithm.teacher={teacher}", "algorithm.total_steps=1024"),
        *("algorithm.practice_steps=1024", "algorithm.gaze_steps=0", "algorithm.num_envs=16"),
        *("algorithm.rollout_steps=16", "algorithm.minibatches=2", "algorithm.hidden=[16,16]"),
        *("algorithm.critic_hidden=[16]", "algorithm.snapshots=2", "algorithm.evaluate_every=0"),
        "evaluation_episodes=4",
    ]
    train(compose(["task=soccer_vision_1v1", *small, f"out={tmp_path / 'run'}"]))
    assert "in the league" in capsys.readouterr().out
    told = json.loads((tmp_path / "run" / "league.json").read_text())
    assert [(p["name"], p["env_steps"]) for p in told["players"][:4]] == [
        *(("after 256 steps", 256), ("after 1.02 k steps", 1024)),
        *(("this policy", 2048), ("teacher", None)),
    ]
    assert (tmp_path / "run" / "league.png").stat().st_size > 10_000


def test_fewer_games_where_pictures_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(league, "SEEN", 2)
    task = make("soccer_vision_1v1", steps=3)
    final = export(learner(0, task.teacher_task()), tmp_path / "policy.onnx")
    told = league.played(task, final, {0: learner(1, task.teacher_task())}, 20, 0)
    assert told.games == 2


def test_the_same_engine_carries_it_out():
    task = with_engine(make("soccer_1v1"), "mujoco")
    assert league.with_both_sides(task).engine == "mujoco"


def test_a_training_in_a_league_leaves_its_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(league, "GAMES", 2)
    train(compose(["task=soccer_1v1", *FEW, f"out={tmp_path / 'run'}"]))
    said = capsys.readouterr().out
    assert "in the league" in said and "s league" in said
    told = json.loads((tmp_path / "run" / "league.json").read_text())
    assert [player["env_steps"] for player in told["players"][:4]] == [0, 4096, 8192, 12288]
    assert (tmp_path / "run" / "league.png").stat().st_size > 10_000
    assert (tmp_path / "run" / "video.mp4").exists() and "league" in json.loads(
        (tmp_path / "run/timing.json").read_text()
    )
