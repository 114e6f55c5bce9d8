"""What a robot knows of where things are, kept as vectors in its own axes: how they change while it moves.

As a filter predicts (ego-motion compensation): points go backwards as the robot goes ahead, and around it as it turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Track:
    """A privileged signal of vectors in a plane that can be remembered: (2 k,), x and y of each.

    "points" are m, in the body's axes; `velocity` names the signal of their velocities (m/s, body's axes), if they
    move. "heading" is the robot's own direction in the world: cosine, sine.
    """

    signal: str
    velocity: str = ""
    heading: bool = False


class EgoMotion:
    """The vectors of some tracks, one after the other, each followed by its velocities; how they are in the next step.

    q = b + dt velocities - dt (the robot's own velocity), then turned back by the angle that it has turned. All is
    linear but for that angle, whose tangent stands for it. `names`: the signals, in that order.
    """

    def __init__(self, tracks: Sequence[Track], sizes: Mapping[str, int], dt: float) -> None:
        """`sizes` of the signals by name; `dt` in s."""
        self.names = tuple(name for track in tracks for name in (track.signal, track.velocity) if name)
        self.dt, self.size = np.float32(dt), sum(sizes[name] for name in self.names)
        starts = dict(zip(self.names, np.cumsum([0, *(sizes[name] for name in self.names)]).tolist(), strict=False))
        self.moved = np.zeros((self.size, self.size + 2), np.float32)  # q = moved @ (b, the robot's velocity)
        self.turned = np.zeros((self.size, self.size), np.float32)  # a quarter turn back
        self.moved[:, : self.size] = np.eye(self.size)
        for track in tracks:
            for name in (track.signal, track.velocity) if track.velocity else (track.signal,):
                for at in range(starts[name], starts[name] + sizes[name], 2):
                    sign = -1.0 if track.heading else 1.0
                    self.turned[at, at + 1], self.turned[at + 1, at] = sign, -sign
            for k in range(0 if track.heading else sizes[track.signal]):
                self.moved[starts[track.signal] + k, self.size + k % 2] = -dt
                if track.velocity:
                    self.moved[starts[track.signal] + k, starts[track.velocity] + k] = dt

    def carried(self, known: Array, velocity: Array, turning: Array) -> Array:
        """The vectors (n, size) a step later; the robot's velocity (n, 2) in m/s, body's axes, and turning (n, 1)."""
        half = np.float32(0.5) * self.dt * turning
        square = half * half
        moved = np.concatenate([known, velocity], axis=1) @ self.moved.T
        once: Array = ((1 - square) * moved + (half + half) * (moved @ self.turned.T)) / (1 + square)
        return once
