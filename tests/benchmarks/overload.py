"""Real-time flights at 250 Hz on a machine that has too much to do: how far a vehicle leans, how each flight ends.

python tests/benchmarks/overload.py policy.onnx [flights] [priority]     # of a policy trained with task.rate_hz=250
"""

from __future__ import annotations

import multiprocessing
import os
import sys

import numpy as np

from deploy.drivers.simulated import Simulated
from deploy.guard import REASONS, VERDICTS
from deploy.loop import run
from deploy.policy_file import PolicyFile
from deploy.safety.limits import guard_of, limits_of
from deploy.system.realtime import realtime
from sim.tasks import make

PER_CORE = 2  # busy processes
SECONDS = 8.0


def busy() -> None:
    """Until killed."""
    while True:
        pass


def fly(policy: PolicyFile, seed: int, priority: int) -> tuple[float, str, str, int]:
    """The largest tilt in degrees, why the guard stopped it, what it got last, and the deadlines missed."""
    settings = {**policy.metadata["training"]["task_config"], "tilt": 5.0, "velocity": 0.1, "body_rate": 0.1}
    driver = Simulated(make(policy.task, **settings), seed=seed, real_time=True)
    guard = guard_of(policy, driver, limits_of(driver.robot), policy.envelope)
    with realtime(priority):
        record = run(policy, driver, guard, round(SECONDS * policy.rate_hz))
    flight = driver.flight()
    flying = flight["motor_command"][:, 0].any(axis=1)  # what lies on a floor that is not there, may tumble
    upright = np.clip(flight["rotation"][flying, 0, 8], -1.0, 1.0)
    tilt = float(np.degrees(np.arccos(upright.min())))
    return tilt, REASONS[record.stopped[0]], VERDICTS[guard.verdict[0]], record.missed


def main(path: str, flights: int = 20, priority: int = 0) -> None:
    """One line per flight."""
    policy = PolicyFile.load(path)
    others = [multiprocessing.Process(target=busy, daemon=True) for _ in range(PER_CORE * (os.cpu_count() or 1))]
    for other in others:
        other.start()
    tilts = []
    for seed in range(flights):
        tilt, reason, last, missed = fly(policy, seed, priority)
        tilts.append(tilt)
        print(f"{seed:3}  {tilt:5.1f} degrees  {reason:16} {last:5} {missed} deadlines missed", flush=True)
    for other in others:
        other.kill()
    print(f"worst tilt {max(tilts):.1f} degrees, load {os.getloadavg()[0]:.1f}, priority {priority}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
