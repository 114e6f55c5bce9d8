"""The imperfect way of signals in simulation: latency, then offset and noise, then dropout. Batched numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.randomize import Array, delay_weights
from sim.spec import Group


class Imperfect:
    """What becomes of a group's vector (n, P) on its way. Each row has its own latency, offset and random numbers.

    `factor` scales noise and offset, and 0 switches dropout off; `longest` is the largest latency in control steps.
    """

    def __init__(self, group: Group, num: int, steps: int, factor: float, longest: float) -> None:
        sizes = [s.size for s in group]
        self.owner = np.repeat(np.arange(len(group)), sizes)  # the signal of each element
        self.steps = steps  # of an episode: so many are drawn at once
        self.noise = np.float32(factor) * np.repeat([s.noise_std() for s in group], sizes).astype(np.float32)
        self.bias_std = np.float32(factor) * np.repeat([s.bias_std() for s in group], sizes).astype(np.float32)
        self.dropout = np.array([s.dropout_probability() for s in group], np.float32) * np.float32(factor > 0.0)
        self.noisy, self.lossy = bool(self.noise.any()), bool(self.dropout.any())
        width, taps = len(self.owner), math.ceil(longest - 1e-9) + 1
        self.delay = np.zeros((num, len(group)), np.float32)  # control steps
        self.weights = np.zeros((num, taps, width), np.float32)
        self.past = np.zeros((num, taps, width), np.float32)  # newest first
        self.bias = np.zeros((num, width), np.float32)
        self.last = np.zeros((num, width), np.float32)
        self.sent = np.zeros(num, np.int64)
        self._rng: list[np.random.Generator] = [np.random.default_rng(0)] * num
        self._normal = np.zeros((num, steps + 1 if self.noisy else 0, width), np.float32)
        self._uniform = np.zeros((num, steps + 1 if self.lossy else 0, len(group)), np.float32)

    @property
    def random(self) -> bool:
        """Whether it needs random numbers."""
        return self.noisy or self.lossy or bool(self.bias_std.any())

    def begin(
        self, rows: NDArray[np.int64], delay: Array, values: Array, rngs: Sequence[np.random.Generator] = ()
    ) -> None:
        """Begin an episode in these rows: `delay` (count, signals) in control steps, `values` (count, P) until now.

        `rngs` are the rows' own, where random numbers are needed.
        """
        self.delay[rows] = delay
        taps = self.weights.shape[1]
        if taps > 1:
            per_signal = np.stack([delay_weights(d.astype(np.float64), taps) for d in delay.T], axis=-1)
            self.weights[rows] = per_signal[:, :, self.owner]
            self.past[rows] = values[:, None]
        self.sent[rows] = 0
        for row, rng in zip(rows, rngs, strict=self.random):
            self._rng[row] = rng
            self.bias[row] = self.bias_std * rng.standard_normal(len(self.bias_std), np.float32)
            self._draw(row)

    def _draw(self, row: int) -> None:
        """The random numbers of this row's next control steps."""
        if self.noisy:
            self._rng[row].standard_normal(out=self._normal[row], dtype=np.float32)
        if self.lossy:
            self._rng[row].random(out=self._uniform[row], dtype=np.float32)

    def send(self, values: Array, rows: NDArray[np.int64]) -> Array:
        """What arrives this control step (count, P) of what these rows send (count, P)."""
        if self.weights.shape[1] > 1:
            every = slice(None) if len(rows) == len(self.past) else rows
            self.past[every, 1:] = self.past[every, :-1]
            self.past[every, 0] = values
            values = np.einsum("ntk,ntk->nk", self.weights[every], self.past[every])
        at = self.sent[rows] % (self.steps + 1)
        for row in rows[(at == 0) & (self.sent[rows] > 0)]:  # a flight may outlast an episode
            self._draw(row)
        if self.noisy:
            values = values + self.noise * self._normal[rows, at]
        if self.bias_std.any():
            values = values + self.bias[rows]
        if self.lossy:
            lost = (self._uniform[rows, at] < self.dropout)[:, self.owner] & (self.sent[rows] > 0)[:, None]
            self.last[rows] = values = np.where(lost, self.last[rows], values)
        self.sent[rows] += 1
        return values
