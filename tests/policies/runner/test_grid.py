"""A policy over its task's grid: the table and its verdict, the worst cell, and what the policy file says of it."""

import dataclasses
import json
import re

import numpy as np
import pytest

from deploy import cli
from deploy import run as fly
from deploy.drivers.simulated import Simulated
from deploy.drivers.tasks import task_for
from deploy.inspect import describe
from deploy.policy_file import PolicyFile
from deploy.safety.grid import summary, trust_warning
from policies import evaluate as command
from policies.evaluate import evaluate
from policies.models.export import update_evaluation
from policies.runner import grid as grids
from policies.runner.config import compose
from policies.train import train
from sim.conditions import Grid
from sim.robots import robot
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover

SMALL = Grid((0.0, 0.02), (0.4, 1.0), ((1.0, 1.0), (1.15, 0.85)))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("grid") / "p.onnx", linear_hover(make("quad_hover", **CALM)))


@pytest.fixture
def small(monkeypatch):
    """A grid of eight cells, for the commands."""
    monkeypatch.setattr("sim.tasks.quad_hover.LATENCIES", SMALL.delay)
    monkeypatch.setattr("sim.tasks.quad_hover.ROTOR_LAGS", SMALL.rotor_lag)
    monkeypatch.setattr("sim.tasks.quad_hover.MASS_AND_THRUST", SMALL.mass_and_thrust)


def test_a_grid_is_every_combination():
    cells = SMALL.cells()
    assert len(cells) == len({tuple(cell.items()) for cell in cells}) == 8
    assert cells[0] == {"delay": 0.0, "rotor_lag": 0.4, "mass": 1.0, "thrust": 1.0}
    assert cells[-1] == {"delay": 0.02, "rotor_lag": 1.0, "mass": 1.15, "thrust": 0.85}


def test_the_grid_of_quad_hover_holds_what_the_crazyflie_shows():
    declared = make("quad_hover").grid
    assert declared.delay == (0.0, 0.01, 0.02)
    assert min(declared.rotor_lag) == 0.4 and max(declared.rotor_lag) == 1.6
    l2f, tools = robot("crazyflie"), robot("crazyflie_decks")
    assert tools.rise_time / l2f.rise_time < 0.4 and tools.fall_time / l2f.fall_time > 1.6
    assert {(0.85, 1.15), (1.15, 0.85)} <= set(declared.mass_and_thrust)


def test_cells_that_no_policy_could_fly_are_left_out():
    pairs = {name: make("quad_hover", robot=name).grid.mass_and_thrust for name in ("crazyflie", "stampfly")}
    assert set(pairs["crazyflie"]) - set(pairs["stampfly"]) == {(1.15, 0.85)}  # thrust to weight 1.346


def test_random_vehicles_differ_already():
    assert {cell["rotor_lag"] for cell in make("quad_any").grid.cells()} == {1.0}
    assert make("quad_any", robot="x500").grid == make("quad_hover").grid == make("quad_track").grid


def test_the_worst_cell_is_found_and_flown_again(policy, monkeypatch):
    task = make("quad_hover", **CALM)
    task.grid = SMALL
    monkeypatch.setattr(grids, "FINALISTS", 3)
    monkeypatch.setattr(grids, "EPISODES", 40)
    found = grids.worst(policy, task)
    cells = grids.fly_cells(policy, task, SMALL.cells(), 40, "flight", 1)["success"].mean(axis=1)
    assert found["worst"]["success"] == cells.min() < 0.5  # a linear controller knows no latency
    assert (found["worst"]["episodes"], found["cells"], found["finalists"]) == (40, 8, 3)
    low, high = found["worst"]["success_ci"]
    assert low <= found["worst"]["success"] <= high


def test_batches_do_not_change_the_cells(policy, monkeypatch):
    task = make("quad_hover", **CALM)
    together = grids.fly_cells(policy, task, SMALL.cells(), 4, "flight", 0)
    monkeypatch.setattr(grids, "TOGETHER", 12)
    apart = grids.fly_cells(policy, task, SMALL.cells(), 4, "flight", 0)
    np.testing.assert_array_equal(together["position_error"], apart["position_error"])


