"""Steering (DSRL) on all 50 tasks of Meta-World with one setting: success before and after, seconds of CPU.

    python tests/benchmarks/steering.py [--quick] [--only hammer-v3 ...]

As `manipulation.py` does it: a mediocre expert demonstrates, its clone is steered on one thread for 25 000 environment
steps, and the policy file does unseen episodes; so does the clone, unsteered and with the best of 16 by the critic.
"""

import importlib
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import commands
import manipulation
import report
from commands import FailedError

EPISODES = 200
# The expert's longest median is 129 steps (disassemble), and its corrupted twin takes longer.
SETTING = "preset=dsrl task.steps=200"
THRICE = (  # three seeds
    *("assembly-v3", "basketball-v3", "bin-picking-v3", "coffee-pull-v3", "hammer-v3", "hand-insert-v3"),
    *("peg-insert-side-v3", "pick-place-v3", "soccer-v3", "stick-pull-v3"),
)
SHOWN = {"base": "random noise", "best of 16": "best of 16", "steered": "improved"}


def tasks() -> list[str]:
    """The benchmark's, in its order."""
    return [*importlib.import_module("metaworld.env_dict").ALL_V3_ENVIRONMENTS]


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per task: what each seed cost, and success with its 95 % interval."""
    rows: report.Rows = {}
    for name in cases:
        rows[name] = {"runs": []}
        for seed in range(3 if name in THRICE and not quick else 1):
            rows[name]["runs"].append(_run(name, seed, quick))
            print(f"{name}, seed {seed}: {rows[name]['runs'][-1]}", file=sys.stderr, flush=True)
    return rows


def _run(name: str, seed: int, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as parent:
        folder, small = Path(parent) / "run", manipulation.shortened("dsrl") if quick else []
        wanted = [f"task=metaworld/{name}", f"seed={seed}", *SETTING.split(), *small]
        try:
            run: dict[str, Any] = commands.train(folder, *wanted, OMP_NUM_THREADS="1")
        except FailedError as error:  # none of the demonstrations succeeded: there is nothing to steer
            return {"failed": str(error).splitlines()[-1]}
        return run | {"success": manipulation.graded(folder, quick, True, EPISODES, EPISODES)}


def markdown(rows: report.Rows) -> str:
    """A line per task, the median of its seeds; before them the median of all."""
    lines, medians = [], []
    for name, row in rows.items():
        runs = [run for run in row["runs"] if "success" in run]
        if not runs:
            lines.append([name, "0", *["–"] * len(SHOWN), "–"])
            medians.append(0.0)
            continue
        cells = [_cell([100.0 * run["success"][key][0] for run in runs]) for key in SHOWN.values()]
        medians.append(statistics.median(100.0 * run["success"]["improved"][0] for run in runs))
        cost = statistics.median(run["cpu_s"] for run in runs)
        lines.append([name, str(len(runs)), *cells, f"{cost:.0f}"])
    told = f"Steered: median of {len(medians)} tasks {statistics.median(medians):.1f} %"
    low = f"{sum(x < 80.0 for x in medians)} below 80 %. In brackets the worst seed."
    return f"{told}, {low}\n\n" + report.table(["", "seeds", *(f"{k}, %" for k in SHOWN), "CPU s"], lines)


def _cell(values: list[float]) -> str:
    worst = f" ({min(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.1f}{worst}"


if __name__ == "__main__":
    report.main("steering", tasks(), measure, apart=True)
