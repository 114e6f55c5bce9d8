"""Worlds of others in this process and in two workers: steps per second and CPU time per step, alternating.

`python tests/benchmarks/workers.py [rows=8] [blocks=60]`. On a busy machine only what alternates can be compared.
"""

import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from policies.runner.log import cpu_time
from sim.env import make_env
from sim.tasks import make

TASKS = ("metaworld/reach-v3", "metaworld/pick-place-v3", "gymnasium/FetchPickAndPlace-v4")
COUNTS = (1, 2)
STEPS = 20  # of a block, between resets


def memory(process: int) -> float:
    """What a process has in memory, MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024.0 for line in lines if line.startswith("VmRSS"))


def measure(name: str, rows: int, blocks: int) -> None:
    """Print one row of the table: medians of blocks, and the median of the ratios of neighbours."""
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
        one, two = np.median(speed, axis=0)
        ratio, best = np.median(speed[:, 1] / speed[:, 0]), np.quantile(speed, 0.95, axis=0)
        each = " and ".join(f"{memory(worker._process.pid):.0f}" for worker in envs[1]._workers)
    micro = 1e6 * cpu.mean(axis=0)
    print(
        f"{name}, {rows} worlds: {one:.0f} -> {two:.0f} steps/s (pairs {ratio:.2f}, best twentieths "
        f"{best[0]:.0f} -> {best[1]:.0f}), {micro[0]:.0f} -> {micro[1]:.0f} us of CPU per step, "
        f"workers of {each} MB, opened in {started:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    told = dict(word.split("=") for word in sys.argv[1:])
    for one in TASKS:
        measure(one, int(told.get("rows", 8)), int(told.get("blocks", 60)))
