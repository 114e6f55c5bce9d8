"""What a vehicle emits, as a small network: how much, and whether anything at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.models.networks import Array, Layer, chained
from sim.engines.sumo.surrogate import shares

if TYPE_CHECKING:
    from policies.models.graph import Graph


@dataclass
class Emission:
    """Layers with tanh between them, from features within `low` and `high` (k,) to an amount and a gate per quantity.

    What lies beyond is taken for the edge. Where the gate is below 0 nothing is emitted: an engine that is dragged
    along gets no fuel, and that begins all at once. Amounts are shares of the largest, -1..1 instead of 0..1.
    """

    layers: list[Layer]  # the last one: amounts, then gates (2 q)
    low: Array
    high: Array

    def __post_init__(self) -> None:
        self.layers = chained(self.layers, len(self.low))

    @property
    def inputs(self) -> int:
        return len(self.low)

    @property
    def outputs(self) -> int:
        return len(self.layers[-1][1]) // 2

    def initial_state(self, n: int) -> dict[str, Array]:
        return {}

    def forward(self, features: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        return np.float32(2.0) * shares(self.layers, self.low, self.high, features) - np.float32(1.0), {}

    def write(self, graph: Graph, x: str) -> str:
        x = graph.add("Min", graph.add("Max", x, graph.constant(self.low)), graph.constant(self.high))
        for layer in self.layers[:-1]:
            x = graph.add("Tanh", graph.linear(x, *layer))
        amount, gate = graph.split(graph.linear(x, *self.layers[-1]), [self.outputs] * 2)
        zero, one = graph.constant(0.0), graph.constant(1.0)
        some = graph.add("Clip", amount, zero, one)
        share = graph.add("Where", graph.add("Greater", gate, zero), some, zero)
        return graph.add("Sub", graph.add("Mul", share, graph.constant(2.0)), one)
