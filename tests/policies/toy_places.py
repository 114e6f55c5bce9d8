"""A world whose agents come and go; what empty places show is rubbish, and must not matter."""

from dataclasses import dataclass

import numpy as np

from sim.env import Step, outcome_scores
from sim.robots import Robot
from sim.spec import Signal

STAY, AWAY = 7, 3  # control steps


@dataclass
class PlacesConfig:
    rubbish: int = 0  # seed of what empty places show and earn
    steps: int = 40


class ToyPlaces:
    """Whoever is there is rewarded for an action near what he sees."""

    Config, name, robot = PlacesConfig, "toy_places", Robot("point")
    algorithm, engine, engines = "ppo", "its own", {}
    agents, teams, present = 3, (0, 0, 0), "there"
    rate_hz = 10.0
    policy = (Signal("wanted", (1,)),)
    privileged = (Signal("there", (1,), low=0.0, high=1.0),)
    commands = (Signal("made", (1,), low=-1.0, high=1.0),)
    envelope, scores, goal = {}, {"success": "%", "duration": "s"}, ""

    def __init__(self, config=None):
        self.config = config or PlacesConfig()
        self.episode_steps = self.config.steps

    def open(self, num, seed):
        return Places(self, num, seed)

    def score(self, flight):
        return outcome_scores(flight, self.rate_hz)


class Places:
    def __init__(self, task, num, seed):
        self.task, self.num, self.seed = task, num, seed
        self.time, self.episode = np.zeros(num, int), np.zeros(num, int)
        self.rubbish = np.random.default_rng(task.config.rubbish)
        self.wanted = np.zeros((num, 1), np.float32)

    def there(self):
        return (self.time + 4 * np.arange(self.num)) % (STAY + AWAY) < STAY

    def look(self):
        now = zip(self.episode, range(self.num), self.time, strict=True)
        drawn = np.array([[np.random.default_rng([self.seed, *when]).uniform(-0.8, 0.8)] for when in now], np.float32)
        rubbish = self.rubbish.normal(0.0, 100.0, (self.num, 1)).astype(np.float32)
        self.wanted = np.where(self.there()[:, None], drawn, rubbish)

    def reset(self, rows, episodes):
        for row, episode in zip(rows, episodes, strict=True):
            self.time[row], self.episode[row] = 0, episode
        self.look()

    def observe(self):
        return {"wanted": self.wanted.copy(), "there": self.there()[:, None].astype(np.float32)}

    truth = observe

    def step(self, command):
        there, missed = self.there(), (command["made"] - self.wanted)[:, 0]
        self.time += 1
        self.look()
        reward = np.where(there, -(missed**2), self.rubbish.normal(0.0, 100.0, self.num)).astype(np.float32)
        return Step(reward, np.zeros(self.num, bool), np.zeros(self.num, bool))

    def render(self, row, height, width):
        return np.zeros((height, width, 3), np.uint8)

    def close(self):
        pass
