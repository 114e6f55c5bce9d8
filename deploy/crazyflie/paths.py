"""Polynomials over time that a vehicle can follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


class Piece(NamedTuple):
    """Polynomials (4, 8) of x, y, z (m) and yaw (rad), lowest order first, over `duration` seconds."""

    duration: float
    coefficients: Matrix


class Goal(NamedTuple):
    """Rows of (x, y, z, yaw): place, its velocity and its acceleration."""

    place: Matrix
    velocity: Matrix
    acceleration: Matrix


def _powers(t: float, derivative: int) -> Matrix:
    row = np.zeros(8)
    for k in range(derivative, 8):
        row[k] = math.perm(k, derivative) * t ** (k - derivative)
    return row


def connect(duration: float, begin: Goal, end: Goal) -> Piece:
    """The polynomials of 7th order between two goals, without jerk at either."""
    rows = np.stack([_powers(t, d) for t in (0.0, duration) for d in range(4)])
    none = np.zeros(4)
    ends = np.stack([*begin, none, *end, none])
    return Piece(duration, np.linalg.solve(rows, ends).T.astype(np.float64))


@dataclass
class Path:
    """Pieces flown one after the other from `began` (s), slowed down by `scale` and moved by `shift`."""

    pieces: Sequence[Piece]
    began: float
    scale: float = 1.0
    backwards: bool = False
    shift: Matrix | None = None  # (4,), of x, y, z and yaw

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.scale * sum(piece.duration for piece in self.pieces)

    def at(self, now: float) -> Goal:
        """The goal at that time; before and after the path its ends, at rest after the end."""
        t = min(max(now - self.began, 0.0), self.duration)
        over = now - self.began >= self.duration
        along = (self.duration - t if self.backwards else t) / self.scale
        for piece in self.pieces[:-1]:
            if along <= piece.duration:
                break
            along -= piece.duration
        else:
            piece = self.pieces[-1]
        speed = (-1.0 if self.backwards else 1.0) / self.scale
        place, velocity, acceleration = (
            piece.coefficients @ _powers(min(along, piece.duration), d) * speed**d for d in range(3)
        )
        if self.shift is not None:
            place = place + self.shift
        return Goal(place, np.zeros(4), np.zeros(4)) if over else Goal(place, velocity, acceleration)


def spiral(
    begin: Matrix,
    sideways: bool,
    clockwise: bool,
    angle: float,
    radius: float,
    last_radius: float,
    climb: float,
    t: float,
) -> tuple[Piece, ...]:
    """From `begin` (x, y, z, yaw) through `angle` (rad) in t seconds while the radius (m) and the height change.

    The vehicle looks along the circle or, `sideways`, at its centre.
    """
    sense = -1.0 if clockwise else 1.0
    bearing = begin[3] + (math.pi if sideways else -sense * 0.5 * math.pi)  # from the centre to the vehicle
    centre = begin[:2] - radius * np.array([math.cos(bearing), math.sin(bearing)])
    spin, growth = sense * angle / t, (last_radius - radius) / t

    def at(share: float) -> Goal:
        r, turned = radius + share * growth * t, share * spin * t
        out = np.array([math.cos(bearing + turned), math.sin(bearing + turned)])
        along = spin * np.array([-out[1], out[0]])
        place = np.array([*(centre + r * out), begin[2] + share * climb, begin[3] + turned])
        velocity = np.array([*(r * along + growth * out), climb / t, spin])
        return Goal(place, velocity, np.array([*(2.0 * growth * along - r * spin**2 * out), 0.0, 0.0]))

    count = max(1, math.ceil(abs(angle) / (0.5 * math.pi)))
    return tuple(connect(t / count, at(k / count), at((k + 1) / count)) for k in range(count))
