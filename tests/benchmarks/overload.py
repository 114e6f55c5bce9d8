"""Real-time flights at 250 Hz on a machine that has too much to do: how far a vehicle leans, how each flight ends.

    python tests/benchmarks/overload.py [--quick] [--only "SCHED_FIFO" ...]

A policy is trained for this rate; then two busy processes per core take the processor away while it flies.
"""

import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import commands
import numpy as np
import report

from deploy.drivers.simulated import Simulated
from deploy.guard import REASONS, VERDICTS
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.safety.limits import guard_of, limits_of
from deploy.system.realtime import realtime
from sim.tasks import make

PER_CORE = 2  # busy processes
RATE, SECONDS, FLIGHTS = 250, 8.0, 20
CASES = {"usual priority": 0, "SCHED_FIFO": 50}


def busy() -> None:
    """Until killed."""
    while True:
        pass


def fly(policy: PolicyFile, seed: int, priority: int, seconds: float) -> tuple[float, str, str, int]:
    """The largest tilt in degrees, why the guard stopped it, what it got last, and the deadlines missed."""
    settings = {**policy.metadata["training"]["task_config"], "tilt": 5.0, "velocity": 0.1, "body_rate": 0.1}
    driver = Simulated(make(policy.task, **settings), seed=seed, real_time=True)
    guard = guard_of(policy, driver, limits_of(driver.robot), policy.envelope)
    with realtime(priority):
        record = run(policy, driver, guard, round(seconds * policy.rate_hz))
    flight = driver.flight()
    flying = flight["motor_command"][:, 0].any(axis=1)  # what lies on a floor that is not there, may tumble
    upright = np.clip(flight["rotation"][flying, 0, 8], -1.0, 1.0)
    tilt = float(np.degrees(np.arccos(upright.min())))
    return tilt, REASONS[record.stopped[0]], VERDICTS[guard.verdict[0]], record.missed


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per priority and flight: the largest tilt, why it was stopped, what it got last, and the deadlines missed."""
    rows: report.Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        small = ["quality=quick", "algorithm.updates=10"] if quick else []
        commands.train(Path(folder), "task=quad_hover", f"task.rate_hz={RATE}", "task.delay_high=0.01", *small)
        policy = PolicyFile.load(Path(folder) / "policy.onnx")
        for case in cases:
            rows[case] = {
                "flights": overloaded(policy, CASES[case], 1 if quick else FLIGHTS, 0.5 if quick else SECONDS)
            }
            print(f"{case}: {rows[case]}", file=sys.stderr, flush=True)
    return rows


def overloaded(policy: PolicyFile, priority: int, flights: int, seconds: float) -> list[Any]:
    """Flights beside busy processes."""
    others = [multiprocessing.Process(target=busy, daemon=True) for _ in range(PER_CORE * (os.cpu_count() or 1))]
    for other in others:
        other.start()
    try:
        return [fly(policy, seed, priority, seconds) for seed in range(flights)]
    finally:
        for other in others:
            other.kill()


def markdown(rows: report.Rows) -> str:
    """A line per priority."""
    lines = []
    for case, row in rows.items():
        tilts, reasons, last, missed = zip(*row["flights"], strict=True)
        ends = Counter((reason, end) for reason, end in zip(reasons, last, strict=True) if reason != REASONS[0])
        why = "; ".join(f"{count} for {reason}, last: {end}" for (reason, end), count in sorted(ends.items())) or "none"
        numbers = [str(len(tilts)), f"{max(tilts):.0f}", f"{np.median(missed):.0f} ({max(missed)})"]
        lines.append([case, why, *numbers])
    return report.table(["", "stopped", "flights", "worst tilt, degrees", "deadlines missed (worst)"], lines, 2)


if __name__ == "__main__":
    report.main("overload", CASES, measure)
