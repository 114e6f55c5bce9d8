"""The control loop in real time, at 500 Hz: how late its steps begin, what the policy's computation takes.

python tests/benchmarks/control_loop.py [--quick]
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import commands
import numpy as np
import report

from deploy.drivers.simulated import Simulated
from deploy.drivers.tasks import task_for
from deploy.guard import Guard
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.recording.recorder import Recorder
from deploy.runtimes import controller
from deploy.system.realtime import PRIORITY, realtime

RATE = 500  # Hz
SECONDS = 60.0
BUSY = "while True: pass"
# name: controller, priority, processes that keep every core busy, flight log
CASES: dict[str, tuple[str, int, bool, bool]] = {
    "C, SCHED_FIFO": ("c", PRIORITY, False, True),
    "onnxruntime, SCHED_FIFO": ("onnxruntime", PRIORITY, False, True),
    "C, usual priority": ("c", 0, False, True),
    "C, SCHED_FIFO, no log": ("c", PRIORITY, False, False),
    "C, SCHED_FIFO, under load": ("c", PRIORITY, True, True),
    "onnxruntime, SCHED_FIFO, under load": ("onnxruntime", PRIORITY, True, True),
    "C, usual priority, under load": ("c", 0, True, True),
}


HOT = {"C, steps back to back": "c", "onnxruntime, steps back to back": "onnxruntime"}


class Timed:
    """A policy whose steps are timed."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.took: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def step(self, signals: Any) -> Any:
        """The policy's own step."""
        began = time.perf_counter()
        command = self.policy.step(signals)
        self.took.append(time.perf_counter() - began)
        return command


def percentiles(seconds: Any) -> dict[str, float]:
    """In microseconds."""
    values = 1e6 * np.array(seconds)
    return {
        "p50": float(np.percentile(values, 50)),
        "p99": float(np.percentile(values, 99)),
        "worst": float(values.max()),
    }


def steps(path: Path, kind: str, count: int) -> dict[str, Any]:
    """The policy alone, one step after the other, with everything in the processor's caches."""
    policy = PolicyFile.load(path)
    timed = Timed(controller(policy, kind))
    timed.reset(1)
    signals = {name: values[:1].astype(policy.types[name]) for name, values in policy.vectors.inputs.items()}
    before = os.getloadavg()[0]
    for _ in range(count):
        timed.step(signals)
    return {"load": before, "steps": count, "step_us": percentiles(timed.took)}


def fly(path: Path, case: str, seconds: float) -> dict[str, Any]:
    """One flight of the simulated Crazyflie, as deploy.run flies it."""
    kind, priority, loaded, logged = CASES[case]
    policy = PolicyFile.load(path)
    timed = Timed(controller(policy, kind))
    driver = Simulated(task_for(policy), real_time=True)
    guard = Guard(policy.inputs, policy.outputs, policy.envelope, driver.signals)
    log = Recorder(str(path.with_name(f"{case}.mcap")), policy, driver, guard, kind) if logged else None
    before = os.getloadavg()[0]
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)] if loaded else []
    try:
        with realtime(priority) as refused:
            record = run(timed, driver, guard, round(RATE * seconds), settle=1.0, log=log)
    finally:
        for process in busy:
            process.kill()
            process.wait()
        trouble = log.close() if log else ""
    settled = 21  # rehearsals, which are timed too
    return {
        "load": before,
        "refused": refused,
        "steps": record.steps,
        "missed": record.missed,
        "late_us": percentiles(record.lateness),
        "step_us": percentiles(timed.took[settled:]),
        "log": trouble or "whole",
    }


def measure(cases: list[str], quick: bool) -> report.Rows:
    """A policy trained for this rate, then one flight per case."""
    rows: report.Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        small = ["quality=quick", *(["algorithm.updates=10"] if quick else [])]
        commands.train(Path(folder), "task=quad_hover", f"task.rate_hz={RATE}", "task.delay_high=0.004", *small)
        for case in cases:
            path = Path(folder) / "policy.onnx"
            if case in HOT:
                rows[case] = steps(path, HOT[case], 100 if quick else 20_000)
            else:
                rows[case] = fly(path, case, 0.5 if quick else SECONDS)
            print(f"{case}: {rows[case]}", file=sys.stderr, flush=True)
    return rows


def markdown(rows: report.Rows) -> str:
    """One line per case."""
    lines = []
    for case, row in rows.items():
        step = [f"{row['step_us'][p]:.1f}" for p in ("p50", "p99", "worst")]
        late = [f"{row['late_us'][p]:.1f}" for p in ("p50", "p99", "worst")] if "late_us" in row else ["", "", ""]
        missed = f"{row['missed']} of {row['steps']}" if "missed" in row else ""
        lines.append([case, f"{row['load']:.1f}", missed, *late, *step])
    head = ["loop at 500 Hz", "load before", "deadlines missed", "late, us: median", "99 %", "worst"]
    head += ["policy's step, us: median", "99 %", "worst"]
    return (
        "One simulated Crazyflie for 60 s; physics, guard, policy and (but for one row) the flight log in every period "
        "of 2 ms. Under load: a busy process per core besides.\n\n" + report.table(head, lines)
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report.main("control_loop", [*CASES, *HOT], measure)
