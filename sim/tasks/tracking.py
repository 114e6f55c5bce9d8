"""What a robot knows of where things are, kept as vectors in its own axes: how they change while it moves.

As a filter predicts (ego-motion compensation): points go backwards as the robot goes ahead, and around it as it turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
KINDS = ("points", "heading", "place")


@dataclass(frozen=True)
class Track:
    """A privileged signal of vectors in a plane that can be remembered: (2 k,), x and y of each.

    "points" are m, in the body's axes; `velocity` names the signal of their velocities (m/s, body's axes), if they
    move. "heading" is the robot's own direction in the world: cosine, sine. "place", where it is there, is not
    predicted: seldom is it far from where it was.
    """

    signal: str
    velocity: str = ""
    kind: str = "points"  # points | heading | place

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Track({self.signal!r}): kind {self.kind!r} is not one of {', '.join(KINDS)}")


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
        self.turns = np.ones(self.size, np.float32)  # 0: the robot's turning does not matter to it
        self.moved[:, : self.size] = np.eye(self.size)
        for track in tracks:
            for name in (track.signal, track.velocity) if track.velocity else (track.signal,):
                self.turns[starts[name] : starts[name] + sizes[name]] = track.kind != "place"
                for at in range(starts[name], starts[name] + sizes[name], 2):
                    sign = {"points": 1.0, "heading": -1.0, "place": 0.0}[track.kind]
                    self.turned[at, at + 1], self.turned[at + 1, at] = sign, -sign
            for k in range(sizes[track.signal] if track.kind == "points" else 0):
                self.moved[starts[track.signal] + k, self.size + k % 2] = -dt
                if track.velocity:
                    self.moved[starts[track.signal] + k, starts[track.velocity] + k] = dt

    def carried(self, known: Array, velocity: Array, turning: Array) -> Array:
        """The vectors (n, size) a step later; the robot's velocity (n, 2) in m/s, body's axes, and turning (n, 1)."""
        half = np.float32(0.5) * self.dt * turning
        sine, less = self.turning(half)
        moved = np.concatenate([known, velocity], axis=1) @ self.moved.T
        once: Array = moved - less * self.turns * moved + sine * (moved @ self.turned.T)
        return once

    def turning(self, half: Any) -> tuple[Any, Any]:
        """Sine, and one minus the cosine, of an angle, from the tangent of its half; of arrays and tensors."""
        share = 1.0 / (1.0 + half * half)
        return 2.0 * half * share, 2.0 * half * half * share
