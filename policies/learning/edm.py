"""A third kind of base, `kind=beso`: a score model that needs few steps (Reuss et al. 2023, BESO).

At noise level s, a chunk x = action + s noise is believed to be the action skip(s) x + out(s) F(into(s) x), F being the
network (EDM, Karras et al. 2022). Levels are drawn log-logistically in training; a sampler's levels fall exponentially,
and it goes from one to the next by Euler's method on the probability flow, which here is DDIM. Constants are those of
the authors' code, but for the largest level, theirs is 1: noise of that size does not hide whether a gripper is told to
open or to close, at -1 and 1, yet the sampler begins with noise alone. And the network is a perceptron, without memory.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.models.chunking import Schedule

SMALLEST, LARGEST = 0.005, 3.0  # noise levels
DATA = 0.5  # standard deviation that actions are taken to have, and the median of the levels in training
SPREAD = 0.5  # of the log-logistic distribution

Level = TypeVar("Level", Tensor, NDArray[np.float64])


def preconditioning(level: Level) -> tuple[Level, Level, Level]:
    """skip, out and into at these noise levels."""
    whole = level**2 + DATA**2
    return DATA**2 / whole, DATA * level / whole**0.5, whole**-0.5


def drawn(uniform: Tensor) -> Tensor:
    """Noise levels in training, from numbers in 0..1: log-logistic, cut off at the smallest and the largest."""
    low, high = (1.0 / (1.0 + (DATA / level) ** (1.0 / SPREAD)) for level in (SMALLEST, LARGEST))
    return DATA * torch.exp(SPREAD * torch.logit(low + uniform * (high - low)))


def noised(chunk: Tensor, noise: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the network sees of chunks (n, k), what it is to say of them, and the time (n,) in 0..1 that it is told."""
    level = drawn(uniform)
    skip, out, into = preconditioning(level[:, None])
    x = chunk + level[:, None] * noise
    return into * x, (chunk - skip * x) / out, (level / SMALLEST).log() / math.log(LARGEST / SMALLEST)


def schedule(steps: int) -> Schedule:
    """The sampler's steps. Noise comes with unit variance: the first step makes it the largest level's."""
    time = 1.0 - np.arange(steps) / max(1, steps - 1)
    level = SMALLEST * (LARGEST / SMALLEST) ** time
    skip, out, into = preconditioning(level)
    rest = np.append(level[1:], 0.0) / level
    unit = np.where(np.arange(steps) == 0, LARGEST, 1.0)
    rows = (time, unit * into, unit * (rest + (1.0 - rest) * skip), (1.0 - rest) * out)
    when, scale, keep, gain = (row.astype(np.float32) for row in rows)
    return Schedule(when, scale, keep, gain, clip=False)
