"""Two players push a ball towards each other's end of a small pitch, by numbers or seen by a camera."""

from dataclasses import dataclass

import numpy as np

from sim.env import Step, outcome_scores
from sim.robots import Robot
from sim.spec import Signal

LENGTH, WIDTH = 1.0, 0.6  # m from the middle to the ends and sides
REACH = 0.15  # m between the centres of a player and the ball when they touch
SPEED = 1.0  # m/s, of a player at most
PIXELS = 16
OWN = np.array([[1.0], [-1.0]])  # each player's x axis points to the other's end: one policy plays both sides


@dataclass
class GameConfig:
    camera: bool = False  # ball and players are seen in a picture alone
    steps: int = 200  # of an episode at most, at 20 Hz


class BallGame:
    """Success: the ball has crossed the other's end line."""

    Config, name, robot = GameConfig, "ball_game", Robot("disc")
    algorithm, engine, engines = "ppo", "its own physics", {}
    agents, teams = 2, (0, 1)
    rate_hz = 20.0
    commands = (Signal("velocity", (2,), "m/s", "own", -SPEED, SPEED),)
    envelope = {"safe": {"velocity": [0.0, 0.0]}}
    scores = {"success": "%", "duration": "s"}
    goal = ""

    def __init__(self, config=None):
        self.config = config or GameConfig()
        self.episode_steps = self.config.steps
        names = ("own_position", "other_position", "ball_position")
        places = tuple(Signal(name, (2,), "m", "own") for name in names)
        moving = (Signal("ball_velocity", (2,), "m/s", "own"),)
        camera = (Signal("camera", (PIXELS, PIXELS, 3), "1", "", 0.0, 255.0, dtype="uint8"),)
        self.policy, self.privileged = (camera, places + moving) if self.config.camera else (places + moving, ())

    def open(self, num, seed):
        return Pitch(self, num, seed)

    def score(self, flight):
        return outcome_scores(flight, self.rate_hz)


class Pitch:
    """num / 2 pitches; rows 2 k and 2 k + 1 are the two players of pitch k."""

    def __init__(self, task, num, seed):
        self.task, self.num, self.seed = task, num, seed
        self.player = np.zeros((num // 2, 2, 2))
        self.ball, self.velocity = np.zeros((2, num // 2, 2))
        self.won = np.zeros((num // 2, 2), bool)

    def reset(self, rows, episodes):
        for row, episode in zip(rows[::2], episodes[::2], strict=True):
            rng, pitch = np.random.default_rng([self.seed, episode]), row // 2
            side = rng.uniform((0.3, -0.4), (0.8, 0.4), (2, 2))
            self.player[pitch], self.ball[pitch] = -side * OWN, rng.uniform(-0.2, 0.2, 2)
            self.velocity[pitch], self.won[pitch] = 0.0, False

    def observe(self):
        own, other, ball = (p * OWN for p in (self.player, self.player[:, ::-1], self.ball[:, None]))
        seen = {"own_position": own, "other_position": other, "ball_position": ball}
        seen = {**seen, "ball_velocity": self.velocity[:, None] * OWN}
        seen = {name: value.reshape(self.num, 2).astype(np.float32) for name, value in seen.items()}
        return {**seen, "camera": drawn(seen, PIXELS, PIXELS)} if self.task.config.camera else seen

    truth = observe

    def step(self, command):
        told = np.clip(command["velocity"], -SPEED, SPEED).reshape(-1, 2, 2) * OWN
        told[self.won.any(axis=1)] = self.velocity[self.won.any(axis=1)] = 0.0  # the game is over
        before, limit = self.ball[:, 0].copy(), np.array([LENGTH, WIDTH])
        self.player = np.clip(self.player + told / self.task.rate_hz, -limit, limit)
        for k in range(2):
            away = self.ball - self.player[:, k]
            distance = np.linalg.norm(away, axis=1, keepdims=True)
            touched, along = distance < REACH, away / np.maximum(distance, 1e-6)
            faster = ((told[:, k] - self.velocity) * along).sum(axis=1, keepdims=True)
            self.velocity += np.where(touched, np.maximum(faster, 0.0) * along, 0.0)
            self.ball += np.where(touched, (REACH - distance) * along, 0.0)
        self.ball += self.velocity / self.task.rate_hz
        bounced = np.abs(self.ball[:, 1]) > WIDTH
        self.velocity *= np.where(bounced[:, None], (0.95, -0.95), 0.95)
        self.ball[:, 1] = np.clip(self.ball[:, 1], -WIDTH, WIDTH)
        self.won = np.stack([self.ball[:, 0] > LENGTH, self.ball[:, 0] < -LENGTH], axis=1)
        gain = (self.ball[:, 0] - before)[:, None] * OWN[:, 0] + self.won - self.won[:, ::-1]
        near = np.linalg.norm(self.ball[:, None] - self.player, axis=2)
        reward = (gain - 0.01 * near).astype(np.float32)
        return Step(reward.ravel(), self.won.ravel(), self.won[:, ::-1].ravel())

    def render(self, row, height, width):
        return drawn({name: value[row : row + 1] for name, value in self.observe().items()}, height, width)[0]

    def close(self):
        pass


def drawn(seen, height, width):
    """Pictures (n, height, width, 3) from above: the player itself red, the ball green, the other one blue."""
    x, y = np.linspace(-LENGTH, LENGTH, width), np.linspace(LENGTH, -LENGTH, height)[:, None]
    places = np.stack([seen[name] for name in ("own_position", "ball_position", "other_position")], axis=-1)
    off = (x[:, None] - places[:, None, None, 0]) ** 2 + (y[..., None] - places[:, None, None, 1]) ** 2
    return (30.0 + 225.0 * np.exp(-off / 0.02)).astype(np.uint8)
