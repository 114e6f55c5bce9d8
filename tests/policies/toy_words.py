"""A point on a table that is told which of two corners to go to: the smallest task in words, for tests of learners."""

import tempfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from sim.env import Step
from sim.language import Instructions
from sim.language.folder import tokeniser
from sim.language.wordpiece import MOST
from sim.robots import Robot
from sim.spec import Signal
from tests.policies.language.tiny_bert import written

RATE, PIXELS = 10.0, 8
CORNERS = np.array([[0.7, 0.7], [-0.7, -0.7]], np.float32)
SAID = (
    Instructions("toy/open", ("open the drawer", "please open the drawer"), ("now open the drawer",)),
    Instructions("toy/close", ("close the drawer", "please close the drawer"), ("now close the drawer",)),
)


@cache
def kept():
    """The folder of the sentence encoder, until the tests end."""
    return tempfile.TemporaryDirectory()


@dataclass
class Config:
    steps: int = 12
    radius: float = 0.3


class ToyWords:
    """Signals `position` in m, `camera`, `instruction`; privileged the `goal`. Command `velocity` in m/s."""

    Config = Config
    name = "toy_words"
    robot = Robot("point")
    algorithm = "vla"
    engine, engines = "its own physics", {}
    rate_hz = RATE
    goal = ""
    commands = (Signal("velocity", (2,), "m/s", "world", -2.0, 2.0),)
    envelope = {}
    scores = {"success": "%"}
    corruption = {"velocity": 0.3}
    instructions = SAID

    def __init__(self, config=None):
        self.config = config or Config()
        self.episode_steps = self.config.steps
        last = float(len(self.words.vocabulary) - 1)
        self.policy = (
            Signal("position", (2,), "m", "world"),
            Signal("camera", (PIXELS, PIXELS, 3), "1", "", 0.0, 255.0, dtype="uint8"),
            Signal("instruction", (MOST,), "1", "", 0.0, last, max_age=3600.0, dtype="int64"),
        )
        self.privileged = (Signal("goal", (2,), "m", "world"),)
        self.looks = 0

    @property
    def encoder(self):
        return written(Path(kept().name))

    @cached_property
    def words(self):
        return tokeniser(self.encoder)

    def asked(self, episode, seed):
        return episode % len(SAID)

    def open(self, num, seed):
        return Table(self, num, seed)

    def expert(self, signals):
        return {"velocity": np.clip(4.0 * (signals["goal"] - signals["position"]), -2.0, 2.0).astype(np.float32)}

    def score(self, flight):
        return {"success": flight["success"][..., 0].any(axis=0).astype(np.float32)}


class ToyObjects(ToyWords):
    """The words mean one of two squares, which lie somewhere else in every episode; pictures alone show where."""

    name = "toy_objects"
    object_positions, target_positions = ("square_position",), ("goal_position",)

    def __init__(self, config=None):
        super().__init__(config)
        places = (("square_position", 6), ("goal_position", 3))
        self.privileged += tuple(Signal(name, (size,), "m", "world") for name, size in places)

    def open(self, num, seed):
        return Squares(self, num, seed)


class Table:
    def __init__(self, task, num, seed):
        self.task, self.num, self.seed = task, num, seed
        self.position, self.goal = np.zeros((2, num, 2), np.float32)
        self.said = np.zeros((num, MOST), np.int64)
        self.resting = np.ones(num, bool)
        self.drawn, self.moved = [], 0  # episodes that began; steps of rows that do not rest
        self.closed = False

    def reset(self, rows, episodes):
        for row, episode in zip(rows, episodes, strict=True):
            rng = np.random.default_rng([self.seed, episode])
            self.position[row] = rng.uniform(-0.3, 0.3, 2)
            self.goal[row] = CORNERS[self.task.asked(episode, self.seed)]
            sentence = SAID[self.task.asked(episode, self.seed)].draw(rng)
            self.said[row] = self.task.words.encode([sentence])[0][0]
            self.resting[row] = False
            self.drawn.append(episode)

    def rest(self, rows):
        self.resting[[*rows]] = True

    def truth(self):
        return {"position": self.position.copy(), "goal": self.goal.copy(), "instruction": self.said.copy()}

    def observe(self):
        if not any(s.is_picture for s in self.task.policy):
            return self.truth()
        self.task.looks += 1
        picture = np.zeros((self.num, PIXELS, PIXELS, 3), np.uint8)
        column, line = ((self.position + 1.0) / 2.0 * PIXELS).astype(int).clip(0, PIXELS - 1).T
        picture[np.arange(self.num), line, column] = 255
        return self.truth() | {"camera": picture}

    def step(self, command):
        self.moved += int((~self.resting).sum())
        speed = np.where(self.resting[:, None], 0.0, np.clip(command["velocity"], -2.0, 2.0))
        self.position = (self.position + speed / RATE).astype(np.float32)
        success = np.linalg.norm(self.goal - self.position, axis=1) < self.task.config.radius
        lost = np.abs(self.position).max(axis=1) > 2.0
        return Step(success.astype(np.float32), success & ~self.resting, lost & ~self.resting)

    def render(self, row, height, width):
        return np.full((height, width, 3), row, np.uint8)

    def close(self):
        self.closed = True


class Squares(Table):
    def __init__(self, task, num, seed):
        super().__init__(task, num, seed)
        self.squares = np.zeros((num, 2, 3), np.float32)

    def reset(self, rows, episodes):
        super().reset(rows, episodes)
        for row, episode in zip(rows, episodes, strict=True):
            off = np.random.default_rng([self.seed, episode, 1]).uniform(-0.25, 0.25, CORNERS.shape)
            self.squares[row, :, :2] = CORNERS + off
            self.goal[row] = self.squares[row, self.task.asked(episode, self.seed), :2]

    def truth(self):
        goal = np.pad(self.goal, ((0, 0), (0, 1)))
        return super().truth() | {"square_position": self.squares.reshape(self.num, 6), "goal_position": goal}

    def observe(self):
        seen = super().observe()
        for colour in range(2) if "camera" in seen else ():
            column, line = ((self.squares[:, colour, :2] + 1.0) / 2.0 * PIXELS).astype(int).clip(0, PIXELS - 1).T
            seen["camera"][np.arange(self.num), line, column, colour] = 255
        return seen
