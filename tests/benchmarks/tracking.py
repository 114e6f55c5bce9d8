"""Tracking error of the trained quad_track policy and of a cascaded PID, on the same unseen paths.

    python tests/benchmarks/tracking.py [--quick]

Paths: the figure-eight of 1 m and 5.5 s from a random phase, and random smooth paths. 6 s per flight, error after 1 s.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import commands
import numpy as np
import report
from flying import fly

from deploy.policy_file import PolicyFile
from policies.evaluate import evaluate
from sim import tasks
from sim.conditions import Conditions
from sim.experts.quad_pid import CascadedPid

SEEDS = 3  # of the training, and of the paths
EPISODES = 300
PATHS = ("figure_eight", "random")
DELAYS = (0.0, 0.01)  # s
CASES = ("trained policy", "cascaded PID")


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per controller, path, latency and seed: mean and worst RMS error over the flights, and the share below 0.2 m."""
    rows: report.Rows = {case: {"runs": []} for case in cases}
    episodes = 4 if quick else EPISODES
    for seed in range(1 if quick else SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            if "trained policy" in cases:
                small = ["algorithm.updates=10"] if quick else []
                cost = commands.train(Path(folder), "task=quad_track", f"seed={seed}", *small)
                rows["trained policy"].setdefault("seconds", []).append(cost["seconds"])
                policy = PolicyFile.load(str(Path(folder) / "policy.onnx"))
            for path in PATHS:
                task = tasks.make("quad_track", path=path)
                for delay in DELAYS:
                    conditions = Conditions(delay=delay)
                    for case, row in rows.items():
                        if case == "trained policy":
                            score = _policy(policy, task, episodes, seed, conditions)
                        else:
                            score = _pid(task, episodes, seed, conditions)
                        row["runs"].append({"path": path, "delay": delay, "seed": seed, **score})
                        print(f"{case}: {row['runs'][-1]}", file=sys.stderr, flush=True)
    return rows


def _policy(policy: PolicyFile, task: tasks.Task, episodes: int, seed: int, conditions: Conditions) -> dict[str, Any]:
    made = evaluate(policy, task=task, episodes=episodes, seed=seed, conditions=conditions)
    return _summary(task.score(made.flight))


def _pid(task: tasks.Task, episodes: int, seed: int, conditions: Conditions) -> dict[str, Any]:
    pid = CascadedPid(task.robot, task.rate_hz)
    pid.reset(episodes)
    return _summary(fly(task, pid.act, episodes, seed, conditions))


def _summary(scores: Any) -> dict[str, Any]:
    error = scores["tracking_error"]
    return {"rms_m": float(np.mean(error)), "worst_m": float(np.max(error)), "success": float(scores["success"].mean())}


def markdown(rows: report.Rows) -> str:
    """Mean over seeds; the worst flight of all."""
    lines = []
    for path in PATHS:
        for delay in DELAYS:
            for case, row in rows.items():
                runs = [run for run in row["runs"] if (run["path"], run["delay"]) == (path, delay)]
                mean, worst = np.mean([run["rms_m"] for run in runs]), max(run["worst_m"] for run in runs)
                success = 100 * np.mean([run["success"] for run in runs])
                where = [path.replace("_", "-"), f"{1000 * delay:.0f}"]
                lines.append([case, *where, f"{100 * mean:.1f}", f"{100 * worst:.1f}", f"{success:.1f}"])
    seconds = rows.get("trained policy", {}).get("seconds", [])
    trained = f" Training took {np.median(seconds):.1f} s (median)." if seconds else ""
    head = ["controller", "path", "latency, ms", "RMS error, cm", "worst flight, cm", "always within 20 cm, %"]
    return f"{EPISODES} flights per seed, {SEEDS} seeds.{trained}\n\n{report.table(head, lines, 2)}"


if __name__ == "__main__":
    report.main("tracking", CASES, measure)
