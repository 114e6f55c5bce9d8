"""How soon the guard acts: faults injected into real-time flights of the simulated Crazyflie at 100 Hz.

python tests/benchmarks/guards.py [--quick]
"""

import os
import sys
import time
from typing import Any

import numpy as np
import report

from deploy.policy_file import PolicyFile
from tests.deploy.safety.faults import FAULTS, RealClock, fly, stopped_after

FLIGHTS = 10
STEPS = 110  # of which a low battery takes fifty
LONGER = {"stale signal": 300}


def reaction(name: str, policy: PolicyFile, seed: int) -> float:
    """Seconds from the fault to the first safe command; to the end of the flight where the fault ends it."""
    flight = fly(name, policy, np.random.default_rng(seed), clock=RealClock(), steps=LONGER.get(name, STEPS))
    ended = time.perf_counter()
    after = stopped_after(flight)
    if FAULTS[name].reason:
        assert after is not None, f"{name}, seed {seed}: not stopped"
        return flight.sent_at[flight.at + after - 1] - flight.began
    return (flight.sent_at[flight.at] if len(flight.sent) > flight.at else ended) - flight.began


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per fault: the seconds of every flight."""
    policy = PolicyFile.load("quad_any")
    rows: report.Rows = {}
    for name in cases:
        seconds = [reaction(name, policy, seed) for seed in range(1 if quick else FLIGHTS)]
        rows[name] = {"limit_steps": FAULTS[name].limit, "seconds": seconds, "load": os.getloadavg()[0]}
        print(f"{name}: {rows[name]}", file=sys.stderr, flush=True)
    return rows


def end(name: str) -> str:
    """What the fault leads to, in words."""
    words = {"link lost": "driver stopped", "command out of range": "clipped, slew limited"}
    fault = FAULTS[name]
    return words.get(name) or ("the signal's rung" if fault.signal else fault.rung) or "the human's command"


def markdown(rows: report.Rows) -> str:
    """One line per fault."""
    lines: list[list[Any]] = []
    for name, row in rows.items():
        ms = 1e3 * np.array(row["seconds"])
        lines.append([name, end(name), str(row["limit_steps"]), f"{np.median(ms):.1f}", f"{ms.max():.1f}"])
    flights = max(len(row["seconds"]) for row in rows.values())
    head = ["fault", "what follows", "within, control steps", "measured, ms: median", "worst"]
    text = (
        f"{flights} real-time flights per fault at 100 Hz, each at a random moment. Bad signals and commands are "
        f"bridged for 5 control steps first; a state may be 0.1 s old, a target 1 s. A step that misses its "
        "deadline lasts about 16 ms here."
    )
    return f"{text}\n\n{report.table(head, lines, texts=2)}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report.main("guards", FAULTS, measure, apart=True)
