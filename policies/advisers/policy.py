"""An earlier policy, as slow as a large model: its file is a stranger's, and runs in the adviser's process only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from deploy.policy_file import PolicyFile
from policies.advisers import AdviserConfig, Answer, Array, agreement
from policies.models.controller import normalised
from policies.models.pretrained import fit
from sim.registry import check_named
from sim.tasks import Task
from sim.terms import HISTORY


class Earlier:
    """One without a memory, but for its own past actions."""

    def __init__(self, task: Task, config: AdviserConfig) -> None:
        check_named("policy", config.policy)
        if not Path(config.policy).is_file():
            raise ValueError(f"adviser=policy: there is no file policy={config.policy!r}")
        self.task, self.path = task, config.policy
        self.latency = 0.0 if config.synchronous else config.latency

    def open(self) -> None:
        """PolicyFileError where the file is not whole, or for another task; ValueError where it remembers."""
        self.policy = PolicyFile.load(self.path)
        fit(self.path, self.task, self.policy.metadata)
        if others := [s.name for s in self.policy.state if s.name != HISTORY]:
            raise ValueError(f"{self.path} remembers {', '.join(others)}: it cannot advise about a state by itself")

    def advise(self, signals: Mapping[str, Array], done: Array) -> Answer:
        time.sleep(self.latency)
        policy = self.policy
        policy.reset(len(done))
        policy.put({s.name: signals[s.name] for s in policy.state})
        action = normalised(self.task.commands, policy.step({s.name: signals[s.name] for s in policy.inputs}))
        return Answer(action, np.ones(len(action)), agreement(action, done))
