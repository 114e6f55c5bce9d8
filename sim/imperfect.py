"""The imperfect way of signals in simulation: latency, then offset and noise, then dropout. A batch in one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.vector import channels
from sim.engines.vector.blocks import blocks
from sim.engines.vector.channels import Channel
from sim.engines.vector.simd import LANES
from sim.engines.vector.streams import Streams
from sim.randomize import Array
from sim.spec import Group


def latencies(group: Group, random: Sequence[np.random.Generator]) -> Array:
    """s, (rows, signals): one for each signal of the group, drawn by each row's generator."""
    low, high = np.array([s.delay_range() for s in group]).T
    return np.stack([rng.uniform(low, high) for rng in random]).astype(np.float32)


class Imperfect:
    """What becomes of a group's P numbers on their way. Each row has its own latency, offset and random numbers.

    They are found from column `first` on of what is sent, (blocks, columns, LANES). `factor` scales noise and offset,
    and 0 switches dropout off; `longest` is the largest latency in control steps.
    """

    def __init__(self, group: Group, num: int, factor: float, longest: float, first: int = 0) -> None:
        def each(values: list[float]) -> Array:
            """Of every element; of none, where all are zero."""
            scaled = np.float32(factor) * np.repeat(values, sizes).astype(np.float32)
            return scaled if scaled.any() else scaled[:0]

        def lanes(columns: int) -> Array:
            return np.zeros((blocks(num), columns, LANES), np.float32)

        sizes = [s.size for s in group]
        owner = np.repeat(np.arange(len(group)), sizes)
        noise, self.bias_std = each([s.noise_std() for s in group]), each([s.bias_std() for s in group])
        dropout = np.array([s.dropout_probability() for s in group], np.float32) * np.float32(factor > 0.0)
        dropout = dropout if dropout.any() else dropout[:0]
        width, self.taps = len(owner), math.ceil(longest - 1e-9) + 1
        self.delay = np.zeros((num, len(group)), np.float32)  # control steps
        self.channel = Channel(
            first,
            owner,
            weights=lanes(self.taps * width if self.taps > 1 else 0),
            past=lanes(self.taps * width if self.taps > 1 else 0),
            noisy=np.flatnonzero(noise),
            noise=noise,
            bias=lanes(len(self.bias_std)),
            dropout=dropout,
            last=lanes(width if len(dropout) else 0),
            sent=np.zeros(num, np.int64),
            stream=np.zeros((blocks(num), LANES), np.uint64),
            arrived=lanes(width),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that changes within episodes, by name."""
        names = ("weights", "past", "bias", "last", "sent", "arrived")
        kept: dict[str, NDArray[Any]] = {name: getattr(self.channel, name) for name in names}
        return {"delay": self.delay, "stream": self.channel.stream.reshape(-1)[: len(self.delay)], **kept}

    def begin(self, rows: NDArray[np.int64], delay: Array, values: Array, stream: Streams) -> None:
        """Begin an episode in these rows: `delay` (count, signals) in control steps, as if values had held until now.

        The first P of them. `stream` (count,) are the rows' own random numbers.
        """
        longest = channels.begin(rows, delay, values, self.bias_std, stream, self.delay, self.channel)
        if longest > self.taps - 1:
            raise ValueError(f"a delay of {longest:.2f} control steps needs more than {self.taps} stored values")

    def send(self, values: Array, rows: NDArray[np.int64] | None = None) -> Array:
        """What has arrived (blocks, P, LANES) after what these rows (None: all) send; the same array at each call."""
        if rows is None:
            channels.send(self.channel, values)
        else:
            channels.send_rows(self.channel, values, rows)
        return self.channel.arrived
