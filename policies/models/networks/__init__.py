"""Networks as numpy data: what numbers go through between observation and action, and the same as ONNX nodes.

These are the references that exported graphs must agree with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from policies.models.graph import Graph

Array = NDArray[np.float32]
Layer = tuple[Array, Array]  # W (out, in), b (out,)


class Network(Protocol):
    """Numbers (n, inputs) and a recurrent state in, numbers (n, outputs) and the next state out.

    An actor takes features and returns actions in [-1, 1].
    """

    @property
    def inputs(self) -> int:
        """How many numbers it takes: of an actor, features."""

    @property
    def outputs(self) -> int:
        """How many it returns: of an actor, actions."""

    def initial_state(self, n: int) -> dict[str, Array]:
        """The recurrent state (n, k) by name before the first step; empty for a feed-forward network."""

    def forward(self, features: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """What comes out (n, outputs) and the next state, from `features` (n, inputs)."""

    def write(self, graph: Graph, x: str) -> str:
        """The same as ONNX nodes, `next_state.NAME` included, from the numbers `x`; the name of what comes out."""


def check_layer(kind: str, weight: Array, bias: Array, inputs: int | None) -> int:
    """How many outputs a layer has; ValueError unless it takes so many `inputs` (None: any) and is finite."""
    if weight.ndim != 2 or bias.shape != (weight.shape[0],):
        raise ValueError(f"{kind}: W is (out, in) and b is (out,), got {weight.shape} and {bias.shape}")
    if inputs is not None and weight.shape[1] != inputs:
        raise ValueError(f"{kind}: takes {weight.shape[1]} values but receives {inputs}")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise ValueError(f"{kind}: a weight is not finite")
    return int(weight.shape[0])


def float32(layer: Layer) -> Layer:
    """The layer in single precision."""
    return np.ascontiguousarray(layer[0], np.float32), np.ascontiguousarray(layer[1], np.float32)


def chained(layers: Sequence[Layer], inputs: int | None = None) -> list[Layer]:
    """The layers in single precision; ValueError where one does not take what the one before it returns."""
    made = [float32(layer) for layer in layers]
    for index, (weight, bias) in enumerate(made):
        inputs = check_layer(f"layer {index}", weight, bias, inputs)
    return made
