"""Drive a small car to a point: a kinematic bicycle, in a world of its own."""

from dataclasses import dataclass

import numpy as np

from sim.env import Step, outcome_scores
from sim.robots import Robot
from sim.spec import Signal

BASE = 0.3  # m between the axles


@dataclass
class CarConfig:
    steps: int = 80  # of an episode at most, at 20 Hz


class Car:
    """Success: within 0.2 m of the goal."""

    Config, name, robot = CarConfig, "car", Robot("bicycle")
    algorithm, engine, engines = "ppo", "its own physics", {}
    rate_hz = 20.0
    policy = (
        Signal("position", (2,), "m", "world"),
        Signal("heading", (2,), "1", "world"),  # cosine and sine
        Signal("goal_position", (2,), "m", "world"),
    )
    privileged = ()
    commands = (Signal("speed", (1,), "m/s", "", 0.0, 2.0), Signal("steering", (1,), "rad", "", -0.5, 0.5))
    envelope = {"safe": {"speed": [0.0], "steering": [0.0]}}
    scores = {"success": "%", "duration": "s"}
    goal = "goal_position"
    corruption = {"goal_position": 0.2, "steering": 0.1}

    def __init__(self, config=None):
        self.config = config or CarConfig()
        self.episode_steps = self.config.steps

    def open(self, num, seed):
        return Ground(self, num, seed)

    def expert(self, signals):
        away = signals["goal_position"] - signals["position"]
        ahead = (away * signals["heading"]).sum(axis=1, keepdims=True)
        left = signals["heading"][:, :1] * away[:, 1:] - signals["heading"][:, 1:] * away[:, :1]
        steering = np.clip(2.0 * np.arctan2(left, ahead), -0.5, 0.5)
        return {"speed": np.full_like(steering, 1.0), "steering": steering}

    def score(self, flight):
        return outcome_scores(flight, self.rate_hz)


class Ground:
    """`num` flat places with a car and a goal."""

    def __init__(self, task, num, seed):
        self.task, self.num, self.seed = task, num, seed
        self.pose, self.goal = np.zeros((num, 3)), np.zeros((num, 2))

    def reset(self, rows, episodes):
        for row, episode in zip(rows, episodes, strict=True):
            rng = np.random.default_rng([self.seed, episode])
            self.pose[row], self.goal[row] = (0.0, 0.0, rng.uniform(-np.pi, np.pi)), rng.uniform(-2.0, 2.0, 2)

    def observe(self):
        heading = np.stack([np.cos(self.pose[:, 2]), np.sin(self.pose[:, 2])], axis=1)
        seen = {"position": self.pose[:, :2], "heading": heading, "goal_position": self.goal}
        return {name: value.astype(np.float32) for name, value in seen.items()}

    truth = observe

    def step(self, command):
        speed, steering = (np.clip(command[s.name][:, 0], s.low, s.high) for s in self.task.commands)
        turn = speed * np.tan(steering) / BASE
        along = speed[:, None] * self.observe()["heading"]
        self.pose += np.concatenate([along, turn[:, None]], axis=1) / self.task.rate_hz
        distance = np.linalg.norm(self.pose[:, :2] - self.goal, axis=1)
        return Step(-distance.astype(np.float32), distance < 0.2, distance > 10.0)

    def render(self, row, height, width):
        picture = np.full((height, width, 3), 230, np.uint8)
        for (x, y), colour in ((self.goal[row], (30, 150, 60)), (self.pose[row, :2], (40, 90, 200))):
            up, right = int(height * (0.5 - y / 8.0)), int(width * (0.5 + x / 8.0))
            picture[max(up - 3, 0) : up + 3, max(right - 3, 0) : right + 3] = colour
        return picture

    def close(self):
        pass
