"""Classifier-free guidance (Ho & Salimans 2022): a base that overstates what the goal changes.

A base that was trained with its goal dropped now and then can be asked with and without it. The guided network is
(1 + g) times the one that sees the goal minus g times the one that does not, at every step of the sampler. Both are
written as one network of twice the width, so that a guided base is a `Denoiser` like any other.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from policies.models.chunking import Denoiser
from policies.models.controller import Array, Layer
from sim import spec
from sim.tasks import Task


def goal(task: Task, observed: int) -> NDArray[np.bool_]:
    """Which of the `observed` numbers that a policy of the task sees are its goal."""
    where: NDArray[np.bool_] = np.zeros(observed, bool)
    slices = spec.slices(spec.numbers(task.policy))
    if task.goal in slices:
        where[slices[task.goal]] = True
    return where


def guided(base: Denoiser, goal: NDArray[np.int64], unseen: Array, guidance: float) -> Denoiser:
    """The base, guided. When it does not see its `goal`, these of the numbers, `unseen` (h,) enters its first layer."""
    blind, bias = base.see.copy(), base.bias + unseen
    blind[:, goal] = 0.0
    *inner, (weight, last) = base.layers
    both = np.concatenate([np.float32(1.0 + guidance) * weight, np.float32(-guidance) * weight], axis=1)
    return dataclasses.replace(
        base,
        see=np.concatenate([base.see, blind]),
        look=np.concatenate([base.look, base.look]),
        bias=np.concatenate([base.bias, bias], axis=1),
        layers=[*map(_twice, inner), (both, last)],
    )


def _twice(layer: Layer) -> Layer:
    """Two of the same, side by side."""
    weight, bias = layer
    zero = np.zeros_like(weight)
    return np.block([[weight, zero], [zero, weight]]), np.concatenate([bias, bias])
