"""What a memory that forgets nothing makes of what is seen: where everything was last, carried along.

What lies in the camera's view, and behind nobody, is known as it is; all else as it was when it was last seen, moved on
at the speed that it had. It needs no pictures.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sim.env import Array
from sim.spec import Group, Signal
from sim.tasks.soccer.detection import hiding, shown, things

SLOWS = 0.97  # share of its speed that a thing out of sight is thought to keep, per control step
FADES = 0.9  # share of how well it is known, per control step
TRUTH = {"ball": ("ball_position", "ball_velocity")}  # signals of place and speed; others' are named as they are


def kinds(players: int) -> dict[str, int]:
    """What is remembered, and how many of each: of what a detector tells all but the goals, which stay."""
    return {name: count for name, count in things(players).items() if not name.endswith("goal")}


def signals(players: int) -> Group:
    """Of each kind where they are, how fast they are, and how well that is known (1: it is in view)."""
    return tuple(
        signal
        for name, count in kinds(players).items()
        for signal in (
            Signal(f"tracked_{name}", (2 * count,), "m", "body"),
            Signal(f"tracked_{name}_velocity", (2 * count,), "m/s", "body"),
            Signal(f"{name}_known", (count,), "1"),
        )
    )


def truth(kind: str) -> tuple[str, str]:
    """The signals that say where things of a kind really are, and how fast."""
    return TRUTH.get(kind, (kind, f"{kind}_velocity"))


def remembered(players: int) -> dict[str, str]:
    """Of each such signal the one that says what is remembered of it."""
    pairs = ((name, (f"tracked_{name}", f"tracked_{name}_velocity")) for name in kinds(players))
    return {true: told for name, both in pairs for true, told in zip(truth(name), both, strict=True)}


class Tracker:
    """The memories of `rows` robots with cameras that see `view` rad across; robots of `radius` hide what is behind."""

    def __init__(self, rows: int, players: int, view: float, radius: float, period: float) -> None:
        self.kinds, self._view, self._radius, self._period = kinds(players), view, radius, period
        count = sum(self.kinds.values())
        self._hides = hiding(self.kinds)
        self.places, self.speeds = (np.zeros((rows, count, 2), np.float32) for _ in range(2))  # m, m/s, "own"
        self.known = np.zeros((rows, count), np.float32)

    def begin(self, rows: NDArray[np.int64], seen: Mapping[str, Array]) -> None:
        """New games in these rows: all is known."""
        every = np.zeros(self.known.shape, bool)
        every[rows] = True
        self._see(every, seen)

    def step(self, seen: Mapping[str, Array], pan: Array) -> None:
        """A control step later, with the cameras at `pan` (rows,)."""
        self.places += self._period * self.speeds
        self.speeds *= np.float32(SLOWS)
        self.known *= np.float32(FADES)
        self._see(shown(self._truth(seen, 0), self._hides, pan, self._view, self._radius).there, seen)

    def _see(self, there: NDArray[np.bool_], seen: Mapping[str, Array]) -> None:
        """The things `there` (rows, things) are known."""
        turn = _axes(seen["heading"])
        places, speeds = seen["position"][:, None] + self._truth(seen, 0) @ turn, self._truth(seen, 1) @ turn
        self.places[there], self.speeds[there], self.known[there] = places[there], speeds[there], 1.0

    def _truth(self, seen: Mapping[str, Array], which: int) -> Array:
        """Places (0) or speeds (1) of all things (rows, things, 2), in the robot's axes."""
        names = [truth(name)[which] for name in self.kinds]
        return np.concatenate([seen[name].reshape(len(self.known), -1, 2) for name in names], axis=1)

    def told(self, seen: Mapping[str, Array]) -> dict[str, Array]:
        """The signals (rows, k), in the axes of who now is where `seen` says."""
        back = _axes(seen["heading"]).transpose(0, 2, 1)
        places = (self.places - seen["position"][:, None]) @ back
        speeds = self.speeds @ back
        made, first, rows = dict[str, Array](), 0, len(self.known)
        for name, count in self.kinds.items():
            some = slice(first, first + count)
            made[f"tracked_{name}"] = places[:, some].reshape(rows, -1)
            made[f"tracked_{name}_velocity"] = speeds[:, some].reshape(rows, -1)
            made[f"{name}_known"] = self.known[:, some]
            first += count
        return made

    def arrays(self) -> dict[str, Array]:
        """All that it knows."""
        return {"tracked_places": self.places, "tracked_speeds": self.speeds, "tracked_known": self.known}


def _axes(heading: Array) -> Array:
    """(rows, 2, 2): row vectors in a robot's axes times these are in those of its team."""
    cos, sin = heading[:, 0], heading[:, 1]
    turned: Array = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], axis=1)
    return turned
