"""Evaluation of manipulation policies: the same episodes for each policy, grades, film and plot."""

import json

import numpy as np
import pytest

from deploy.drivers.simulated import Simulated
from deploy.loop import run
from policies.evaluate import evaluate
from policies.models.chunking import ChunkPolicy, NoiseTable
from policies.models.export import export
from policies.runner import plots
from policies.runner.plots import beside
from policies.runner.report import mosaic
from tests.policies.models.test_chunking import base, steering
from tests.policies.toy_reach import ToyReach


@pytest.fixture
def policy(tmp_path):
    return export(ChunkPolicy.from_task(ToyReach(), base(), steering(6), 3), tmp_path / "policy.onnx")


def test_grades_do_not_depend_on_how_many_work_side_by_side(policy):
    whole = evaluate(policy, task=ToyReach(), episodes=25, seed=4)
    alone = Simulated(ToyReach(), 1, seed=4, first=17)
    run(policy, alone)
    assert whole.episodes == 25 and whole.engine == "its own physics"
    flight = alone.flight()
    assert flight["position"].shape[1:] == (1, 2) and len(flight["success"]) <= 24
    again = evaluate(policy, task=ToyReach(), episodes=25, seed=4)
    assert again.json() | {"seconds": 0} == whole.json() | {"seconds": 0}
    assert evaluate(policy, task=ToyReach(), episodes=25, seed=5).score["distance"] != whole.score["distance"]


def test_a_flight_is_over_when_every_scene_is_decided(tmp_path):
    class Easy(ToyReach):
        pass

    task = Easy()
    task.config.radius = 3.0
    policy = export(ChunkPolicy.from_task(task, base(), NoiseTable.none(6), 3), tmp_path / "policy.onnx")
    report = evaluate(policy, task=task, episodes=3)
    assert report.success == 1.0 and len(report.flight["success"]) == 1


def test_conditions_of_quadrotors_are_refused(policy):
    from sim.conditions import Conditions

    with pytest.raises(ValueError, match="toy_reach brings its own physics; it has no delay"):
        evaluate(policy, task=ToyReach(), episodes=2, conditions=Conditions(delay=0.01))


def test_film_and_plot(policy, tmp_path):
    report = evaluate(policy, task=ToyReach(), episodes=6, filmed=4)
    assert report.pictures[0].shape == (4, 240, 240, 3)
    before = [np.full((4, 240, 240, 3), 9, np.uint8)] * 2
    pairs = beside(before, report.pictures)
    assert len(pairs) == len(report.pictures) and [int(p.max()) for p in pairs[-1]] == [9, 9, 0, 1]
    assert mosaic(pairs[0], 2).shape == (480, 480, 3)
    rows = [{"env_steps": 400 * k, "cpu_seconds": float(k), "success": 0.1 * k} for k in range(5)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [{"loss": 1.0}, *rows]))
    learned = plots.metrics(tmp_path)
    assert learned == rows
    made = plots.plot(report, str(tmp_path / "plot.png"), {"random noise": report}, learned)
    assert (tmp_path / "plot.png").stat().st_size > 10_000 and made.endswith("plot.png")
    assert "random noise" in plots.text(report, {"random noise": report})


def test_other_scores_are_drawn_as_they_were_while_training(policy, tmp_path):
    from matplotlib import image

    report = evaluate(policy, task=ToyReach(), episodes=6)
    (name, *_) = [name for name in report.score if name != "success"]
    told = [0.4, None, float("inf"), 0.2]
    rows = [{"env_steps": k, "cpu_seconds": 1.0, "success": 0.5, f"score_{name}": x} for k, x in enumerate(told)]
    plots.plot(report, str(tmp_path / "scores.png"), {"noise": report}, rows)
    plots.plot(report, str(tmp_path / "none.png"), {}, [row | {f"score_{name}": None} for row in rows])
    heights = [len(image.imread(tmp_path / file)) for file in ("none.png", "scores.png")]
    assert heights[1] > 1.8 * heights[0]
    alone = [{k: v for k, v in row.items() if k != "success"} for row in rows]  # of who is told no success on the way
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [{"cpu_seconds": 1.0}, *alone]))
    assert plots.metrics(tmp_path) == [row for row in alone if row[f"score_{name}"] is not None]
    plots.plot(report, str(tmp_path / "alone.png"), {}, plots.metrics(tmp_path))
    assert len(image.imread(tmp_path / "alone.png")) == heights[1]
    assert plots.curve(1)["marker"] and not plots.curve(100)["marker"]  # one point alone makes no line
