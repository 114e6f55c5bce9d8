"""What a detector of gates tells of the pictures of a camera on the vehicle: with its errors, late, and only what it
sees.

Instead of pixels: where in the picture the corners of an opening are. How large it looks says how far away it is, as
its size is known. Gates carry numbers, so nobody takes one for another; each picture is told of the gate that is next
when it is taken, and of the one after that. A gate is seen when all corners of its opening are in the picture and all
of its sides look long enough. Frames hide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.sight.lens import Lens
from sim.engines.sight.openings import CHANCES, openings
from sim.env import Array
from sim.randomize import drawn, normal
from sim.spec import Signal

AHEAD = 2  # gates that are told of
MAPPED = ("next_gate", "gate_after")  # where they are, to whom a map tells that
SEEN = ("seen_next_gate", "seen_gate_after")
EVERY = 2  # control steps from one picture to the next
LATE, USUAL = (2, 4), 3  # control steps after which something is told of a picture; where nothing varies
# Corners (m, in the body's axes) in their directions, all as far away as the opening's size says; zeros where a gate is
# not seen, and whether each is.
SIGNALS = (*(Signal(name, (12,), "m", "body") for name in SEEN), Signal("gates_seen", (AHEAD,), "1", "", 0.0, 1.0))


@dataclass(frozen=True)
class Errors:
    """Of a camera and its detector, in pixels of its lens. Ours: no detector was measured."""

    corner: float = 1.0  # pixels, of each corner in each picture (standard deviation)
    missed: float = 0.05  # probability per picture that a gate is not seen, which is there to be seen
    least: float = 6.0  # pixels, that a gate's sides must look long
    mount: float = 0.01  # rad, by which the camera is turned around each axis for a whole flight (standard deviation)


class GateDetector:
    """What `rows` vehicles are told of gates, each row's `late` control steps late.

    `lens` looks ahead along the body's x axis, tilted as it says; `noise` scales all errors.
    """

    def __init__(self, rows: int, lens: Lens, errors: Errors, noise: float) -> None:
        self.lens, self.errors, self.noise = lens, errors, noise
        self.seeds, self.steps = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
        self.late = np.full(rows, USUAL, np.int64)
        self.mount = np.zeros((rows, 3), np.float32)  # rad
        self._told = np.zeros((LATE[1] + 1, rows, AHEAD, 13), np.float32)  # the newest first: seen or not, the corners
        tilt = np.radians(lens.tilt)  # below the horizon
        cos, sin = np.cos(tilt), np.sin(tilt)
        self.axes = np.array([[cos, 0.0, sin], [0.0, 1.0, 0.0], [-sin, 0.0, cos]])  # the camera's in columns, body

    @property
    def told(self) -> dict[str, Array]:
        """The signals (rows, k) now."""
        now = self._told[self.late, np.arange(len(self.late))]
        return {**{name: now[:, k, 1:] for k, name in enumerate(SEEN)}, "gates_seen": now[:, :, 0]}

    def begin(self, rows: NDArray[np.int64], seeds: NDArray[np.uint64], corners: Array, size: Array) -> None:
        """New flights in these rows, of which are `corners` (n, AHEAD, 4, 3), m, body; `size` (n, AHEAD, 2), m."""
        self.seeds[rows], self.steps[rows] = seeds, 0
        u = drawn(seeds, np.full(len(rows), 1 << 40), 7)
        varied = LATE[0] + (u[:, 6] * (LATE[1] - LATE[0] + 1)).astype(np.int64)
        self.late[rows] = varied if self.noise else USUAL
        self.mount[rows] = self.noise * self.errors.mount * normal(u[:, :3], u[:, 3:6])
        self._told[:, rows] = self._seen(rows, corners, size)

    def step(self, corners: Array, size: Array) -> None:
        """A control step later, of all rows."""
        self.steps += 1
        now, due = self._told[0].copy(), np.flatnonzero(self.steps % EVERY == 0)
        if len(due):
            now[due] = self._seen(due, corners[due], size[due])
        self._told = np.concatenate([now[None], self._told[:-1]])

    def _seen(self, rows: NDArray[np.int64], corners: Array, size: Array) -> Array:
        """What a picture that is taken now in these rows tells (n, AHEAD, 13)."""
        n, errors, pixel = len(rows), self.errors, 1.0 / self.lens.focal
        chance = drawn(self.seeds[rows], self.steps[rows], CHANCES * AHEAD).reshape(n, AHEAD, CHANCES)
        wide = np.tan(np.radians(self.lens.view) / 2.0)
        edge = wide * np.array([1.0, self.lens.height / self.lens.width])
        made = np.empty((n, AHEAD, 13), np.float32)
        how = errors.least * pixel, self.noise * errors.corner * pixel, self.noise * errors.missed
        openings(corners, size, self.mount[rows], self.axes, chance, edge, *how, made)
        return made

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that the next answers depend on."""
        return {
            "detector_seeds": self.seeds,
            "detector_steps": self.steps,
            "detector_late": self.late,
            "detector_mount": self.mount,
            "detector_told": self._told,
        }
