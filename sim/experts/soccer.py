"""Scripted football players: opponents to learn against, and experts to learn from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.env import Array
from sim.tasks.opponents import Play

if TYPE_CHECKING:
    from sim.tasks.soccer import Soccer

BEHIND = 0.3  # m: how far behind the ball it lines up
ASIDE = 0.12  # m: further off the line from the ball to the goal it lines up again
GAIN, TURN_GAIN = 4.0, 8.0  # 1/s, of the way and of the angle that is left
LINE, OFF = 0.05, 0.15  # m: how far a keeper stays off its goal line; further off that it drives back to it
COMING = 0.3  # m/s: what comes faster is met where it will cross that line
AIMED = 0.8  # cosine of the angle to the goal from which on it kicks


def still(task: Soccer, signals: Mapping[str, Array]) -> dict[str, Array]:
    """It does nothing."""
    count = len(signals["position"])
    return {s.name: np.zeros((count, *s.shape), np.float32) for s in task.moves}


def chaser(task: Soccer, signals: Mapping[str, Array], pace: float = 1.0) -> dict[str, Array]:
    """It drives behind the ball, pushes it towards the goal, and kicks when that is ahead."""
    ball, goal = signals["ball_position"], signals["goal"]
    way = goal - ball
    left = np.linalg.norm(way, axis=1, keepdims=True)
    ahead = way / np.maximum(left, 1e-6)
    along = (ball * ahead).sum(axis=1, keepdims=True)  # of the ball from here
    off = ball - along * ahead
    lined_up = (along > 0.0) & (np.linalg.norm(off, axis=1, keepdims=True) < ASIDE)
    beside = off / np.maximum(np.linalg.norm(off, axis=1, keepdims=True), 1e-6)
    around = np.where(along < 0.1, -0.25 * beside, 0.0)  # past the ball, not through it
    target = np.where(lined_up, ball, ball - BEHIND * ahead + around)
    distance = np.linalg.norm(target, axis=1, keepdims=True)
    angle = np.arctan2(target[:, 1:], target[:, :1])
    straight = np.cos(angle)
    speed = np.where(lined_up, task.robot.speed, GAIN * distance) * np.maximum(straight, 0.0) ** 2
    speed = pace * speed
    made = {"turn": TURN_GAIN * angle, "kick": (goal[:, :1] / np.maximum(np.linalg.norm(goal, axis=1), 1e-6)[:, None])}
    made["kick"] = np.where(made["kick"] > AIMED, 1.0, 0.0)
    aside = pace * GAIN * target[:, 1:] if task.robot.omni else speed[:, :0]
    made["drive"] = np.concatenate([speed, aside], axis=1)
    made["look"] = np.arctan2(ball[:, 1:], ball[:, :1])
    told = {s.name: made.get(s.name, np.zeros((len(ball), *s.shape))) for s in task.moves}
    return {s.name: np.clip(told[s.name], s.low, s.high).astype(np.float32) for s in task.moves}


def keeper(task: Soccer, signals: Mapping[str, Array]) -> dict[str, Array]:
    """It stays between the ball and its own goal, across, and moves along the goal line to where the ball comes."""
    (cos, sin), place = signals["heading"].T, signals["position"]
    turned = np.stack([np.stack([cos, -sin], axis=1), np.stack([sin, cos], axis=1)], axis=1)
    seen, moves = ((turned @ signals[name][:, :, None])[..., 0] for name in ("ball_position", "ball_velocity"))
    line = task.robot.radius + LINE - 0.5 * task.field.length
    ball, comes = place + seen, moves[:, 0] < -COMING
    time = np.maximum((line - ball[:, 0]) / np.where(comes, moves[:, 0], -1.0), 0.0)
    depth = line + 0.5 * task.field.length
    between = ball[:, 1] * depth / np.maximum(ball[:, 0] + 0.5 * task.field.length, depth)
    across = np.where(comes, ball[:, 1] + time * moves[:, 1], between)
    seen = signals["ball_position"]
    post = 0.5 * task.field.goal
    away = np.stack([line - place[:, 0], np.clip(across, -post, post) - place[:, 1]], axis=1)
    side = np.where(sin < 0.0, -1.0, 1.0)  # to which it looks: it drives backwards, too
    far = np.abs(away[:, 0]) > OFF
    aim = np.where(far[:, None], away, np.stack([2.0 * away[:, 0] * side * np.sign(away[:, 1]), side], axis=1))
    ahead, left = cos * aim[:, 0] + sin * aim[:, 1], cos * aim[:, 1] - sin * aim[:, 0]
    forward = np.where(far, np.hypot(*away.T) * (ahead > 0.0), away[:, 1] * sin)[:, None]
    made = {"turn": TURN_GAIN * np.arctan2(left, ahead)[:, None], "look": np.arctan2(seen[:, 1:], seen[:, :1])}
    made["drive"] = GAIN * np.concatenate([forward, np.zeros((len(place), task.moves[0].size - 1))], axis=1)
    told = {s.name: made.get(s.name, np.zeros((len(place), *s.shape))) for s in task.moves}
    return {s.name: np.clip(told[s.name], s.low, s.high).astype(np.float32) for s in task.moves}


class Scripted:
    """An opponent that remembers nothing; see `sim.tasks.opponents.Opponent`."""

    def __init__(self, play: Play) -> None:
        self.play = play

    def act(self, signals: Mapping[str, Array], episodes: Any, begun: Any) -> Mapping[str, Array]:
        return self.play(signals)

    def scored(self, rows: Any, against: Any) -> None:
        """It does not matter to it."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing."""


OPPONENTS: dict[str, Callable[[Any, Mapping[str, Array]], dict[str, Array]]] = {
    "still": still,
    "slow": functools.partial(chaser, pace=0.25),
    "slower": functools.partial(chaser, pace=0.5),
    "chaser": chaser,
    "keeper": keeper,
}
