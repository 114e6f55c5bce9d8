"""The task's scripted expert, as slow as a large model."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from policies.advisers import AdviserConfig, Answer, Array, agreement
from policies.models.controller import normalised
from sim.env import expert_of
from sim.tasks import Task


class Expert:
    """See the module."""

    def __init__(self, task: Task, config: AdviserConfig) -> None:
        self.task, self.expert = task, expert_of(task)
        self.latency = 0.0 if config.synchronous else config.latency

    def open(self) -> None:
        """It is ready."""

    def advise(self, signals: Mapping[str, Array], done: Array) -> Answer:
        time.sleep(self.latency)
        action = normalised(self.task.commands, self.expert.expert(signals)).clip(-1.0, 1.0)
        return Answer(action, np.ones(len(action)), agreement(action, done))
