"""The imperfect way of signals in simulation: latency, then offset and noise, then dropout. Batched numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.randomize import Array, delay_weights
from sim.spec import Group

AHEAD = 32  # control steps


class Imperfect:
    """What becomes of a group's vector (n, P) on its way. Each row has its own latency, offset and random numbers.

    `factor` scales noise and offset, and 0 switches dropout off; `longest` is the largest latency in control steps.
    Random numbers are drawn for a while ahead: for an episode of `steps` control steps, if there is dropout.
    """

    def __init__(self, group: Group, num: int, steps: int, factor: float, longest: float) -> None:
        sizes = [s.size for s in group]
        self.owner = np.repeat(np.arange(len(group)), sizes)  # the signal of each element
        self.noise = np.float32(factor) * np.repeat([s.noise_std() for s in group], sizes).astype(np.float32)
        self.bias_std = np.float32(factor) * np.repeat([s.bias_std() for s in group], sizes).astype(np.float32)
        self.dropout = np.array([s.dropout_probability() for s in group], np.float32) * np.float32(factor > 0.0)
        self.noisy, self.lossy, self.biased = (bool(x.any()) for x in (self.noise, self.dropout, self.bias_std))
        # As many as are drawn at once. Noise alone may be drawn in parts: they are the same numbers.
        self.ahead = steps + 1 if self.lossy else min(steps + 1, AHEAD)
        width, taps = len(self.owner), math.ceil(longest - 1e-9) + 1
        self.delay = np.zeros((num, len(group)), np.float32)  # control steps
        self.weights = np.zeros((num, taps, width), np.float32)
        self.past = np.zeros((num, taps, width), np.float32)  # newest first
        self.bias = np.zeros((num, width), np.float32)
        self.last = np.zeros((num, width), np.float32)
        self.sent = np.zeros(num, np.int64)
        self._rng: list[np.random.Generator] = [np.random.default_rng(0)] * num
        self._normal = np.zeros((num, self.ahead if self.noisy else 0, width), np.float32)
        self._uniform = np.zeros((num, self.ahead if self.lossy else 0, len(group)), np.float32)

    @property
    def random(self) -> bool:
        """Whether it needs random numbers."""
        return self.noisy or self.lossy or self.biased

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
            every = slice(None) if len(rows) == len(self.past) else rows  # views cost no copy
            self.past[every, 1:] = self.past[every, :-1]
            self.past[every, 0] = values
            values = np.einsum("ntk,ntk->nk", self.weights[every], self.past[every])
        sent = self.sent[rows]
        self.sent[rows] = sent + 1
        if not self.random:
            return values
        at = sent % self.ahead
        for row in rows[(at == 0) & (sent > 0)]:
            self._draw(row)
        if self.noisy:
            values = values + self.noise * self._normal[rows, at]
        if self.biased:
            values = values + self.bias[rows]
        if self.lossy:
            lost = (self._uniform[rows, at] < self.dropout)[:, self.owner] & (sent > 0)[:, None]
            self.last[rows] = values = np.where(lost, self.last[rows], values)
        return values
