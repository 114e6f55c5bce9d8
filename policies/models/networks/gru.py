"""A network that remembers: a gated recurrent unit between two linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.models.networks import Array, Layer, check_layer, float32
from policies.models.networks.activations import sigmoid

if TYPE_CHECKING:
    from policies.models.graph import Graph


def gated(x: Array, before: Array, inward: Layer, across: Layer) -> Array:
    """The next state (n, h) of a gated recurrent unit (gate order reset, update, new: torch.nn.GRUCell).

    Of x (n, k) and the state `before` (n, h), through the layers `inward` (3 h, k) and `across` (3 h, h).
    """
    from_input = np.split(x @ inward[0].T + inward[1], 3, axis=-1)
    from_hidden = np.split(before @ across[0].T + across[1], 3, axis=-1)
    reset = sigmoid(from_input[0] + from_hidden[0])
    update = sigmoid(from_input[1] + from_hidden[1])
    new = np.tanh(from_input[2] + reset * from_hidden[2])
    after: Array = new + update * (before - new)
    return after


def write_gated(graph: Graph, x: str, state: str, inward: Layer, across: Layer) -> str:
    """The same as ONNX nodes, from `state.NAME` to `next_state.NAME`; the name of the latter.

    The gates are written out: faster in onnxruntime than its GRU operator for one step, and easy to put into C.
    """
    size, before = across[0].shape[1], f"state.{state}"
    from_input = graph.split(graph.linear(x, *inward), [2 * size, size])
    from_hidden = graph.split(graph.linear(before, *across), [2 * size, size])
    both = graph.add("Sigmoid", graph.add("Add", from_input[0], from_hidden[0]))
    reset, update = graph.split(both, [size, size])
    new = graph.add("Tanh", graph.add("Add", from_input[1], graph.add("Mul", reset, from_hidden[1])))
    change = graph.add("Mul", update, graph.add("Sub", before, new))
    return graph.add("Add", new, change, to=f"next_state.{state}")


@dataclass
class Gru:
    """Linear and ReLU, a gated recurrent unit (gate order reset, update, new: torch.nn.GRUCell), linear and tanh."""

    input: Layer
    w_ih: Array  # (3 H, in)
    w_hh: Array  # (3 H, H)
    b_ih: Array  # (3 H,)
    b_hh: Array  # (3 H,)
    output: Layer

    def __post_init__(self) -> None:
        self.input, self.output = float32(self.input), float32(self.output)
        self.w_ih, self.b_ih = float32((self.w_ih, self.b_ih))
        self.w_hh, self.b_hh = float32((self.w_hh, self.b_hh))
        width = check_layer("input layer", *self.input, None)
        gates = check_layer("w_ih", self.w_ih, self.b_ih, width)
        if gates % 3 or check_layer("w_hh", self.w_hh, self.b_hh, gates // 3) != gates:
            raise ValueError(f"w_ih {self.w_ih.shape} and w_hh {self.w_hh.shape} do not stack three gates of one size")
        check_layer("output layer", *self.output, gates // 3)

    @property
    def inputs(self) -> int:
        return int(self.input[0].shape[1])

    @property
    def hidden(self) -> int:
        """The size of the recurrent state."""
        return int(self.w_hh.shape[1])

    @property
    def outputs(self) -> int:
        return int(self.output[0].shape[0])

    def initial_state(self, n: int) -> dict[str, Array]:
        return {"hidden": np.zeros((n, self.hidden), np.float32)}

    def forward(self, features: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        before = state["hidden"]
        x = np.maximum(features @ self.input[0].T + self.input[1], np.float32(0.0))
        hidden = gated(x, before, (self.w_ih, self.b_ih), (self.w_hh, self.b_hh))
        return np.tanh(hidden @ self.output[0].T + self.output[1]), {"hidden": hidden}

    def write(self, graph: Graph, x: str) -> str:
        x = graph.add("Relu", graph.linear(x, *self.input))
        hidden = write_gated(graph, x, "hidden", (self.w_ih, self.b_ih), (self.w_hh, self.b_hh))
        return graph.add("Tanh", graph.linear(hidden, *self.output))
