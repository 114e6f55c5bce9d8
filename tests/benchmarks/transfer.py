"""Trained in our flight engine, flown elsewhere: the success of one unchanged policy file per seed in every engine.

python tests/benchmarks/transfer.py [--quick]
"""

import statistics
import sys
import tempfile
from pathlib import Path

import commands
import report

SEEDS = 5
EPISODES = {"flight": 1000, "mujoco": 1000, "bullet": 300}
DELAYS = (0.0, 0.01)  # s


def measure(engines: list[str], quick: bool) -> report.Rows:
    """Per engine, latency and seed: success and the median of the final error in m."""
    rows: report.Rows = {engine: {"runs": []} for engine in engines}
    for seed in range(1 if quick else SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            small = ["algorithm.updates=10"] if quick else []
            commands.train(Path(folder), "task=quad_hover", f"seed={seed}", *small)
            for engine in engines:
                episodes = 4 if quick else EPISODES[engine]
                flown = [f"engine={engine}", f"seed={seed}", f"episodes={episodes}"]
                for delay in DELAYS:
                    made = commands.evaluate(Path(folder), f"delay={delay}", *flown)
                    error = made["score"]["position_error"]["median"]
                    run = {"seed": seed, "delay": delay, "success": made["success"], "error_m": error}
                    rows[engine]["runs"].append(run)
                    print(f"{engine}: {run}", file=sys.stderr, flush=True)
    return rows


def markdown(rows: report.Rows) -> str:
    """Median and worst over the seeds."""
    lines = []
    for engine, row in rows.items():
        for delay in DELAYS:
            runs = [run for run in row["runs"] if run["delay"] == delay]
            success, error = ([100 * run[key] for run in runs] for key in ("success", "error_m"))
            lines.append(
                [
                    engine,
                    str(EPISODES[engine]),
                    f"{1000 * delay:.0f}",
                    f"{statistics.median(success):.1f} ({min(success):.1f})",
                    f"{statistics.median(error):.1f} ({max(error):.1f})",
                ]
            )
    seeds = len({run["seed"] for row in rows.values() for run in row["runs"]})
    head = ["engine", "episodes", "latency, ms", "success, %", "final error, cm"]
    return (
        f"The same file in every engine; median of {seeds} seeds, in brackets the worst.\n\n{report.table(head, lines)}"
    )


if __name__ == "__main__":
    report.main("transfer", EPISODES, measure)
