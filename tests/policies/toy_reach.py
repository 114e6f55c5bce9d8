"""A point that must be brought to a goal in a plane: the smallest manipulation task, for tests of learners."""

from dataclasses import dataclass

import numpy as np

from sim.env import Step
from sim.robots import Robot
from sim.spec import Signal

RATE = 10.0


@dataclass
class Config:
    steps: int = 24
    radius: float = 0.1


class ToyReach:
    """Signals `position` and `goal` in m, command `velocity` in m/s."""

    Config = Config
    name = "toy_reach"
    robot = Robot("point")
    algorithm = "diffusion"
    engine, engines = "its own physics", {}
    rate_hz = RATE
    policy = (Signal("position", (2,), "m", "world"), Signal("goal", (2,), "m", "world"))
    privileged = ()
    goal = "goal"
    commands = (Signal("velocity", (2,), "m/s", "world", -1.0, 1.0),)
    envelope = {}
    scores = {"success": "%", "distance": "m"}
    corruption = {"goal": 0.25, "velocity": 0.3}

    def __init__(self, config=None):
        self.config = config or Config()
        self.episode_steps = self.config.steps
        self.opened = 0

    def open(self, num, seed):
        self.opened += 1
        return Cell(self, num, seed)

    def expert(self, signals):
        return {"velocity": np.clip(4.0 * (signals["goal"] - signals["position"]), -1.0, 1.0).astype(np.float32)}

    def score(self, flight):
        reached = flight["success"][..., 0].any(axis=0)
        distance = np.linalg.norm(flight["goal"][-1] - flight["position"][-1], axis=-1)
        return {"success": reached.astype(np.float32), "distance": distance.astype(np.float32)}


class Cell:
    def __init__(self, task, num, seed):
        self.task, self.num, self.seed = task, num, seed
        self.position, self.goal = np.zeros((num, 2), np.float32), np.zeros((num, 2), np.float32)
        self.closed = False

    def reset(self, rows, episodes):
        for row, episode in zip(rows, episodes, strict=True):
            drawn = np.random.default_rng([self.seed, episode]).uniform(-1.0, 1.0, (2, 2))
            self.position[row], self.goal[row] = drawn

    def observe(self):
        return {"position": self.position.copy(), "goal": self.goal.copy()}

    def truth(self):
        return self.observe()

    def step(self, command):
        self.position = self.position + np.clip(command["velocity"], -1.0, 1.0) / np.float32(RATE)
        success = np.linalg.norm(self.goal - self.position, axis=1) < self.task.config.radius
        lost = np.abs(self.position).max(axis=1) > 2.0
        return Step(success.astype(np.float32), success, lost)

    def render(self, row, height, width):
        return np.full((height, width, 3), row, np.uint8)

    def close(self):
        self.closed = True
