"""The imperfect way of signals in simulation: latency, then offset and noise, then dropout. A batch in one kernel."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sim.engines.vector import rows as kernels
from sim.engines.vector.streams import Streams
from sim.randomize import Array
from sim.spec import Group


class Imperfect:
    """What becomes of a group's vector (n, P) on its way. Each row has its own latency, offset and random numbers.

    `factor` scales noise and offset, and 0 switches dropout off; `longest` is the largest latency in control steps.
    """

    def __init__(self, group: Group, num: int, factor: float, longest: float) -> None:
        def each(values: list[float]) -> Array:
            """Of every element; of none, where all are zero."""
            scaled = np.float32(factor) * np.repeat(values, sizes).astype(np.float32)
            return scaled if scaled.any() else scaled[:0]

        sizes = [s.size for s in group]
        self.owner = np.repeat(np.arange(len(group)), sizes)  # the signal of each element
        self.noise, self._bias_std = each([s.noise_std() for s in group]), each([s.bias_std() for s in group])
        dropout = np.array([s.dropout_probability() for s in group], np.float32) * np.float32(factor > 0.0)
        self.dropout = dropout if dropout.any() else dropout[:0]
        width, taps = len(self.owner), math.ceil(longest - 1e-9) + 1
        self.delay = np.zeros((num, len(group)), np.float32)  # control steps
        self.weights = np.zeros((num, taps, width), np.float32)
        self.past = np.zeros((num, taps, width), np.float32)  # newest first
        self.bias = np.zeros((num, len(self._bias_std)), np.float32)
        self.last = np.zeros((num, width if len(self.dropout) else 0), np.float32)
        self.sent = np.zeros(num, np.int64)
        self.arrived = np.zeros((num, width), np.float32)  # this control step
        self._stream = np.zeros(num, np.uint64)

    def begin(self, rows: NDArray[np.int64], delay: Array, values: Array, stream: Streams) -> None:
        """Begin an episode in these rows: `delay` (count, signals) in control steps, `values` (count, P) until now.

        `stream` (count,) are the rows' own random numbers.
        """
        if delay.max(initial=0.0) > (taps := self.weights.shape[1]) - 1:
            raise ValueError(f"a delay of {delay.max():.2f} control steps needs more than {taps} stored values")
        kernels.begin(
            rows, delay, values, self.owner, self._bias_std, stream, self.delay, self.weights, self.past, self.bias,
            self.sent, self._stream,
        )  # fmt: skip

    def send(self, values: Array, rows: NDArray[np.int64]) -> Array:
        """What has arrived (n, P), after what these rows send this control step, the first P of values (count, ...)."""
        now = np.empty(self.arrived.shape, np.float32) if len(rows) == len(self.arrived) else self.arrived.copy()
        kernels.send(
            values, rows, self.owner, self.weights, self.past, self.noise, self.bias, self.dropout, self.last,
            self.sent, self._stream, now,
        )  # fmt: skip
        self.arrived = now
        return now
