"""Tasks trained by one command each, and their files graded on unseen episodes: success, and seconds of CPU.

    python tests/benchmarks/trained.py [--quick] [--only "arm_reach, ppo" ...]

What the documents tell of single commands, that no other benchmark measures. Robots with legs take the extra [legs].
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commands
import report

STEPS = "algorithm.total_steps=16000"
SMALL = "algorithm.total_steps=2048"
FORWARD = "seed=7 task.forward=[0.5,1.0] task.sideways=0 task.turn=0 task.standing=0"
NEARER = "seed=7 task.near=0.03 task.thrown=0.2"
THROWN = "task.near=0.1 task.thrown=0.5"


@dataclass(frozen=True)
class Case:
    """A training with so many seeds, and how its file is graded: words of `policies.evaluate`, on each of `engines`."""

    train: str
    graded: str = ""
    engines: tuple[str, ...] = ("",)  # "": the task's own
    seeds: int = 3
    episodes: int = 500


LEGS = ("mujoco", "mujoco_warp")
CASES = {
    "arm_reach, ppo": Case("task=arm_reach algorithm=ppo"),
    "arm_reach, advised_sac": Case(f"task=arm_reach algorithm=advised_sac {STEPS}"),
    "arm_reach, sac by torch": Case(f"task=arm_reach algorithm=sac algorithm.path=torch {STEPS}"),
    "quad_hover, dagger": Case("task=quad_hover algorithm=dagger"),
    **{f"{name}, ppo": Case(f"task={name}") for name in ("soccer_seek", "soccer_shoot", "soccer_keep")},
    "velocity, go1": Case("task=velocity task.robot=go1", FORWARD, LEGS, 1, 200),
    "walk, op3": Case(f"task=walk task.robot=op3 {THROWN}", NEARER, LEGS, 1, 200),
    "kick, op3": Case("task=kick task.robot=op3", "seed=7", LEGS, 1, 200),
}


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per case: what each seed cost, and success with its 95 % interval in each engine; or why there is none."""
    rows: report.Rows = {}
    for name in cases:
        case = CASES[name]
        rows[name] = {"runs": []}
        for seed in range(1 if quick else case.seeds):
            try:
                rows[name]["runs"].append(_run(case, seed, quick))
            except commands.FailedError as error:  # [legs] is not installed
                rows[name] = {"missing": str(error).splitlines()[-1], "runs": []}
                break
        print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr, flush=True)
    return rows


def _run(case: Case, seed: int, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        run: dict[str, Any] = commands.train(folder, *case.train.split(), f"seed={seed}", *([SMALL] if quick else []))
        run["success"] = {}
        for engine in case.engines:
            wanted = [*case.graded.split(), f"episodes={4 if quick else case.episodes}"]
            told = commands.evaluate(folder, *wanted, *([f"engine={engine}"] if engine else []))
            run["success"][engine] = [told["success"], *told["success_ci"]]
    return run


def markdown(rows: report.Rows) -> str:
    """A line per case and engine: median and worst seed."""
    lines = []
    for name, row in rows.items():
        case, runs = CASES[name], row["runs"]
        for engine in case.engines:
            told = [name, f"`{case.train}`", engine or "its own", str(len(runs))]
            if "missing" in row:
                lines.append([*told, "–", "–", row["missing"]])
                continue
            cost, share = [run["cpu_s"] for run in runs], [100 * run["success"][engine][0] for run in runs]
            medians = (
                f"{statistics.median(cost):.0f} ({max(cost):.0f})",
                f"{statistics.median(share):.1f} ({min(share):.1f})",
            )
            lines.append([*told, *medians, str(case.episodes)])
    head = ["median (worst seed)", "`python -m policies.train`", "engine", "seeds", "CPU-s", "success, %", "episodes"]
    return report.table(head, lines, 3)


if __name__ == "__main__":
    report.main("trained", CASES, measure, apart=True)
