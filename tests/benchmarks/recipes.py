"""What the recipes of quad_any give, from nothing: seconds, and success with vehicles that no training saw.

    python tests/benchmarks/recipes.py [--quick] [--only robust ...]

2 000 vehicles, as published and with agility log-uniform, our flight engine with RK4 at 5 ms, within 0.3 m of a resting
target for the whole last second of 5 s. Disturbances as in foundation.py.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import commands
import report
from foundation import DISTURBED, SAMPLINGS

from deploy.policy_file import PolicyFile
from policies.evaluate import evaluate
from sim import tasks
from sim.conditions import Conditions

VEHICLES = 2000
SEED = 4242  # of vehicles and starts
CASES = {"default": (5, ""), "robust": (3, "robust=true"), "distilled": (3, "algorithm=distill")}
SMALL = {
    "default": ["algorithm.updates=10"],
    "robust": ["algorithm.updates=10"],
    "distilled": ["algorithm.teachers=1", "algorithm.teacher_budget=2", "algorithm.accept=0", "algorithm.rounds=1"],
}


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per recipe: what each seed cost, and per test its success, the share within 0.1 m and the median error in m."""
    rows: report.Rows = {}
    for name in cases:
        seeds, arguments = CASES[name]
        rows[name] = {"runs": []}
        for seed in range(1 if quick else seeds):
            with tempfile.TemporaryDirectory() as folder:
                wanted = ["task=quad_any", f"seed={seed}", *arguments.split(), *(SMALL[name] if quick else [])]
                run: dict[str, Any] = commands.train(Path(folder), *wanted)
                run["tests"] = grade(PolicyFile.load(str(Path(folder) / "policy.onnx")), quick)
            rows[name]["runs"].append(run)
            print(f"{name}, seed {seed}: {run}", file=sys.stderr, flush=True)
    return rows


def grade(policy: PolicyFile, quick: bool) -> dict[str, list[float]]:
    """Sampling and test -> success, share within 0.1 m, median error (m)."""
    graded = {}
    for sampling, robot in SAMPLINGS.items():
        for test, (conditions, settings) in DISTURBED.items():
            task = tasks.make("quad_any", path="hold", robot=robot, **settings)
            flown = evaluate(
                policy,
                task=task,
                engine="foundation:Fine",
                episodes=4 if quick else VEHICLES,
                seed=SEED,
                conditions=Conditions(**conditions),
            )
            score = task.score(flown.flight)
            error = statistics.median(score["position_error"].tolist())
            graded[f"{sampling}: {test}"] = [flown.success, float(score["precise"].mean()), error]
    return graded


def markdown(rows: report.Rows) -> str:
    """Median and worst seed of each recipe."""
    lines = []
    for what, key in (("s to the file", "seconds"), ("s of training", "training_s"), ("CPU-s", "cpu_s")):
        lines.append([what, *(_both([run[key] for run in row["runs"]], max, ".1f") for row in rows.values())])
    for sampling in SAMPLINGS:
        for test in DISTURBED:
            name = f"{sampling}: {test}"
            cells = [_both([100 * run["tests"][name][0] for run in row["runs"]], min, ".1f") for row in rows.values()]
            lines.append([name, *cells])
        for what, index, worst in (("within 0.1 m", 1, min), ("median error, cm", 2, max)):
            name = f"{sampling}: no delay"
            cells = [
                _both([100 * run["tests"][name][index] for run in row["runs"]], worst, ".1f") for row in rows.values()
            ]
            lines.append([f"{sampling}, no delay: {what}", *cells])
        wind = f"{sampling}: wind, 0.1 g"
        cells = [_both([100 * run["tests"][wind][2] for run in row["runs"]], max, ".1f") for row in rows.values()]
        lines.append([f"{wind}: median error, cm", *cells])
    heads = [f"{name}, {len(row['runs'])} seeds" for name, row in rows.items()]
    return report.table(["success in %, median seed (worst)", *heads], lines)


def _both(values: list[float], worst: Any, form: str) -> str:
    return f"{statistics.median(values):{form}} ({worst(values):{form}})"


if __name__ == "__main__":
    report.main("recipes", CASES, measure, apart=True)
