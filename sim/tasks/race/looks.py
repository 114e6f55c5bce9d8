"""How the camera of a car sees in one episode: light and colours, where it points, what its track looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.engines.car.camera import FLOOR, LINES, PATCHES, WALLS
from sim.env import Array
from sim.tasks.sight import PURPOSE, beyond, strange_looks, usual_looks, varied_looks

if TYPE_CHECKING:
    from sim.tasks.race import CarRace

# What differs from episode to episode: how bright floors, lines and walls are, by how much each of their colours
# differs from that, and patches from one another.
BRIGHT = {FLOOR: (0.15, 0.6), LINES: (0.75, 1.0), WALLS: (0.25, 0.9)}
CAST, PATCHY = 0.08, (0.0, 0.2)
DARK, STRONG = 0.06, (0.2, 0.3)  # a floor as dark as none of training, and casts


def looks_of(task: CarRace, nominal: Array, panoramas: int, seed: tuple[int, int, int]) -> tuple[Array, int]:
    """How it sees (CAR_LOOKS,), and the seed of its noise; `nominal` is how cameras see that do not vary."""
    rng, usual = np.random.default_rng(seed), nominal[None]
    assert task.camera is not None
    if task.config.vary:
        usual = varied_looks(usual, panoramas, rng, task.camera)
        for surface, bright in BRIGHT.items():
            usual[:, surface : surface + 3] = rng.uniform(*bright) + rng.uniform(-CAST, CAST, 3)
        usual[:, PATCHES] = rng.uniform(*PATCHY)
    else:
        usual = usual_looks(usual, task.camera)
    noise = int(rng.integers(2**32))
    if task.held_out:
        strange = np.random.default_rng([*seed, PURPOSE])
        usual = strange_looks(task.held_out, usual, panoramas, strange)
        if "surface" in task.held_out:
            usual[:, FLOOR : FLOOR + 3] = DARK
            usual[:, WALLS : WALLS + 3] += beyond(*STRONG, strange, (3,))
    return usual[0], noise
