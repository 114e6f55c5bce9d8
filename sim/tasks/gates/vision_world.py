"""Races of quadrotors with cameras: those of `sim.tasks.gates.world`, told what a detector sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.env import Array
from sim.tasks.gates.detection import AHEAD, MAPPED, GateDetector
from sim.tasks.gates.world import GateRace

if TYPE_CHECKING:
    from sim.tasks.gates.vision import QuadGateRaceVision

CAMERA = 2  # an episode's stream of random numbers, after those of `sim.tasks.gates.world`


class GateRaceVision(GateRace):
    """The same races; vehicles are told what a detector sees."""

    task: QuadGateRaceVision

    def __init__(self, task: QuadGateRaceVision, num: int, seed: int) -> None:
        self.detector = GateDetector(num, task.lens, task.errors, task.noise)
        super().__init__(task, num, seed)

    def _tell(self, read: Mapping[str, Array], rows: NDArray[np.int64]) -> dict[str, Array]:
        corners = np.stack([read[name].reshape(len(rows), 4, 3) for name in MAPPED], axis=1)
        size = np.stack([self._size[self.track, self._due(k)][rows] for k in range(AHEAD)], axis=1)
        if self.age[rows].any():
            self.detector.step(corners, size)
        else:
            seeds = [np.random.default_rng([self.seed, int(k), CAMERA]).integers(1 << 63) for k in self.episode[rows]]
            self.detector.begin(rows, np.array(seeds, np.uint64), corners, size)
        return {name: value[rows] for name, value in self.detector.told.items()}

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return super()._arrays() | self.detector.arrays()
