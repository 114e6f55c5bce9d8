"""An intersection of `traffic_eco` in this process beside a bare loop with the same subscriptions: CPU time per step.

    python tests/benchmarks/traffic.py [--quick]

They take turns of ten steps in the same episode; the bare loop subscribes, steps and asks for what it subscribed to,
no more. In every other turn of ours nobody is told anything, in the others everybody who is equipped.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import report
from numpy.typing import NDArray

from sim.tasks import make
from sim.tasks.traffic.world import Intersection

SEED = 0
EPISODES, STEPS, BLOCK = 6, 600, 10
CASES = ("an intersection",)


def bare(env: Intersection) -> tuple[Mapping[str, Any], Sequence[str]]:
    """A step of SUMO, and what was subscribed to; and who departed."""
    simulation, sumo = env._simulation, env._simulation._sumo
    sumo.simulationStep()
    told = sumo.simulation.getSubscriptionResults()
    departed: Sequence[str] = told[sumo.VAR_DEPARTED_VEHICLES_IDS]
    for who in departed:
        sumo.vehicle.subscribe(who, simulation._wanted)
    return sumo.vehicle.getAllSubscriptionResults(), departed


def paired(env: Intersection, command: NDArray[np.float32]) -> tuple[float, float]:
    """Seconds of CPU time of BLOCK steps of the bare loop, and of BLOCK of ours."""
    departed, begun = list[str](), time.process_time()
    for _ in range(BLOCK):
        seen, new = bare(env)
        departed += new
    between = time.process_time()
    env._simulation._look(seen, departed, 0, 0)  # it missed these steps
    again = time.process_time()
    for _ in range(BLOCK):
        env.step({"acceleration": command})
    return between - begun, time.process_time() - again


def ratios(episodes: int, steps: int) -> dict[str, float]:
    """Medians over all turns: microseconds per step of the bare loop, and how much longer ours take."""
    task = make("traffic_eco", steps=steps)
    with tempfile.TemporaryDirectory() as task.folder, closing(Intersection(task, task.agents, SEED)) as env:
        left, told = (np.full((env.num, 1), command, np.float32) for command in (2.0, 1.4))
        quiet, busy = list[tuple[float, float]](), list[tuple[float, float]]()
        for episode in range(episodes):
            env.reset(range(env.num), [episode] * env.num)
            for _ in range(steps // (4 * BLOCK)):
                quiet.append(paired(env, left))
                busy.append(paired(env, told))
    alone = np.median(np.array(quiet + busy)[:, 0])
    times = {name: float(np.median([b / a for a, b in pairs])) for name, pairs in (("left", quiet), ("told", busy))}
    return {"bare": 1e6 * float(alone) / BLOCK, **times}


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Medians of episodes."""
    return {case: ratios(*(1, 40) if quick else (EPISODES, STEPS)) for case in cases}


def markdown(rows: report.Rows) -> str:
    """One line."""
    lines = [[case, f"{row['bare']:.0f}", f"{row['left']:.2f}", f"{row['told']:.2f}"] for case, row in rows.items()]
    head = ["", "bare loop, us of CPU per step", "`traffic_eco`, left to drivers: times", "told: times"]
    return report.table(head, lines)


if __name__ == "__main__":
    report.main("traffic", CASES, measure)
