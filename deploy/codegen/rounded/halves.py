"""Weights of 8 bits as the Cortex-M4 multiplies them fastest: two halves of a word, without taking bytes apart.

The upper bytes of the halves are weights 1 and 3; of the word that is shifted by 8 bits, 0 and 2. The byte below a
weight adds a part of a step to it, and is known when the weight is rounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.rounded.steps import MOST, MOST_INPUT, MOST_SUM, steps_of

Floats = NDArray[np.float32]


def bytes_of(weight: Floats) -> NDArray[np.int8]:
    """W (out, in) as the bytes of words (out, words, 4), filled up with zeros."""
    outputs, inputs = weight.shape
    steps = np.zeros((outputs, -(-inputs // 4) * 4))
    steps[:, :inputs] = steps_of(weight)
    steps = steps.reshape(outputs, -1, 4)
    made = np.zeros(steps.shape, np.int8)
    for k in range(4):
        below = made[..., k - 1].view(np.uint8) / 256.0 if k else 0.0
        made[..., k] = np.rint(steps[..., k] - below).clip(-MOST - 1, MOST)
    return made


def weights_of(made: NDArray[np.int8]) -> NDArray[np.int64]:
    """256 times what these bytes multiply by (out, in)."""
    wide = 256 * made.astype(np.int64)
    wide[..., 1:] += made[..., :-1].view(np.uint8)
    return wide.reshape(len(made), -1)


def limit(weight: Floats) -> int:
    """`bytes_limit` where the weights are known, and their lower bytes count."""
    most = int(np.abs(weights_of(bytes_of(weight))).sum(axis=1).max())
    return min(MOST_INPUT, MOST_SUM // max(most, 1))
