"""A rhythm for feet: when each of them should be on the floor, and how high in the air otherwise.

As in Siekmann et al. 2021 (Sim-to-Real Learning of All Common Bipedal Gaits via Periodic Reward Composition) a phase is
told to the policy, and a reward follows it. Two feet take turns; four trot; six walk on three.
"""

from __future__ import annotations

import numpy as np

from sim.env import Array

NATURAL = 1.1  # Hz m^(1/2), over the root of the base's height (m), as pendulums swing: 1.35 Hz for a Booster T1


def natural_frequency(height: float) -> float:
    """Hz, of each foot's steps, for a base that is so high (m)."""
    return NATURAL / float(np.sqrt(height))


def offsets(feet: int) -> Array:
    """(feet,): by how much of a period each foot is ahead; feet go from the foremost left one to the last right one.

    Neighbours, to the side as well as behind one another, are half a period apart.
    """
    number = np.arange(feet)
    found: Array = ((number // 2 + number % 2) % 2) * 0.5
    return found


def signal(phase: Array) -> Array:
    """What the policy is told, (n, 2), of a phase (n,) in periods: cosine and sine."""
    return np.stack([np.cos(2.0 * np.pi * phase), np.sin(2.0 * np.pi * phase)], axis=-1)


def lift(phase: Array) -> Array:
    """How high a foot should be, as a share of how high it swings: in the first half of a period it is in the air.

    A sine's square, which takes off and lands at rest.
    """
    found: Array = np.maximum(np.sin(2.0 * np.pi * phase), 0.0) ** 2
    return found
