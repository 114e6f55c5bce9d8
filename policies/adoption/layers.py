"""Networks that somebody else trained, as numpy data: layers, gated units that remember, and chains of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from policies.models.controller import Array, Layer, chained, check_layer, float32, gated, sigmoid, write_gated
from policies.models.graph import Graph

ONE = np.float32(1.0)
SELU = np.float32(1.67326319217681884765625), np.float32(1.05070102214813232421875)  # of ONNX's and torch's Selu
FAST = (
    np.float32(3.0),
    np.float32(27.0),
    np.float32(9.0),
)  # rl_tools' fast tanh: x (27 + x^2) / (27 + 9 x^2), |x| <= 3


def _exp_below(x: Array) -> Array:
    """exp(x) - 1 of what is below zero."""
    return np.exp(np.minimum(x, np.float32(0.0))) - ONE


def _elu(x: Array) -> Array:
    return np.where(x > 0.0, x, _exp_below(x))


def _selu(x: Array) -> Array:
    return SELU[1] * np.where(x > 0.0, x, SELU[0] * _exp_below(x))


def _leaky(x: Array) -> Array:
    return np.where(x > 0.0, x, np.float32(0.01) * x)


def _silu(x: Array) -> Array:
    return x * sigmoid(x)


def _write_silu(graph: Graph, x: str) -> str:
    return graph.add("Mul", x, graph.add("Sigmoid", x))


def _fast_tanh(x: Array) -> Array:
    limit, above, below = FAST
    x = np.clip(x, -limit, limit)
    square = x * x
    y: Array = x * (above + square) / (above + below * square)
    return y


def _write_fast_tanh(graph: Graph, x: str) -> str:
    limit, above, below = (graph.constant(number) for number in FAST)
    x = graph.add("Clip", x, graph.constant(-FAST[0]), limit)
    square = graph.add("Mul", x, x)
    over = graph.add("Mul", x, graph.add("Add", square, above))
    return graph.add("Div", over, graph.add("Add", graph.add("Mul", square, below), above))


def _node(operator: str) -> Callable[[Graph, str], str]:
    return lambda graph, x: graph.add(operator, x)


# Name -> its meaning, and as ONNX nodes.
ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Graph, str], str]]] = {
    "tanh": (np.tanh, _node("Tanh")),
    "relu": (lambda x: np.maximum(x, np.float32(0.0)), _node("Relu")),
    "elu": (_elu, _node("Elu")),
    "selu": (_selu, _node("Selu")),
    "leaky_relu": (_leaky, _node("LeakyRelu")),
    "sigmoid": (sigmoid, _node("Sigmoid")),
    "silu": (_silu, _write_silu),
    "fast_tanh": (_fast_tanh, _write_fast_tanh),
    "identity": (lambda x: x, lambda graph, x: x),
}


class Network(Protocol):
    """Any finite numbers (n, inputs) and a state in, any (n, outputs) and the next state out."""

    @property
    def inputs(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    def initial_state(self, n: int) -> dict[str, Array]:
        """The state (n, k) by name before the first step; empty for a network that does not remember."""

    def forward(self, x: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]: ...

    def write(self, graph: Graph, x: str) -> str:
        """The same as ONNX nodes, `next_state.NAME` included; the name of the result."""


@dataclass
class Perceptron:
    """Fully connected layers; `activation` after each but the last, `last` after that."""

    layers: list[Layer]
    activation: str
    last: str = "identity"

    def __post_init__(self) -> None:
        for name in (self.activation, self.last):
            if name not in ACTIVATIONS:
                raise ValueError(f"network.activation: {name!r} is not one of {', '.join(ACTIVATIONS)}")
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

    def forward(self, x: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        for (weight, bias), name in zip(self.layers, self._activations, strict=True):
            x = ACTIVATIONS[name][0](x @ weight.T + bias)
        return x, {}

    def write(self, graph: Graph, x: str) -> str:
        for layer, name in zip(self.layers, self._activations, strict=True):
            x = ACTIVATIONS[name][1](graph, graph.linear(x, *layer))
        return x


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
