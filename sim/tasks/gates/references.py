"""The time-optimal trajectories of some tracks, and where on them vehicles are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.engines.flight.gates import follow
from sim.env import Array
from sim.experts.gates import MARGIN, SHARE, Double, planned
from sim.experts.time_optimal import Trajectory, check_flyable
from sim.scenes.gates import GateTrack

if TYPE_CHECKING:
    from sim.tasks.gates import QuadGateRace

EVERY, WINDOW = 0.01, 30  # s from one sample to the next; of how many the nearest is looked for
# A point mass turns its thrust at once, a vehicle does not: what is followed is the mean of so many samples before and
# after, most of the nearest (Hann). It leaves the trajectory by 4 cm, at most 10, where that turns.
BLUR = 20
LEAD = 6  # samples ahead of the nearest: how long a vehicle takes to turn its thrust
LAST = 0.3  # s before the last gate, where the last vehicles begin that begin on it
# Gates that it passes after the last one. What ends there is flown straight at the end, and learners, who are told
# of gates ahead and not that the race is over, cannot know when: they learned a mean of both.
BEYOND = 2


class References:
    """Of each track one, in samples, planned when it is asked for; `nearest` (num,) are those where vehicles are.

    Longer ones than an episode are cut off. ValueError where one of the tracks cannot be flown.
    """

    def __init__(self, task: QuadGateRace, tracks: Sequence[GateTrack], behind: float) -> None:
        self.task, self.tracks, self.behind = task, tracks, behind
        self.times = np.full(len(tracks), np.nan)  # s, until the last gate; NaN: not yet planned
        for track in tracks:
            check_flyable(track, task.robot, task.radius, SHARE, MARGIN)
        gates = max(len(track.yaw) for track in tracks) * task.config.laps
        self._passes = np.full((len(tracks), gates), np.inf)  # s, when it passes them
        self._samples = np.zeros((0, 12), np.float32)  # of one track after the other, as they are planned
        self._first, self._last = np.zeros((2, len(tracks)), np.int64)  # of each: where its own begin, and its last one

    def plan(self, tracks: NDArray[np.int64]) -> None:
        """Those of these tracks, if they are not yet planned."""
        for k in np.unique(tracks):
            if np.isfinite(self.times[k]):
                continue
            found, pace = planned(self.task, self.tracks[k], self.behind, beyond=BEYOND), self.task.config.pace
            passes = found.time[found.gates[:-BEYOND]] / pace
            self.times[k], self._passes[k, : len(passes)] = passes[-1], passes
            last = min(math.ceil(found.time[-1] / pace / EVERY), self.task.episode_steps)
            position, velocity, push = _flown(found, pace, last + 1 + LEAD)
            jerk = np.gradient(push, EVERY, axis=0)
            made = np.concatenate([position[:-LEAD], velocity[:-LEAD], push[LEAD:], jerk[LEAD:]], axis=1)
            self._first[k], self._last[k] = len(self._samples), last
            self._samples = np.concatenate([self._samples, made.astype(np.float32)])

    def point(self, track: NDArray[np.int64], share: NDArray[np.float64]) -> tuple[NDArray[np.int64], ...]:
        """The sample after these shares (num,) of the time, and how many gates are passed by then."""
        when = share * (self.times[track] - LAST)
        nearest = np.minimum((when / EVERY).astype(np.int64), self._last[track])
        return nearest, (self._passes[track] < EVERY * nearest[:, None]).sum(axis=1)

    def advance(
        self, track: NDArray[np.int64], position: Array, rows: NDArray[np.int64], nearest: NDArray[np.int64]
    ) -> None:
        """Find `nearest` of these rows anew, less than `WINDOW` samples ahead of the last one, and never back.

        `position` (n, 3) is of these rows, the others are of all.
        """
        follow(position, rows, track, self._first, self._last, self._samples, WINDOW, nearest)

    def told(self, track: NDArray[np.int64], nearest: NDArray[np.int64]) -> Array:
        """Position, velocity, and, a little later, acceleration and jerk (num, 12) there."""
        made: Array = self._samples[self._first[track] + nearest]
        return made


def _flown(found: Trajectory, pace: float, count: int) -> tuple[Double, Double, Double]:
    """Position, velocity and acceleration (count, 3) of what is followed; behind its end it flies straight on."""
    when = pace * EVERY * np.arange(-BLUR, count + BLUR, dtype=np.float64)
    position, velocity, push = found.at(when)
    late = np.maximum(when - found.time[-1], 0.0)[:, None]
    position, push = position + late * velocity, np.where(late > 0.0, 0.0, push)
    velocity[when < 0.0], push[when < 0.0] = 0.0, 0.0
    weights = np.hanning(2 * BLUR + 3)[1:-1]
    weights /= weights.sum()
    around = np.lib.stride_tricks.sliding_window_view  # (count, 3, samples)
    position, velocity, push = (around(v, len(weights), axis=0) @ weights for v in (position, velocity, push))
    return position, pace * velocity, pace**2 * push
