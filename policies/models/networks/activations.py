"""What stands between the layers of networks, in numpy and as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from policies.models.networks import Array

if TYPE_CHECKING:
    from policies.models.graph import Graph

ONE = np.float32(1.0)
SELU = np.float32(1.67326319217681884765625), np.float32(1.05070102214813232421875)  # of ONNX's and torch's Selu
FAST = (
    np.float32(3.0),
    np.float32(27.0),
    np.float32(9.0),
)  # rl_tools' fast tanh: x (27 + x^2) / (27 + 9 x^2), |x| <= 3


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    half = np.float32(0.5)
    y: Array = half * np.tanh(half * x) + half
    return y


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