def cell(success, **changed):
    at = {"delay": 0.02, "rotor_lag": 0.4, "mass": 1.15, "thrust": 0.85, "disturbed": False}
    return {**at, **changed, "success": success, "episodes": 200}


def test_the_verdict_names_the_worst_cell():
    assert grids.verdict(cell(0.962)) == (
        "holds: worst cell 96.2 % at delay 20 ms, rotor lag 0.4, mass 1.15, thrust 0.85"
    )
    assert grids.verdict(cell(0.5, disturbed=True)).startswith("does not hold: worst cell 50.0 % at delay 20 ms")
    assert grids.verdict(cell(0.962), 0.97).startswith("does not hold")


def test_the_table_marks_the_worst_cell_and_colours_keep_its_columns():
    cells = [cell(s, delay=d, rotor_lag=lag) for s, d, lag in ((1.0, 0.0, 0.4), (0.97, 0.0, 1.6), (0.5, 0.02, 1.6))]
    plain, coloured = grids.text(cells), grids.text(cells, coloured=True)
    assert plain.count("> 50") == 1 and "\x1b" not in plain
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert f"{grids.RED}> 50{grids.PLAIN}" in coloured and f"{grids.YELLOW}97{grids.PLAIN}" in coloured
    assert plain.splitlines()[-1].startswith("does not hold")


def evaluated(policy, *words):
    return cli.call(command.main, [f"policy={policy.path}", "grid=true", "episodes=3", *words])


def test_the_command_writes_a_table_and_a_verdict(policy, small, tmp_path, capsys):
    path = tmp_path / "grid.json"
    assert evaluated(policy, f"json={path}") == 0
    shown = capsys.readouterr().out
    assert "success in %, with sensor noise and a random force" in shown
    assert shown.splitlines()[-1].startswith("does not hold: worst cell ")
    content = json.loads(path.read_text())
    assert len(content["cells"]) == 16
    assert content["worst"] == min(c["success"] for c in content["cells"])


def test_only_what_is_required_fails(policy, small, capsys):
    with pytest.raises(SystemExit) as left:
        evaluated(policy, "require=95")
    assert left.value.code == 1
    assert "does not hold" in capsys.readouterr().out
    assert evaluated(policy, "require=0") == 0


def test_a_task_without_a_grid_says_so(policy, monkeypatch, capsys):
    bare = make("quad_hover")
    bare.grid = None
    monkeypatch.setattr("policies.evaluate.task_for", lambda *_: bare)
    assert evaluated(policy) == 2
    assert "the task 'quad_hover' declares no grid of conditions" in capsys.readouterr().err


def test_the_grid_can_be_recorded_in_the_file(small, tmp_path, capsys):
    policy = exported(tmp_path / "p.onnx", linear_hover(make("quad_hover", **CALM)))
    assert "never measured" in summary(policy)
    assert "nobody measured how" in trust_warning(policy)
    assert evaluated(policy, "record=true") == 0
    again = PolicyFile.load(policy.path)
    assert again.verify() <= 1.0
    assert again.metadata["evaluation"]["grid"]["worst"]["success"] < 0.95
    assert "succeeds in only" in trust_warning(again)
    assert summary(again) in describe(again)


def with_worst(tmp_path, evaluation):
    policy = exported(tmp_path / "p.onnx", linear_hover())
    return update_evaluation(policy.path, evaluation)


def test_a_robot_is_warned_below_95_percent_only(tmp_path):
    good, bad = (with_worst(tmp_path, {"grid": {"worst": cell(s)}}) for s in (0.95, 0.94))
    assert trust_warning(good) == ""
    assert "only 94.0 % of its flights" in trust_warning(bad)
    assert "delay 20 ms, rotor lag 0.4, mass 1.15, thrust 0.85" in trust_warning(bad)
    assert trust_warning(with_worst(tmp_path, {"grid": None})) == ""  # of a task without a grid
    assert "95.0 % of 200 flights" in summary(good)


