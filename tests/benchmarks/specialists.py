"""Following a figure-eight: the foundation policy beside policies trained for one airframe alone, on the same task.

    python tests/benchmarks/specialists.py [--quick] [--only racer ...]

1 m and 5.5 s, from a thrown start; RMS error from the third second on. The specialist sees the same signals (quad_any
on one airframe, its mass, thrust and rotor lag varied by a tenth or more) and has the same training budget.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import commands
import numpy as np
import report

from deploy.policy_file import PolicyFile
from policies.evaluate import evaluate
from sim import tasks
from sim.conditions import Conditions

AIRFRAMES = ("crazyflie", "crazyflie_decks", "crazyflie_brushless", "stampfly", "racer", "x500", "x500_identified")
SEEDS = 3
EPISODES = 300
DELAYS = (0.0, 0.01)  # s


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per airframe: RMS error in m at each latency, of the shipped policy and of each specialist (one per seed)."""
    rows: report.Rows = {}
    for name in cases:
        task = tasks.make("quad_any", robot=name, path="figure_eight", episode_s=8.0)
        row: dict[str, Any] = {"any_m": tracking(PolicyFile.load("quad_any"), task, quick), "specialist_m": []}
        for seed in range(1 if quick else SEEDS):
            with tempfile.TemporaryDirectory() as folder:
                small = ["algorithm.updates=10"] if quick else []
                commands.train(Path(folder), "task=quad_any", f"task.robot={name}", f"seed={seed}", *small)
                row["specialist_m"].append(tracking(PolicyFile.load(str(Path(folder) / "policy.onnx")), task, quick))
        rows[name] = row
        print(f"{name}: {row}", file=sys.stderr, flush=True)
    return rows


def tracking(policy: PolicyFile, task: tasks.Task, quick: bool) -> list[float]:
    """Median RMS error (m) over unseen starts and phases, by latency; lost flights count as infinite."""
    episodes = 4 if quick else EPISODES
    flown = [evaluate(policy, task=task, episodes=episodes, seed=3, conditions=Conditions(delay=d)) for d in DELAYS]
    return [float(np.median(task.score(one.flight)["tracking_error"])) for one in flown]


def markdown(rows: report.Rows) -> str:
    """In centimetres; the specialist is the median seed."""
    lines = [f"| RMS error, cm | {' | '.join(f'any, {1e3 * d:g} ms | specialist, {1e3 * d:g} ms' for d in DELAYS)} |"]
    lines.append("|---" + "|---:" * 2 * len(DELAYS) + "|")
    for name, row in rows.items():
        special = np.median(row["specialist_m"], axis=0)
        cells = [f"{100 * v:.1f}" for pair in zip(row["any_m"], special, strict=True) for v in pair]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    report.main("specialists", AIRFRAMES, measure, apart=True)
