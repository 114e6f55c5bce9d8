"""Worlds of others on Ray: one worker, two workers, this process; what a loss costs, and what it costs to send things.

`python tests/benchmarks/cluster.py [task=metaworld/pick-place-v3] [rows=16] [blocks=30]`. They take turns, because on a
busy machine only what alternates can be compared. CPU times are of all processes that take part. Needs the extra
[cluster].
"""

import os
import signal
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from sim.cluster import entered
from sim.env import make_env
from sim.tasks import make

STEPS = 20  # of a block, between resets
TICKS = os.sysconf("SC_CLK_TCK")
SENT = 2**20  # bytes: some episodes, or the weights of a policy that sees


def processes(named: str) -> list[int]:
    """Those whose command begins so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_text().startswith(named):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def cpu(process: int) -> float:
    """Its CPU time so far, s."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def echo(content: np.ndarray) -> int:
    return content.nbytes


def measure(name: str, rows: int, blocks: int) -> None:
    """Print what was found."""
    task, rng = make(name), np.random.default_rng(0)
    began = time.perf_counter()
    with entered("ray:3") as nodes, ExitStack() as stack:
        print(f"three nodes on this machine: {time.perf_counter() - began:.1f} s to begin", flush=True)
        began, envs, staff = time.perf_counter(), [], []
        for count in (1, 2):
            before = {*processes("ray::Rows")}
            envs.append(stack.enter_context(closing(nodes.workers(task, rows, 0, count))))
            envs[-1].reset(range(rows), range(rows))
            staff.append(sorted({*processes("ray::Rows")} - before))
        envs.append(stack.enter_context(closing(make_env(task, rows, 0))))
        print(f"three workers and this process: {time.perf_counter() - began:.1f} s to open", flush=True)
        speed, ours, theirs = (np.zeros((blocks, 3)) for _ in range(3))
        for block in range(blocks):
            for k, env in enumerate(envs):
                env.reset(range(rows), range(block * rows, (block + 1) * rows))
                sent = [{s.name: rng.uniform(s.low, s.high, (rows, *s.shape)) for s in task.commands}] * STEPS
                used = [cpu(process) for process in staff[k]] if k < 2 else [0.0]
                mine, began = time.process_time(), time.perf_counter()
                for command in sent:
                    env.step(command)
                    env.observe()
                speed[block, k] = STEPS * rows / (time.perf_counter() - began)
                ours[block, k] = (time.process_time() - mine) / STEPS
                now = [cpu(process) for process in staff[k]] if k < 2 else [0.0]
                theirs[block, k] = max(n - u for n, u in zip(now, used, strict=True)) / STEPS
        one, two, alone = np.median(speed, axis=0)
        best = np.quantile(speed, 0.95, axis=0)
        pairs = np.median(speed[:, 1] / speed[:, 0])
        mine, busiest = 1e3 * ours.mean(axis=0), 1e3 * theirs.mean(axis=0)
        print(f"{name}, {rows} worlds, {blocks} blocks of {STEPS} steps, seed 0:")
        print(
            f"  steps/s: this process {alone:.0f}, 1 worker {one:.0f}, 2 workers {two:.0f}; pairs {pairs:.2f}, ", end=""
        )
        print(f"best twentieths {best[2]:.0f}, {best[0]:.0f}, {best[1]:.0f}: {best[1] / best[0]:.2f}")
        print(f"  CPU ms per step of all worlds: this process {mine[2]:.2f}; ", end="")
        print(f"1 worker {busiest[0]:.2f} and its learner's side {mine[0]:.2f}; ", end="")
        print(f"2 workers {busiest[1]:.2f} (the busier) and {mine[1]:.2f}")
        paths = [mine[k] + busiest[k] for k in (0, 1)]
        print(f"  by CPU time alone, each on a core of its own: {paths[0] / paths[1]:.2f}", flush=True)
        lose(envs[1], staff[1][0], rows, task, rng)
        stack.close()  # their CPUs are needed
        send(nodes)


def lose(env, process, rows, task, rng) -> None:
    """Kill a worker after 100 steps of an episode."""
    env.reset(range(rows), range(rows))
    command = {s.name: rng.uniform(s.low, s.high, (rows, *s.shape)) for s in task.commands}
    for _ in range(100):
        env.step(command)
    before = {*processes("ray::Rows")}
    os.kill(process, signal.SIGKILL)
    began = time.perf_counter()
    env.step(command)
    took = time.perf_counter() - began
    used = max(cpu(one) for one in {*processes("ray::Rows")} - before)
    print(f"  a worker killed 100 steps into its {rows // 2} episodes: the next step comes {took:.1f} s later,")
    print(f"  of which the new one has used {used:.1f} s of CPU time", flush=True)


def send(nodes) -> None:
    """What a megabyte costs on this machine."""
    content = np.random.default_rng(0).integers(0, 256, SENT, np.uint8)
    nodes.mapped(echo, [(content,)])
    mine, began = time.process_time(), time.perf_counter()
    for _ in range(30):
        nodes.mapped(echo, [(content,)])
    took, used = (time.perf_counter() - began) / 30, (time.process_time() - mine) / 30
    print(f"  a megabyte to a node, and an answer: {1e3 * took:.1f} ms, {1e3 * used:.1f} ms of CPU here", flush=True)


if __name__ == "__main__":
    told = dict(word.split("=") for word in sys.argv[1:])
    measure(told.get("task", "metaworld/pick-place-v3"), int(told.get("rows", 16)), int(told.get("blocks", 30)))
