"""What a detector tells of a picture: where things are, with its errors, late, and only of what it sees.

Instead of pixels (as Booster's T1 was trained: "Learning Agile Striker Skills for Humanoid Soccer Robots from Noisy
Sensory Input", Xu et al. 2025, arXiv 2512.06571). Errors grow with the distance and with how fast the camera turns;
some are the same for a whole game. `Errors` holds what was measured of a detector of our pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.env import Array
from sim.randomize import drawn, normal
from sim.spec import Group, Signal

HIDES = ("others", "mates")  # robots, which stand in front of things


@dataclass(frozen=True)
class Errors:
    """Of a detector. Standard deviations, and probabilities per picture.

    As measured of `python -m policies.train_detector out=detector.onnx`, seed 0: docs/results.md.
    """

    bearing: float = 0.043  # rad
    turning: float = 0.0003  # rad more, per rad/s by which the camera turns
    near: float = 0.10  # of the distance, as a share of it
    far: float = 0.006  # more of that share, per m
    missed: float = 0.003  # that something is not seen, which is there to be seen
    faint: float = 0.030  # more of that, per m
    imagined: float = 0.020  # that something is seen somewhere, which is not there to be seen
    aside: float = 0.006  # rad, of the bearing, for a whole game
    scale: float = 0.030  # of the distance, for a whole game


def things(players: int) -> dict[str, int]:
    """What is told of, and how many of each."""
    mates = {"mates": players - 1} if players > 1 else {}
    return {"ball": 1, "goal": 1, "own_goal": 1, "others": players, **mates}


def signals(players: int) -> Group:
    """Of each thing 1 if it is seen, how far to the left of the picture's middle (rad), and how far away (m).

    Three zeros where it is not seen. Of several of a kind nobody knows who is who: the nearest comes first.
    """
    return tuple(Signal(f"seen_{name}", (3 * count,), "1", "camera") for name, count in things(players).items())


def hiding(counts: Mapping[str, int]) -> NDArray[np.bool_]:
    """Which of all things (things,), so many of each kind, hide others."""
    return np.repeat([name in HIDES for name in counts], [*counts.values()])


def places(seen: Mapping[str, Array], half_length: float) -> tuple[Array, NDArray[np.bool_]]:
    """Where all things are (n, things, 2) in the robot's axes, from its view; and which of them hide others."""
    cos, sin = seen["heading"].T
    own_goal = seen["goal"] + 2.0 * half_length * np.stack([-cos, sin], axis=1)
    known = {**seen, "ball": seen["ball_position"], "own_goal": own_goal}
    counts = things(seen["others"].shape[1] // 2)
    found = [known[name].reshape(len(cos), -1, 2) for name in counts]
    return np.concatenate(found, axis=1), hiding(counts)


class Shown(NamedTuple):
    """Of all things (n, things): whether they are in the picture and nobody stands before them; bearing (rad) in it and
    distance (m), also of what is not.
    """

    there: NDArray[np.bool_]
    bearing: Array
    distance: Array


def shown(places: Array, hides: NDArray[np.bool_], pan: Array, view: float, radius: float) -> Shown:
    """What a camera turned by `pan` (n,), that sees `view` rad across, has before it: `places` (n, things, 2)."""
    distance = np.linalg.norm(places, axis=-1)
    bearing = _wrapped(np.arctan2(places[..., 1], places[..., 0]) - pan[:, None])
    return Shown((np.abs(bearing) < view / 2.0) & ~_hidden(places, distance, hides, radius), bearing, distance)


def ranked(told: Array, counts: Sequence[int]) -> Array:
    """What is told (n, things, 3), of each kind what is seen first, and of that the nearest."""
    made, first = told.copy(), 0
    for count in counts:
        some = told[:, first : first + count]
        order = np.lexsort((some[..., 2], -some[..., 0]), axis=1) if count > 1 else np.zeros(some.shape[:2], np.int64)
        made[:, first : first + count] = np.take_along_axis(some, order[..., None], axis=1)
        first += count
    return made


class Detector:
    """What `rows` robots with cameras are told of things, each game's `late` control steps late, at most `latency`."""

    def __init__(
        self, rows: int, counts: Sequence[int], view: float, radius: float, errors: Errors, latency: int
    ) -> None:
        """`counts`: how many of each kind; `view`: what a camera sees across, in rad; `radius`: in m, of what hides."""
        self.errors, self._counts, self._view, self._radius = errors, tuple(counts), view, radius
        self.seeds, self.steps = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
        self._told = np.zeros((latency + 1, rows, sum(counts), 3), np.float32)  # the newest first
        self.late = np.full(rows, latency, np.int64)  # control steps

    @property
    def told(self) -> Array:
        """Now (rows, things, 3): 1 where something is seen, its bearing (rad) and distance (m); else zeros."""
        told: Array = self._told[self.late, np.arange(len(self.late))]
        return told

    def begin(self, rows: NDArray[np.int64], seeds: Any, places: Array, hides: NDArray[np.bool_], pan: Array) -> None:
        """New games in these rows; `places` (all rows, things, 2), which of them hide others, `pan` (all rows,)."""
        self.seeds[rows], self.steps[rows] = seeds, 0
        now = self._seen(places, hides, pan, np.zeros(len(pan), np.float32))
        self._told = self._told.copy()
        self._told[:, rows] = now[rows]

    def step(self, places: Array, hides: NDArray[np.bool_], pan: Array, turning: Array) -> None:
        """A control step later; `turning` (rows,) is how fast the camera turns, in rad/s."""
        self.steps += 1
        self._told = np.concatenate([self._seen(places, hides, pan, turning)[None], self._told[:-1]])

    def _seen(self, places: Array, hides: NDArray[np.bool_], pan: Array, turning: Array) -> Array:
        errors, n, k = self.errors, len(places), sum(self._counts)
        there, bearing, distance = shown(places, hides, pan, self._view, self._radius)
        u = drawn(self.seeds, self.steps, 6 * k).reshape(n, 6, k)
        whole = drawn(self.seeds, np.full(n, 1 << 40), 4)
        there = there & (u[:, 0] >= np.minimum(errors.missed + errors.faint * distance, 0.95))
        spread = errors.bearing + errors.turning * np.abs(turning)[:, None]
        bearing = bearing + spread * normal(u[:, 1], u[:, 2]) + errors.aside * normal(whole[:, :1], whole[:, 1:2])
        share = (errors.near + errors.far * distance) * normal(u[:, 3], u[:, 4])
        distance = distance * np.exp(share + errors.scale * normal(whole[:, 2:3], whole[:, 3:4]))
        false = ~there & (u[:, 5] < errors.imagined)
        bearing = np.where(false, (u[:, 1] - 0.5) * self._view, bearing)
        distance = np.where(false, 0.2 + 4.0 * u[:, 3], distance)
        told = np.stack([np.ones_like(bearing), bearing, distance], axis=-1)
        return ranked(told.astype(np.float32) * (there | false)[..., None], self._counts)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that the next answers depend on."""
        return {
            "detector_seeds": self.seeds,
            "detector_steps": self.steps,
            "detector_told": self._told,
            "detector_late": self.late,
        }


def _hidden(places: Array, distance: Array, hides: NDArray[np.bool_], radius: float) -> NDArray[np.bool_]:
    """Which things (n, k) somebody stands in front of."""
    found = np.zeros(distance.shape, bool)
    for other in np.flatnonzero(hides):
        away = np.maximum(distance, 1e-6)
        along = (places * places[:, other, None]).sum(-1) / away
        off = np.abs(places[..., 0] * places[:, other, None, 1] - places[..., 1] * places[:, other, None, 0]) / away
        covers = (along > 0.0) & (along < distance - radius) & (off < radius)
        covers[:, other] = False
        found |= covers
    return found


def _wrapped(angle: Array) -> Array:
    wrapped: Array = (angle + np.pi) % (2.0 * np.pi) - np.pi
    return wrapped