@pytest.mark.parametrize(
    "evaluation",
    [
        {"grid": {"worst": cell("99")}},
        {"grid": {"worst": cell(True)}},
        {"grid": {"worst": cell(1e300)}},
        {"grid": {"worst": {"success": 1.0}}},
        {"grid": {"worst": [1.0]}},
        {"grid": "\x1b[2J"},
        {"grid": 1.0},
        {},
    ],
)
def test_a_strangers_numbers_are_no_numbers(tmp_path, evaluation):
    policy = with_worst(tmp_path, evaluation)
    assert "never measured" in summary(policy)
    assert "nobody measured" in trust_warning(policy)


def test_every_training_report_carries_the_worst_cell(small, tmp_path, monkeypatch, capsys):
    for picture in ("plot", "video"):
        monkeypatch.setattr(f"policies.runner.report.{picture}", lambda report, path: path)
    words = [
        "quality=quick",
        "algorithm.updates=2",
        "evaluation_episodes=4",
        "task.episode_s=1.5",
        f"out={tmp_path / 'run'}",
    ]
    made = train(compose(words))
    shown = capsys.readouterr().out
    policy = PolicyFile.load(made)
    worst = policy.metadata["evaluation"]["grid"]["worst"]
    assert json.loads((made.parent / "report.json").read_text())["grid"]["worst"] == worst
    assert worst["episodes"] == grids.EPISODES
    assert re.search(r"^worst cell +0\.0", shown, re.M) and "worst cell of the task's grid: delay" in shown
    assert summary(policy) in describe(policy)
    timing = json.loads((made.parent / "timing.json").read_text())
    assert re.search(
        r"time: .* s evaluation \+ .* s grid \+ .* s plot \+ .* s video = .* s of report; .* in all", shown
    )
    after = sum(timing[name] for name in ("evaluation", "grid", "plot", "video"))
    assert timing["all"] == pytest.approx(timing["total"] + after, abs=0.5)
    assert evaluate(policy, episodes=4).success == policy.metadata["evaluation"]["success"]


@pytest.mark.long
def test_the_default_recipe_holds_its_grid(tmp_path):
    made = train(compose(["seed=7", "report=false", f"out={tmp_path / 'run'}"]))
    policy = PolicyFile.load(made)
    task = task_for(policy)
    flown = grids.fly_cells(policy, task, task.grid.cells(), 100, "flight", 0)["success"]
    assert flown.mean(axis=1).min() >= 0.9
    assert evaluate(policy, episodes=400).success >= 0.99


def test_the_recipes_of_quad_hover_say_what_they_cover():
    default, quick, robust = (compose(words) for words in ([], ["quality=quick"], ["robust=true"]))
    assert (default.task_config.variation, default.algorithm_config.hidden) == ("wide", [32, 32])
    assert (quick.task_config.variation, quick.algorithm_config.updates, quick.algorithm_config.hidden) == (
        "narrow", 1000, [16, 16],
    )  # fmt: skip
    drawn = {name: {v.name: v for v in make("quad_hover", **dataclasses.asdict(s.task_config)).vary}
             for name, s in (("default", default), ("quick", quick), ("robust", robust))}  # fmt: skip
    for name, low, high in (("mass", 0.85, 1.15), ("thrust_scale", 0.85, 1.15), ("rotor_lag", 0.4, 1.6)):
        assert drawn["default"][name].low < low and high < drawn["default"][name].high
        assert drawn["robust"][name].low <= drawn["default"][name].low
        assert drawn["default"][name].high <= drawn["robust"][name].high
        assert drawn["quick"][name].ends == 0.0 < drawn["default"][name].ends
    assert "force" in drawn["robust"]
    for task in ("quad_track", "quad_any"):
        assert compose([f"task={task}"]).task_config.variation == "narrow"


class Robot(Simulated):
    """A driver that is no simulator by name."""


def test_a_flight_on_a_robot_begins_with_the_warning(tmp_path, capsys):
    policy = with_worst(tmp_path, {"grid": {"worst": cell(0.42)}})
    words = [f"policy={policy.path}", "seconds=0.1"]
    assert cli.call(fly.main, [*words, f"driver={__name__}:Robot"]) == 0
    assert "warning: quad_hover succeeds in only 42.0 % of its flights" in capsys.readouterr().err
    assert cli.call(fly.main, [*words, "driver=simulated"]) == 0
    assert capsys.readouterr().err == ""
