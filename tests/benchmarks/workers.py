"""Worlds of others in this process and in two workers: steps per second and CPU time per step, alternating.

    python tests/benchmarks/workers.py [--quick]

On a busy machine only what alternates can be compared.
"""

import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import report

from policies.runner.log import cpu_time
from sim.env import make_env
from sim.tasks import make

TASKS = ("metaworld/reach-v3", "metaworld/pick-place-v3", "gymnasium/FetchPickAndPlace-v4")
COUNTS = (1, 2)
ROWS, BLOCKS = 8, 60
STEPS = 20  # of a block, between resets


def memory(process: int) -> float:
    """What a process has in memory, MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024.0 for line in lines if line.startswith("VmRSS"))


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Per task, what one process and two workers do."""
    return {case: alternating(case, *(4, 2) if quick else (ROWS, BLOCKS)) for case in cases}


def alternating(name: str, rows: int, blocks: int) -> dict[str, Any]:
    """Medians of blocks, the median of the ratios of neighbours, and the best twentieths, in steps per second."""
    task, rng = make(name), np.random.default_rng(0)
    speed, cpu = np.zeros((blocks, len(COUNTS))), np.zeros((blocks, len(COUNTS)))
    with ExitStack() as stack:
        began = time.perf_counter()
        envs = [stack.enter_context(closing(make_env(task, rows, 0, workers=count))) for count in COUNTS]
        started = time.perf_counter() - began
        for block in range(blocks):
            for k, env in enumerate(envs):
                env.reset(range(rows), range(block * rows, (block + 1) * rows))
                sent = [{s.name: rng.uniform(s.low, s.high, (rows, *s.shape)) for s in task.commands}] * STEPS
                used, began = cpu_time(), time.perf_counter()
                for command in sent:
                    env.step(command)
                    env.observe()
                speed[block, k] = STEPS * rows / (time.perf_counter() - began)
                cpu[block, k] = (cpu_time() - used) / (STEPS * rows)
        kept = [memory(worker._process.pid) for worker in envs[1]._workers]
    return {
        "worlds": rows,
        "steps_per_s": np.median(speed, axis=0).tolist(),
        "ratio": float(np.median(speed[:, 1] / speed[:, 0])),
        "best": np.quantile(speed, 0.95, axis=0).tolist(),
        "cpu_us": (1e6 * cpu.mean(axis=0)).tolist(),
        "memory_mb": kept,
        "opened_s": started,
    }


def markdown(rows: report.Rows) -> str:
    """A line per task."""
    lines = []
    for name, row in rows.items():
        pairs = [" / ".join(f"{value:.0f}" for value in row[key]) for key in ("steps_per_s", "best", "cpu_us")]
        each = " and ".join(f"{value:.0f}" for value in row["memory_mb"])
        lines.append([name, str(row["worlds"]), *pairs, f"{row['ratio']:.2f}", each, f"{row['opened_s']:.1f}"])
    head = ["one process / two workers", "worlds", "steps/s", "best twentieth", "us of CPU per step", "pairs: times"]
    return report.table([*head, "MB of each worker", "opened in, s"], lines)


if __name__ == "__main__":
    report.main("workers", TASKS, measure, apart=True)
