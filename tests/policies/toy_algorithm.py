"""A fast algorithm for the tests of the training loop: a linear controller learns a linear law from random features."""

import os
import signal
import sys
import time
from dataclasses import dataclass

import numpy as np

from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from sim import spec


@dataclass
class ToyConfig:
    updates: int = 20
    learning_rate: float = 0.1
    pause: float = 0.0  # s per update
    nan_at: int = -1

    def __post_init__(self):
        if self.updates < 1:
            raise ValueError(f"updates must be positive, got {self.updates}")


class Toy:
    Config = ToyConfig
    needs = ()
    takes = ()
    recipes = {"high": {"algorithm.updates": 40, "task.noise": 0.5}, "robust": {"algorithm.learning_rate": 0.2}}

    def __init__(self, task, config, seed, device="cpu"):
        if task.engine == "bullet":
            raise ValueError("toy needs no engine, and refuses 'bullet'; choices: flight, mujoco")
        self.task, self.config = task, config
        self.rng = np.random.default_rng(seed)
        sizes = {s.name: s.size for s in task.policy} | {"history": task.history * spec.size(task.commands)}
        self.inputs = sum(sizes[f.signal] for f in task.features)
        self.outputs = spec.size(task.commands)
        self.goal = self.rng.normal(size=(self.outputs, self.inputs)) / self.inputs
        self.weight = np.zeros((self.outputs, self.inputs))
        self.done = 0

    def learn(self):
        while self.done < self.config.updates:
            x = self.rng.normal(size=(16, self.inputs))
            error = x @ (self.weight - self.goal).T
            self.weight -= self.config.learning_rate * error.T @ x / len(x)
            self.done += 1
            if self.config.pause:
                time.sleep(self.config.pause)
            loss = float((error**2).mean()) if self.done != self.config.nan_at else float("nan")
            progress = self.done / self.config.updates
            yield {"progress": progress, "env_steps": 16 * self.done, "loss": loss, "success": 1.0 - min(loss, 1.0)}

    def controller(self):
        return FeaturePolicy.from_task(self.task, Mlp([(self.weight, np.zeros(self.outputs))]))

    def dump_to(self, folder):
        """A random search never diverges."""

    def state_dict(self):
        return {"weight": self.weight, "done": self.done, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.weight, self.done = state["weight"], state["done"]
        self.rng.bit_generator.state = state["rng"]


class Interrupted(Toy):
    """Presses Ctrl-C (or sends another signal) in the middle of update 7."""

    sent = signal.SIGINT

    def learn(self):
        for metrics in super().learn():
            if self.done == 7:
                os.kill(os.getpid(), self.sent)
            yield metrics


class Terminated(Interrupted):
    sent = signal.SIGTERM


class Spy(Toy):
    """Prints which modules are in memory when training begins."""

    def learn(self):
        # A list: another thread imports meanwhile.
        print("modules:", *sorted({name.partition(".")[0] for name in list(sys.modules)}))
        yield from super().learn()
