"""Fly any controller under the conditions of `policies.evaluate`: what is no policy file is measured like one."""

from collections.abc import Callable, Mapping
from typing import Any

import report  # noqa: F401  makes the project importable

from deploy.drivers.simulated import Simulated
from sim.conditions import Conditions
from sim.tasks import Task

Signals = Mapping[str, Any]  # name -> (episodes, k)


def fly(
    task: Task, act: Callable[[Signals], Signals], episodes: int, seed: int, conditions: Conditions | None = None
) -> Signals:
    """Scores (episodes,) by name. `act` maps what the policy would see to commands, once per control step."""
    with Simulated(task, episodes, "flight", seed, conditions) as driver:
        for _ in range(task.episode_steps):
            driver.write(act(driver.read().signals))
        return task.score(driver.flight())
