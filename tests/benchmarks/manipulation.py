"""From a mediocre expert's demonstrations to a steered policy, from nothing: success before and after, seconds of CPU.

    python tests/benchmarks/manipulation.py [--quick] [--only pick-place ...]

Each seed demonstrates, clones and steers on one thread with its fixed budget of environment steps; then the policy file
does 500 unseen episodes. Where DSRL steers, its baselines do the first 200 of them; the other learners begin with the
same demonstrations. Success is the benchmark's own, at any step.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import commands
import report

from policies.runner import plots

EPISODES, BASELINES, POINTS = 500, 200, 40
OTHERS = "task=metaworld/pick-place-v3 algorithm.base.goal_jitter=0.3"
LONGER = "preset=dsrl algorithm.base.updates=6000"  # twice the cloning
PICTURES = f"task=arm_pick_place task.cameras=[wrist_camera] {LONGER}"
CASES = {
    "pick-place": (5, "task=metaworld/pick-place-v3 preset=dsrl"),
    "pick-place, 19 000 steps": (5, f"task=metaworld/pick-place-v3 {LONGER} algorithm.total_steps=19000"),
    "FetchPickAndPlace": (3, "task=gymnasium/FetchPickAndPlace-v4 preset=dsrl"),
    "AdroitHandDoorSparse": (3, "task=gymnasium/AdroitHandDoorSparse-v1 preset=dsrl"),
    "arm_pick_place": (3, "task=arm_pick_place preset=dsrl"),
    "arm_pick_place, wrist camera": (3, f"{PICTURES} algorithm.base.episodes=150 algorithm.base.corruption=0.7"),
    **{f"pick-place, {name}": (3, f"{OTHERS} algorithm={name}") for name in ("dsrl", "residual", "expo")},
    "pick-place, rlpd": (3, "task=metaworld/pick-place-v3 algorithm=rlpd"),
    "pick-place, wsrl": (3, "task=metaworld/pick-place-v3 preset=wsrl"),
}
SMALL = ["base.episodes=8", "base.corruption=0.2", "total_steps=800", "warmup_episodes=1", "head_start=4"]
CLONE = {"rlpd": [], "wsrl": ["offline_updates=20"]}  # the others clone


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per case: what each seed cost, and success by policy on the same episodes, with 95 % intervals."""
    rows: report.Rows = {}
    for name in cases:
        seeds, arguments = CASES[name]
        rows[name] = {"runs": []}
        for seed in range(1 if quick else seeds):
            with tempfile.TemporaryDirectory() as parent:
                folder, small = Path(parent) / "run", shortened(name) if quick else []
                wanted = [f"seed={seed}", *arguments.split(), *small]
                run: dict[str, Any] = commands.train(folder, *wanted, OMP_NUM_THREADS="1")
                run["curve"] = curve(folder)
                run["success"] = graded(folder, quick, baselines="preset=dsrl" in arguments)
                rows[name]["runs"].append(run)
            print(f"{name}, seed {seed}: {run}", file=sys.stderr, flush=True)
    return rows


def curve(folder: Path) -> list[str]:
    """Environment steps, seconds of CPU and success of the last 100 training episodes: at most `POINTS` moments."""
    rows = plots.metrics(folder)
    told = [f"{row['env_steps']:.0f} {row['cpu_seconds']:.1f} {row['success']:.3f}" for row in rows]
    return [told[k * (len(told) - 1) // (POINTS - 1)] for k in range(POINTS)] if len(told) > POINTS else told


def shortened(name: str) -> list[str]:
    """What makes a case small."""
    own = CLONE.get(name.rpartition(", ")[2], ["base.updates=20"])
    return [f"algorithm.{setting}" for setting in SMALL + own]


def graded(
    folder: Path, quick: bool, baselines: bool, episodes: int = EPISODES, others: int = BASELINES
) -> dict[str, list[float]]:
    """Success of the policy and, if wanted, of its baselines in a finished run, each with its interval."""
    policies = {"improved": commands.evaluate(folder, f"episodes={4 if quick else episodes}")}
    if baselines:
        again = [f"resume={folder}", "report=true", f"evaluation_episodes={4 if quick else others}"]
        commands.run([sys.executable, "-m", "policies.train", *again], OMP_NUM_THREADS="1")
        policies |= json.loads((folder / "report.json").read_text())["baselines"]
    return {name: [one["success"], *one["success_ci"]] for name, one in policies.items()}


def markdown(rows: report.Rows) -> str:
    """Median and worst seed of each case."""
    names = list(dict.fromkeys(name for row in rows.values() for run in row["runs"] for name in run["success"]))
    lines = [["seeds", *(str(len(row["runs"])) for row in rows.values())]]
    lines += [[f"{name}, %", *(_cell(row["runs"], name) for row in rows.values())] for name in names]
    for what, key in (("CPU-s from nothing to the file", "cpu_s"), ("memory, MB", "memory_mb")):
        values = [[run[key] for run in row["runs"]] for row in rows.values()]
        lines.append([what, *(f"{statistics.median(v):.0f} ({max(v):.0f})" for v in values)])
    return report.table(["median (worst seed)", *rows], lines)


def _cell(runs: list[dict[str, Any]], name: str) -> str:
    values = [100 * run["success"][name][0] for run in runs if name in run["success"]]
    return f"{statistics.median(values):.1f} ({min(values):.1f})" if values else ""


if __name__ == "__main__":
    report.main("manipulation", CASES, measure, apart=True)
