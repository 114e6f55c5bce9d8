"""Small languages: what a task's policy looks at (`Feature`), what it should achieve (`Cost`) and avoid (`Bound`).

All are data, so that each consumer compiles the same declaration: the environment (torch), the fused trainer (Numba,
with the derivative) and the exported ONNX graph. `evaluate` is the reference meaning, for numpy arrays and torch
tensors alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

HISTORY = "history"  # the signal of a policy's own past actions
SHAPES = ("square", "norm", "log", "attitude")


def namespace(values: Any) -> ModuleType:
    """numpy for arrays, torch for tensors; imports torch only when given one of its tensors."""
    if isinstance(values, np.ndarray):
        return np
    import torch

    return torch


@dataclass(frozen=True)
class Feature:
    """scale * s(signal - minus), with s(z) = z / sqrt(1 + (z / squash)^2), or s(z) = z without `squash`.

    A `minus` that is shorter than the signal is repeated (a preview of K points minus one position). The signal
    "history" stands for the policy's own past actions, newest first, in [-1, 1].
    """

    signal: str
    minus: str | None = None
    scale: float = 1.0
    squash: float | None = None

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """(..., k) from values (..., k); works on numpy arrays and torch tensors."""
        x = values[self.signal]
        if self.minus is not None:
            base = values[self.minus]
            repeat = x.shape[-1] // base.shape[-1]
            x = x - (base if repeat == 1 else namespace(x).concatenate([base] * repeat, -1))
        if self.squash is not None:
            x = x / namespace(x).sqrt(1.0 + (x / self.squash) ** 2)
        return self.scale * x


@dataclass(frozen=True)
class Cost:
    """weight * shape(signal - minus - offset), per control step.

    Shapes, over the elements z: "square": sum z^2; "norm": sqrt(sum z^2 + softening^2); "log": log(1 + norm);
    "attitude": 1 - q_w^2 = (3 - trace R) / 4 of a row-major rotation matrix. Signals are the noise-free ones; "action"
    is the command in [-1, 1], "action_change" its difference from the one before. `weight` may follow a curriculum.
    """

    name: str
    signal: str
    weight: float
    shape: str = "square"
    minus: str | None = None
    offset: float = 0.0
    softening: float = 0.1  # in the signal's unit: below it, "norm" and "log" are round instead of pointed

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"Cost({self.name!r}): shape {self.shape!r} is not one of {', '.join(SHAPES)}")

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Unweighted cost (...,) from values (..., k); works on numpy arrays and torch tensors."""
        x = values[self.signal]
        if self.shape == "attitude":
            return 0.25 * (3.0 - x[..., 0] - x[..., 4] - x[..., 8])
        if self.minus is not None:
            x = x - values[self.minus]
        if self.offset:
            x = x - self.offset
        square = (x * x).sum(-1)
        if self.shape == "square":
            return square
        xp = namespace(x)
        norm = xp.sqrt(square + self.softening**2)
        return norm if self.shape == "norm" else xp.log1p(norm)


def shown(cost: Any) -> Any:
    """A cost (...,) as a critic sees it: c / sqrt(1 + c), itself near zero, and its root where it is large."""
    return cost / namespace(cost).sqrt(1.0 + cost)


@dataclass(frozen=True)
class Bound:
    """How far a robot may go: where the norm of (signal - minus) exceeds `limit`, in the signal's unit, it is lost."""

    signal: str
    limit: float
    minus: str | None = None

    def exceeded(self, values: Mapping[str, Any]) -> Any:
        """(...,) bool from values (..., k); works on numpy arrays and torch tensors."""
        x = values[self.signal] if self.minus is None else values[self.signal] - values[self.minus]
        return (x * x).sum(-1) > self.limit**2


def lost(bounds: Sequence[Bound], values: Mapping[str, Any]) -> Any:
    """Whether any of them is exceeded, (...,) bool; False where there are none."""
    beyond: Any = False
    for bound in bounds:
        beyond = bound.exceeded(values) | beyond
    return beyond


@dataclass(frozen=True)
class Curriculum:
    """The weight of the cost `name`: `start`, multiplied by `factor` every `every` environment steps, up to `limit`.

    The reward curriculum of "Learning to Fly in Seconds" (Eschmann et al. 2024, src/steps/curriculum.h). Learners that
    keep old experience recompute its rewards.
    """

    name: str
    start: float
    factor: float
    every: int
    limit: float

    def weight(self, steps: int) -> float:
        """The weight after that many environment steps."""
        times = steps // self.every
        if math.log(self.start) + times * math.log(self.factor) >= math.log(self.limit):
            return self.limit
        return self.start * self.factor**times


@dataclass(frozen=True)
class Mirror:
    """How signals change when the world is seen in a mirror: name -> (from where, signs).

    Element i of the mirrored signal is signs[i] times element places[i] of the signal; longer signals repeat the
    pattern (the points of a path, past actions). Single numbers that are not named stay as they are. A task with
    mirrors says: whoever acts as the mirror image of somebody in the mirrored world gets the mirrored world back.
    """

    changes: Mapping[str, tuple[Sequence[int], Sequence[float]]]

    def of(self, name: str, size: int) -> tuple[list[int], list[float]]:
        """Places and signs for all elements of a signal; ValueError where the mirror does not know it."""
        if name not in self.changes:
            if size == 1:
                return [0], [1.0]
            raise ValueError(f"the mirror does not say what becomes of {name!r}; it knows {', '.join(self.changes)}")
        places, signs = self.changes[name]
        repeat, rest = divmod(size, len(places))
        if rest:
            raise ValueError(f"the mirror changes {len(places)} elements of {name!r}, which has {size}")
        shifted = [place + len(places) * k for k in range(repeat) for place in places]
        return shifted, [float(sign) for sign in signs] * repeat
