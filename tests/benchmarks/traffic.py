"""An intersection of `traffic_eco` in this process beside a bare loop with the same subscriptions: CPU time per step.

    python tests/benchmarks/traffic.py [--quick]

Both step the same traffic, alternating; the bare loop subscribes, steps and asks for what it subscribed to, no more.
Nobody is told anything, then everybody who is equipped.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import report
from numpy.typing import NDArray

from sim.tasks import make
from sim.tasks.traffic.world import Intersection

SEED = 0
EPISODES, STEPS = 6, 300
CASES = ("an intersection",)


def bare(env: Intersection) -> None:
    """A step of SUMO, and what was subscribed to."""
    simulation, sumo = env._simulation, env._simulation._sumo
    sumo.simulationStep()
    told = sumo.simulation.getSubscriptionResults()
    for who in told[sumo.VAR_DEPARTED_VEHICLES_IDS]:
        sumo.vehicle.subscribe(who, simulation._wanted)
    sumo.vehicle.getAllSubscriptionResults()


def ours(env: Intersection, command: NDArray[np.float32]) -> None:
    """A step of the environment."""
    env.step({"acceleration": command})


def timed(env: Intersection, episode: int, steps: int, step: Callable[[Intersection], None]) -> float:
    """Microseconds of CPU time per step."""
    env.reset(range(env.num), [episode] * env.num)
    begun = time.process_time()
    for _ in range(steps):
        step(env)
    return 1e6 * (time.process_time() - begun) / steps


def ratios(episodes: int, steps: int) -> dict[str, float]:
    """Medians over episodes: microseconds of the bare loop, and how much longer ours take."""
    task = make("traffic_eco", steps=steps)
    with tempfile.TemporaryDirectory() as task.folder, closing(Intersection(task, task.agents, SEED)) as env:
        left, told = (np.full((env.num, 1), command, np.float32) for command in (2.0, 1.4))
        rows = []
        for episode in range(episodes):
            alone = timed(env, episode, steps, bare)
            quiet = timed(env, episode, steps, lambda env: ours(env, left))
            rows.append((alone, quiet / alone, timed(env, episode, steps, lambda env: ours(env, told)) / alone))
    return dict(zip(("bare", "left", "told"), np.median(rows, axis=0).tolist(), strict=True))


def measure(cases: list[str], quick: bool) -> report.Rows:
    """Medians of episodes."""
    return {case: ratios(*(1, 20) if quick else (EPISODES, STEPS)) for case in cases}


def markdown(rows: report.Rows) -> str:
    """One line."""
    lines = [[case, f"{row['bare']:.0f}", f"{row['left']:.2f}", f"{row['told']:.2f}"] for case, row in rows.items()]
    head = ["", "bare loop, us of CPU per step", "`traffic_eco`, left to drivers: times", "told: times"]
    return report.table(head, lines)


if __name__ == "__main__":
    report.main("traffic", CASES, measure)
