"""Networks without a memory: fully connected layers, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policies.models.networks import Array, Layer, chained
from policies.models.networks.activations import ACTIVATIONS

if TYPE_CHECKING:
    from policies.models.graph import Graph

HIDDEN = ("tanh", "relu")  # what our learners' kernels know


@dataclass
class FeedForward:
    """Fully connected layers; `activation` after each but the last, `last` after that."""

    layers: list[Layer]
    activation: str = "tanh"
    last: str = "identity"

    def __post_init__(self) -> None:
        for name in (self.activation, self.last):
            if name not in ACTIVATIONS:
                raise ValueError(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}")
        if not self.layers:
            raise ValueError("a network needs at least one layer")
        self.layers = chained(self.layers)

    @property
    def inputs(self) -> int:
        return int(self.layers[0][0].shape[1])

    @property
    def outputs(self) -> int:
        return int(self.layers[-1][0].shape[0])

    @property
    def _activations(self) -> list[str]:
        return [self.activation] * (len(self.layers) - 1) + [self.last]

    def initial_state(self, n: int) -> dict[str, Array]:
        return {}

    def forward(self, features: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        x = features
        for (weight, bias), name in zip(self.layers, self._activations, strict=True):
            x = ACTIVATIONS[name][0](x @ weight.T + bias)
        return x, {}

    def write(self, graph: Graph, x: str) -> str:
        for layer, name in zip(self.layers, self._activations, strict=True):
            x = ACTIVATIONS[name][1](graph, graph.linear(x, *layer))
        return x


@dataclass
class Mlp(FeedForward):
    """The actor of most learners here: tanh or ReLU between its layers, tanh after the last: actions in [-1, 1]."""

    last: str = "tanh"

    def __post_init__(self) -> None:
        if self.activation not in HIDDEN:
            raise ValueError(f"activation {self.activation!r} is not one of {', '.join(HIDDEN)}")
        super().__post_init__()
