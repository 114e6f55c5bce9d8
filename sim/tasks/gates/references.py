"""The time-optimal trajectories of some tracks, and where on them vehicles are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.env import Array
from sim.experts.gates import planned
from sim.scenes.gates import GateTrack

if TYPE_CHECKING:
    from sim.tasks.gates import QuadGateRace

EVERY, WINDOW = 0.01, 30  # s from one sample to the next; of how many the nearest is looked for
LEAD = 0.06  # s ahead of the nearest sample: how long a vehicle takes to turn its thrust


class References:
    """Of each track one, in samples; `nearest` (num,) are those where vehicles are."""

    def __init__(self, task: QuadGateRace, tracks: Sequence[GateTrack], behind: float) -> None:
        plans = [planned(task, track, behind) for track in tracks]
        self.times = np.array([plan.time[-1] for plan in plans])
        count = int(np.ceil((self.times.max() + LEAD) / EVERY)) + WINDOW
        when = EVERY * np.arange(count, dtype=np.float64)
        self._samples = np.stack([np.concatenate(plan.at(when), axis=1) for plan in plans]).astype(np.float32)
        ahead = [np.concatenate(plan.at(when + LEAD), axis=1) for plan in plans]
        self._samples[:, :, 6:] = np.stack(ahead)[:, :, 6:]
        self._last = count - WINDOW

    def advance(
        self, track: NDArray[np.int64], position: Array, rows: NDArray[np.int64], nearest: NDArray[np.int64]
    ) -> None:
        """Find `nearest` of these rows anew, at most `WINDOW` samples ahead of the last one, and never back."""
        near = np.minimum(nearest[rows, None] + np.arange(WINDOW), self._last)
        off = self._samples[track[rows, None], near, :3] - position[rows, None]
        nearest[rows] = near[np.arange(len(rows)), (off**2).sum(axis=-1).argmin(axis=1)]

    def told(self, track: NDArray[np.int64], nearest: NDArray[np.int64]) -> Array:
        """Position, velocity and acceleration (num, 9) there."""
        made: Array = self._samples[track, nearest]
        return made
