"""The toy task with a camera: where the goal is, only the picture says."""

import numpy as np

from sim.spec import Signal
from tests.policies.toy_reach import Cell, Config, ToyReach

PIXELS = 16
SPREAD = 2.0  # squared pixels


def drawn(goal, position):
    """Pictures (n, PIXELS, PIXELS, 3): a green spot at the goal and a red one at the position."""
    where = np.arange(PIXELS) + 0.5
    picture = np.full((len(goal), PIXELS, PIXELS, 3), 30.0)
    for channel, place in ((0, position), (1, goal)):
        x, y = (0.5 * PIXELS * (place.T[:, :, None] / 1.25 + 1.0)).astype(np.float64)
        spot = np.exp(-((where - x)[:, None, :] ** 2 + (where - y)[:, :, None] ** 2) / SPREAD)
        picture[..., channel] += 225.0 * spot
    return picture.astype(np.uint8)


class ToySight(ToyReach):
    name = "toy_sight"
    policy = (
        Signal("position", (2,), "m", "world"),
        Signal("camera", (PIXELS, PIXELS, 3), "1", "", 0.0, 255.0, dtype="uint8"),
    )
    privileged = (Signal("goal", (2,), "m", "world"),)

    def __init__(self, config=None):
        super().__init__(config or Config(radius=0.2))

    def open(self, num, seed):
        return SeenCell(self, num, seed)


class SeenCell(Cell):
    def observe(self):
        return {**super().observe(), "camera": drawn(self.goal, self.position)}
