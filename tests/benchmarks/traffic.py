"""An intersection of `traffic_eco` in this process beside a bare loop with the same subscriptions: CPU time per step.

`python tests/benchmarks/traffic.py [episodes=6] [steps=300]`. Both step the same traffic, alternating; the bare loop
subscribes, steps and asks for what it subscribed to, no more. Nobody is told anything, then everybody who is equipped.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np

from sim.tasks import make
from sim.tasks.traffic.world import Intersection

SEED = 0


def bare(env: Intersection) -> None:
    """A step of SUMO, and what was subscribed to."""
    simulation, sumo = env._simulation, env._simulation._sumo
    sumo.simulationStep()
    told = sumo.simulation.getSubscriptionResults()
    for who in told[sumo.VAR_DEPARTED_VEHICLES_IDS]:
        sumo.vehicle.subscribe(who, simulation._wanted)
    sumo.vehicle.getAllSubscriptionResults()


def ours(env: Intersection, command: float) -> None:
    """A step of the environment."""
    env.step({"acceleration": np.full((env.num, 1), command, np.float32)})


def measure(env: Intersection, episode: int, steps: int, step: Callable[[Intersection], None]) -> float:
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
        rows = []
        for episode in range(episodes):
            alone = measure(env, episode, steps, bare)
            left = measure(env, episode, steps, lambda env: ours(env, 2.0))
            told = measure(env, episode, steps, lambda env: ours(env, 1.4))
            rows.append((alone, left / alone, told / alone))
    alone, left, told = np.median(rows, axis=0).tolist()
    return {"bare": alone, "left": left, "told": told}


if __name__ == "__main__":
    given = dict(argument.split("=") for argument in sys.argv[1:])
    found = ratios(int(given.get("episodes", 6)), int(given.get("steps", 300)))
    print(
        f"bare loop: {found['bare']:.0f} us per step; left to drivers {found['left']:.2f} x, told {found['told']:.2f} x"
    )
