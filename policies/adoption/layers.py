"""What networks of others have beside layers: gated units that remember, two outputs of one head, chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.models.graph import Graph
from policies.models.networks import Array, Layer, Network, check_layer, float32
from policies.models.networks.gru import gated, write_gated


@dataclass
class Gated:
    """A gated recurrent unit (gate order reset, update, new: torch.nn.GRUCell), from its `initial` state (h,)."""

    inward: Layer  # (3 h, k)
    across: Layer  # (3 h, h)
    initial: Array
    name: str = "hidden"  # of its state

    def __post_init__(self) -> None:
        self.inward, self.across = float32(self.inward), float32(self.across)
        self.initial = np.ascontiguousarray(self.initial, np.float32)
        gates, size = check_layer("the unit's input", *self.inward, None), len(self.initial)
        if check_layer("the unit's state", *self.across, size) != gates or gates != 3 * size:
            raise ValueError(f"a gated unit of {size} numbers has {3 * size} rows of weights, got {gates}")
        if not np.isfinite(self.initial).all():
            raise ValueError("the initial state of a gated unit is not finite")

    @property
    def inputs(self) -> int:
        return int(self.inward[0].shape[1])

    @property
    def outputs(self) -> int:
        return len(self.initial)

    def initial_state(self, n: int) -> dict[str, Array]:
        return {self.name: np.tile(self.initial, (n, 1))}

    def forward(self, x: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        after = gated(x, state[self.name], self.inward, self.across)
        return after, {self.name: after}

    def write(self, graph: Graph, x: str) -> str:
        return write_gated(graph, x, self.name, self.inward, self.across)


@dataclass
class MeanOfTwo:
    """Of a mean and a deviation (n, 2 k), which stand one after the other, tanh of the mean (n, k)."""

    inputs: int

    def __post_init__(self) -> None:
        if self.inputs % 2:
            raise ValueError(f"a mean and a deviation are an even number of numbers, got {self.inputs}")

    @property
    def outputs(self) -> int:
        return self.inputs // 2

    def initial_state(self, n: int) -> dict[str, Array]:
        return {}

    def forward(self, x: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        return np.tanh(x[:, : self.outputs]), {}

    def write(self, graph: Graph, x: str) -> str:
        return graph.add("Tanh", graph.columns(x, 0, self.outputs))


@dataclass
class Chain:
    """Networks one after the other; what each remembers has a name of its own."""

    parts: Sequence[Network]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a network needs at least one layer")
        for before, after in zip(self.parts, self.parts[1:], strict=False):
            if before.outputs != after.inputs:
                raise ValueError(f"a layer takes {after.inputs} numbers but receives {before.outputs}")

    @property
    def inputs(self) -> int:
        return self.parts[0].inputs

    @property
    def outputs(self) -> int:
        return self.parts[-1].outputs

    def initial_state(self, n: int) -> dict[str, Array]:
        return {name: value for part in self.parts for name, value in part.initial_state(n).items()}

    def forward(self, x: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        after: dict[str, Array] = {}
        for part in self.parts:
            x, changed = part.forward(x, state)
            after |= changed
        return x, after

    def write(self, graph: Graph, x: str) -> str:
        for part in self.parts:
            x = part.write(graph, x)
        return x
