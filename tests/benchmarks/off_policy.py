"""SAC and TD3 from dense rewards where steps cost much, beside Stable-Baselines3: success, and seconds of CPU.

    python tests/benchmarks/off_policy.py [--quick] [--only "arm_reach, sac" ...]

Everyone has the same tasks, rewards and episodes. Stable-Baselines3 learns for about the CPU time that ours takes, and
for five times that. The policy files do unseen episodes.
"""

import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import commands
import manipulation
import report

from policies.algorithms.sac import SacConfig
from sim.tasks import recipes_of, task_class

SEEDS, EPISODES = 3, 1000
BUDGETS = {"arm_reach": 15, "arm_push": 90, "metaworld/reach-v3": 45, "metaworld/push-v3": 45}  # CPU seconds
OURS = {"sac": [], "td3": [f"algorithm.{name}" for name in ("deterministic=true", "exploration=0.5", "smoothing=0.2")]}
THEIRS = {"Stable-Baselines3": 1, "Stable-Baselines3, 5 x": 5}  # times the budget
CASES = {f"{task}, {learner}": (task, learner) for task in BUDGETS for learner in (*OURS, *THEIRS)}
SHARED = ("linger", "success_reward", "gamma")  # settings of our learner that Stable-Baselines3 has, too


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per case: what each seed cost, and success with its 95 % interval."""
    rows: report.Rows = {name: {"runs": []} for name in cases}
    for name, seed in itertools.product(cases, range(1 if quick else SEEDS)):
        task, learner = CASES[name]
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "run"
            run = (ours if learner in OURS else theirs)(task, learner, seed, folder, quick)
            run["success"] = manipulation.graded(folder, quick, False, EPISODES)["improved"]
        rows[name]["runs"].append(run)
        print(f"{name}, seed {seed}: {run}", file=sys.stderr, flush=True)
    return rows


def ours(task: str, learner: str, seed: int, folder: Path, quick: bool) -> dict[str, Any]:
    """By the task's own recipe."""
    wanted = [f"task={task}", "algorithm=sac", f"seed={seed}", *OURS[learner]]
    small = ["algorithm.total_steps=4000"] if quick else []
    run: dict[str, Any] = commands.train(folder, *wanted, *small, OMP_NUM_THREADS="1")
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return run | {"steps": int(last["env_steps"])}


def theirs(task: str, learner: str, seed: int, folder: Path, quick: bool) -> dict[str, Any]:
    """By its defaults."""
    recipe, kind = recipes_of(task_class(task), "sac")["default"], SacConfig()
    settings = {name: recipe.get(f"algorithm.{name}", getattr(kind, name)) for name in SHARED}
    settings["task"] = {name[5:]: value for name, value in recipe.items() if name.startswith("task.")}
    settings["cpu_s"] = 8.0 if quick else BUDGETS[task] * THEIRS[learner]
    folder.mkdir()
    command = [sys.executable, str(report.FOLDER / "sb3_sac.py"), task, str(seed), str(folder), json.dumps(settings)]
    run, _ = commands.run(command, OMP_NUM_THREADS="1", PYTHONPATH=str(report.ROOT))
    return {**run, "steps": json.loads((folder / "steps.json").read_text())}


def markdown(rows: report.Rows) -> str:
    """Median and worst seed of each case."""
    lines = []
    for name, row in rows.items():
        runs = row["runs"]
        success, cost = ([100 * run["success"][0] for run in runs], [run["cpu_s"] for run in runs])
        worth = f"{statistics.median(success):.1f} ({min(success):.1f})"
        spent = f"{statistics.median(cost):.0f} ({max(cost):.0f})"
        steps = f"{statistics.median(run['steps'] for run in runs):,.0f}"
        lines.append([name, str(len(runs)), worth, spent, steps, f"{max(run['memory_mb'] for run in runs):.0f}"])
    head = ["median (worst seed)", "seeds", "success, %", "CPU s", "environment steps", "peak MB"]
    return report.table(head, lines)


if __name__ == "__main__":
    report.main("off_policy", CASES, measure)
