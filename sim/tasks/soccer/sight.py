"""What the robots of football matches see: pictures, late by some control steps, differing from game to game."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sim.engines.pitch.camera import (
    GAIN_B,
    GAIN_G,
    GAIN_R,
    LIFT,
    NOISE,
    PANORAMA,
    RAISED,
    TILT,
    TURNED,
    Eyes,
)
from sim.env import Array


class Sight:
    """The pictures of all cameras of `eyes`, each `latency` control steps old, or as old as its game."""

    def __init__(self, eyes: Eyes, latency: int) -> None:
        self.eyes = eyes
        shape = (len(eyes.looks), eyes.lens.height, eyes.lens.width, 3)
        self._frames = [np.zeros(shape, np.uint8) for _ in range(latency + 1)]  # the newest first

    @property
    def pictures(self) -> NDArray[np.uint8]:
        """What is seen now (cameras, height, width, 3)."""
        return self._frames[-1]

    def begin(self, cameras: NDArray[np.int64]) -> None:
        """New games: these cameras have seen nothing before."""
        now = self.eyes.see(cameras)[0]
        self._frames = [frame.copy() for frame in self._frames]  # who was shown the old ones keeps them
        for frame in self._frames:
            frame[cameras] = now

    def step(self) -> None:
        """A control step later."""
        self._frames = [self.eyes.see()[0], *self._frames[:-1]]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All that the next pictures depend on."""
        frames: Iterable[tuple[str, NDArray[np.generic]]] = ((f"frame{k}", f) for k, f in enumerate(self._frames))
        return {"looks": self.eyes.looks, "seeds": self.eyes.seeds, **dict(frames)}


def varied_looks(nominal: Array, panoramas: int, rng: np.random.Generator) -> Array:
    """How one game's cameras (count, LOOKS) differ: light, colour, where they are and point, what is around."""
    looks, count = nominal.copy(), len(nominal)
    light = rng.uniform(0.7, 1.3)
    looks[:, [GAIN_R, GAIN_G, GAIN_B]] = light * rng.uniform(0.9, 1.1, 3)
    looks[:, LIFT], looks[:, NOISE] = rng.uniform(-0.05, 0.05), rng.uniform(0.0, 0.03)
    looks[:, PANORAMA], looks[:, TURNED] = rng.integers(panoramas), rng.random()
    looks[:, TILT] += np.radians(rng.uniform(-2.0, 2.0, count))
    looks[:, RAISED] += rng.uniform(-0.01, 0.01, count)
    return looks
