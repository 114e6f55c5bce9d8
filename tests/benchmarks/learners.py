"""python tests/benchmarks/learners.py: what several learners cost and bring, on a job that is bound by the update.

One learner with all parts, then as many learners as there are parts, in turn; per iteration the clock and the CPU time
of each, and of that what goes into sums over learners. The weights at the end must be the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch

from policies.algorithms.ppo import Ppo, PpoConfig
from policies.learning.parallel.group import Group, Meeting, joined
from sim import tasks

PARTS, WARM, ITERATIONS, TURNS = 2, 1, 6, 2
WIDE = PpoConfig(
    path="torch", num_envs=64, epochs=4, hidden=[1024, 1024], critic_hidden=[1024, 1024], evaluate_every=0, parts=PARTS
)


def learned() -> dict[str, float]:
    """The costs of an iteration of this learner, and a digest of its weights."""
    spent = {"sum_s": 0.0, "sum_cpu_s": 0.0, "sums": 0.0, "bytes": 0.0}
    summed = Group.summed

    def timed(self, own, order):
        begun, cpu = time.perf_counter(), time.thread_time()
        total = summed(self, own, order)
        for name, value in (("sum_s", time.perf_counter() - begun), ("sum_cpu_s", time.thread_time() - cpu)):
            spent[name] += value / ITERATIONS
        spent["sums"] += 1 / ITERATIONS
        spent["bytes"] = 4.0 * own.shape[1]
        return total

    path = Ppo(tasks.make("quad_hover"), WIDE, seed=0).path
    steps = path.learn()
    for _ in range(WARM):
        next(steps)
    Group.summed = timed
    begun, cpu = time.perf_counter(), time.process_time()
    for _ in range(ITERATIONS):
        next(steps)
    costs = {"clock_s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
    told = {name: value / ITERATIONS for name, value in costs.items()} | spent
    return told | {"weights": float(sum(p.detach().double().sum() for p in path.learnt))}


def main() -> None:
    if len(sys.argv) > 1:
        with joined(Meeting(**json.loads(sys.argv[1])), lambda: None):
            print(json.dumps(learned()))
        return
    found: dict[int, list[list[dict[str, float]]]] = {1: [], PARTS: []}
    for _ in range(TURNS):
        for count in found:
            with tempfile.TemporaryDirectory() as place:
                each = [Meeting(rank, count, f"{place}/meeting")._asdict() for rank in range(count)]
                begun = [
                    subprocess.Popen([sys.executable, __file__, json.dumps(told)], stdout=subprocess.PIPE)
                    for told in each
                ]
                found[count].append([json.loads(process.communicate()[0]) for process in begun])
    for count, turns in found.items():
        rows = [one for turn in turns for one in turn]
        names = [name for name in rows[0] if name != "weights"]
        print(f"{count}: " + ", ".join(f"{name} {np.mean([row[name] for row in rows]):.4g}" for name in names))
    assert len({one["weights"] for turns in found.values() for turn in turns for one in turn}) == 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
