"""A driver as people are at first: careful, late, and never quite steady. For demonstrations and offline data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sim.env import Array
from sim.experts.pursuit import pursuit

if TYPE_CHECKING:
    from sim.tasks.race import CarRace

# Ours. Slower than pure pursuit by a third: with grip and braking to spare for what the hand does wrong.
GRIP, BRAKING, FASTEST = 0.2, 1.5, 3.5  # share of the nominal friction in bends, m/s^2, m/s
NEAREST = 0.7  # m to the point that it steers for, at rest: a late hand cuts bends with a farther one
LAG = 0.1  # s: time constant of the hand, which follows what the eye wants
TREMBLE, PACE, LASTING = 0.03, 0.2, 0.4  # rad and m/s: standard deviation of its noise; s for which that lasts


class Human:
    """Commands for noise-free signals (n, k) of rows that go on from call to call; it remembers their hands.

    A row whose `lap` is not above zero begins anew; what it sees then is the seed of its noise.
    """

    def __init__(self, task: CarRace) -> None:
        self.task = task
        self._rng: list[np.random.Generator] = []

    def _begin(self, row: int, path: Array) -> None:
        self._rng[row] = rng = np.random.default_rng(np.ascontiguousarray(path, np.float32).view(np.uint32))
        self._noise[row] = rng.standard_normal(2)
        self._hand[row] = 0.0

    def __call__(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        num = len(signals["path"])
        anew = signals["lap"][:, 0] <= 0.0
        if num != len(self._rng):
            self._rng = [np.random.default_rng(0)] * num
            self._hand, self._noise, anew = np.zeros(num), np.zeros((num, 2)), np.full(num, True)
        for row in np.flatnonzero(anew).tolist():
            self._begin(row, signals["path"][row])
        wanted = pursuit(self.task, signals, GRIP, BRAKING, FASTEST, NEAREST)
        steer, speed = self.task.commands
        dt = 1.0 / self.task.rate_hz
        self._hand += (1.0 - math.exp(-dt / LAG)) * (wanted[steer.name][:, 0] - self._hand)
        kept = math.exp(-dt / LASTING)
        fresh = np.stack([rng.standard_normal(2) for rng in self._rng])
        self._noise = kept * self._noise + math.sqrt(1.0 - kept * kept) * fresh
        made = {
            steer.name: self._hand + TREMBLE * self._noise[:, 0],
            speed.name: wanted[speed.name][:, 0] + PACE * self._noise[:, 1],
        }
        return {s.name: np.clip(made[s.name], s.low, s.high).astype(np.float32)[:, None] for s in (steer, speed)}
