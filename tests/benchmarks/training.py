"""Seconds to a policy for quad_hover, and what it is worth: ours, other learners on our task, and rl-tools on its own.

    python tests/benchmarks/training.py [--quick] [--only apg ppo ...]

Time runs from the start of the process to the verified policy file. Success is measured on unseen episodes at 0, 10 and
20 ms of latency. rl-tools takes part when $RL_TOOLS_L2F names its compiled benchmark, rl_zoo_l2f_sac_benchmark.
"""

import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import commands
import report
from peers import MissingPeerError

DELAYS = (0.0, 0.01, 0.02)  # s
BASELINE = "apg, quality=quick"
Row = dict[str, Any]


def ours(
    arguments: str,
    seed: int,
    folder: Path,
    quick: bool,
    small: str = "algorithm.updates=10",
    cold: bool = False,
    grid: int = 0,
) -> Row:
    """One run of our trainer, and the policy file's success. `cold`: with an empty cache of compiled kernels.

    With `grid` flights in every cell, the worst cells of the task's grid too.
    """
    wanted = ["task=quad_hover", f"seed={seed}", *arguments.split(), *([small] if quick else [])]
    row: Row = commands.train(folder, *wanted, **({"XDG_CACHE_HOME": str(folder / "cache")} if cold else {}))
    episodes = f"episodes={20 if quick else 1000}"
    flown = [commands.evaluate(folder, f"delay={delay}", f"seed={seed}", episodes) for delay in DELAYS]
    row["success"] = [one["success"] for one in flown]
    row["error_m"] = flown[0]["score"]["position_error"]["median"]
    if grid:
        cells = commands.evaluate(folder, "grid=true", f"seed={seed}", f"episodes={4 if quick else grid}")
        row["grid_worst"] = min(cell["success"] for cell in cells["cells"] if not cell["disturbed"])
        row["grid_worst_disturbed"] = min(cell["success"] for cell in cells["cells"] if cell["disturbed"])
    return row


def stable_baselines(seed: int, folder: Path, quick: bool) -> Row:
    """Stable-Baselines3 PPO on our Gymnasium environment."""
    script, path = report.FOLDER / "sb3_ppo.py", folder / "row.json"
    command = [sys.executable, str(script), str(seed), str(path), "quick" if quick else "whole"]
    used, _ = commands.run(command, PYTHONPATH=str(report.ROOT))
    return {**used, **json.loads(path.read_text())}


def rl_tools(seed: int, folder: Path, quick: bool) -> Row:
    """rl-tools' SAC on its own task. It reports how long its evaluation episodes last, of at most 500 steps."""
    program = os.environ.get("RL_TOOLS_L2F")
    if not program:
        raise MissingPeerError("not had: $RL_TOOLS_L2F does not name its compiled benchmark")
    used, text = commands.run([program, str(seed)], folder)
    lasted = re.search(r"Mean episode length: *([\d.]+)", text)
    return {**used, "seconds": used["wall_s"], "episode_steps": float(lasted[1]) if lasted else None}


@dataclass(frozen=True)
class Case:
    """One row: the number of seeds, a run from (seed, empty folder, quick), and whether caches are filled before."""

    seeds: int
    run: Callable[[int, Path, bool], Row]
    warm: bool = True


CASES = {
    "apg": Case(5, partial(ours, "", grid=500)),
    "apg, quality=quick": Case(5, partial(ours, "quality=quick", grid=100)),
    "apg, quality=quick, cold": Case(3, partial(ours, "quality=quick", cold=True), warm=False),
    "apg, quality=high": Case(3, partial(ours, "quality=high", grid=100)),
    "apg, robust=true": Case(3, partial(ours, "robust=true", grid=100)),
    "apg, quality=quick, path=torch": Case(3, partial(ours, "quality=quick algorithm.path=torch")),
    "ppo": Case(5, partial(ours, "algorithm=ppo", small="algorithm.total_steps=8192")),
    "sac": Case(3, partial(ours, "algorithm=sac", small="algorithm.total_steps=30_000")),
    "Stable-Baselines3 PPO, our task": Case(3, stable_baselines, warm=False),
    "rl-tools SAC, its own task": Case(5, rl_tools, warm=False),
}


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per case, the runs of all its seeds. The cases take turns, seed by seed."""
    rows: report.Rows = {name: {"runs": []} for name in cases}
    for name, row in rows.items():
        if CASES[name].warm and not quick:
            _run(name, row, 0, quick=True)
            row["runs"].clear()
    for seed in range(1 if quick else max(CASES[name].seeds for name in cases)):
        for name, row in rows.items():
            if seed < CASES[name].seeds:
                _run(name, row, seed, quick)
    return rows


def _run(name: str, row: Row, seed: int, quick: bool) -> None:
    if "missing" in row:
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = CASES[name].run(seed, Path(folder), quick)
        except (MissingPeerError, commands.FailedError) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            row["missing"] = str(error).partition("\n")[0]
            return
    row["runs"].append({"seed": seed, **made})
    print(f"{name}: {row['runs'][-1]}", file=sys.stderr, flush=True)


def markdown(rows: report.Rows) -> str:
    """Median and worst over the seeds."""
    lines = []
    reference = rows.get(BASELINE, {"runs": []})["runs"]
    for name, row in rows.items():
        runs: list[Row] = row["runs"]
        if not runs:
            lines.append([name, "0", *["–"] * 6, row.get("missing", "")])
            continue
        seconds, cpu = ([run[key] for run in runs] for key in ("seconds", "cpu_s"))
        ratio = statistics.median(cpu) / statistics.median(r["cpu_s"] for r in reference) if reference else 0.0
        lines.append(
            [
                name,
                str(len(runs)),
                _middle(seconds, max, "{:.2f}"),
                _middle([run.get("training_s", run["seconds"]) for run in runs], max, "{:.2f}"),
                f"{ratio:.2g}" if ratio else "–",
                _middle(cpu, max, "{:.1f}"),
                _middle([run["memory_mb"] for run in runs], max, "{:.0f}"),
                _middle([100 * run["error_m"] for run in runs if "error_m" in run], max, "{:.1f}"),
                _worth(runs),
            ]
        )
    head = ["", "seeds", "s to the file", "s training", "CPU ratio", "CPU s", "peak MB", "final error, cm"]
    delays = " / ".join(f"{1000 * delay:.0f}" for delay in DELAYS)
    first = f"Median, in brackets the worst seed. Success in % of 1000 unseen episodes at {delays} ms of latency.\n\n"
    return first + report.table([*head, "success, %"], lines)


def _middle(values: list[float], worst: Callable[[list[float]], float], form: str) -> str:
    return f"{form.format(statistics.median(values))} ({form.format(worst(values))})" if values else "–"


def _worth(runs: list[Row]) -> str:
    if "episode_steps" in runs[0]:
        return "episodes last " + _middle([run["episode_steps"] for run in runs], min, "{:.0f}") + " of 500 steps"
    text = " / ".join(_middle([100 * run["success"][k] for run in runs], min, "{:.1f}") for k in range(len(DELAYS)))
    if "grid_worst" in runs[0]:
        text += "; worst cell of the grid " + _middle([100 * run["grid_worst"] for run in runs], min, "{:.1f}")
        if "grid_worst_disturbed" in runs[0]:
            cells = _middle([100 * run["grid_worst_disturbed"] for run in runs], min, "{:.1f}")
            text += f", with noise and force {cells}"
    return text


if __name__ == "__main__":
    report.main("training", CASES, measure)
