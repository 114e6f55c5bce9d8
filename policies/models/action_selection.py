"""What learners make of a base's chunk at deployment: edits, and the best of several as critics judge them.

Each is numpy data and ONNX nodes, and takes the place of the base alone in `ChunkPolicy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.models.chunking import Base, ExportableBase
from policies.models.networks import Array
from policies.models.networks.feed_forward import Mlp

if TYPE_CHECKING:
    from policies.models.graph import Graph

EPSILON = 1e-5  # of layer norm


@dataclass
class CriticEnsemble:
    """Critics with ReLU and layer norm: their mean minus `pessimism` of their deviations."""

    weights: list[Array]  # (critics, in, out) of each layer
    biases: list[Array]  # (critics, 1, out)
    pessimism: float

    def value(self, x: Array) -> Array:
        """(n,) of inputs (n, k)."""
        y = x @ self.weights[0] + self.biases[0]
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            away = y - y.mean(-1, keepdims=True)
            y = away / np.sqrt((away**2).mean(-1, keepdims=True) + np.float32(EPSILON))
            y = np.maximum(y, np.float32(0.0)) @ weight + bias
        believed: Array = y.mean(0) - (
            np.float32(self.pessimism) * y.std(0, ddof=1) if self.pessimism else np.float32(0.0)
        )
        return believed[:, 0]

    def write(self, graph: Graph, x: str) -> str:
        """The same as ONNX nodes; the name of the values (n, 1)."""
        y = x
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if index:
                scale = graph.constant(np.ones(weight.shape[1]))
                y = graph.add("Relu", graph.add("LayerNormalization", y, scale, epsilon=EPSILON))
            y = graph.add("Add", graph.add("MatMul", y, graph.constant(weight)), graph.constant(bias))
        first, count = graph.constant([0], np.int64), len(self.weights[0])
        mean = graph.add("ReduceMean", y, first, keepdims=0)
        if not self.pessimism:
            return mean
        away = graph.add("Sub", y, mean)
        square = graph.add("ReduceSum", graph.add("Mul", away, away), first, keepdims=0)
        spread = graph.add("Sqrt", graph.add("Div", square, graph.constant(float(count - 1))))
        return graph.add("Sub", mean, graph.add("Mul", spread, graph.constant(self.pessimism)))


@dataclass
class ResidualEdit:
    """The base's chunk and an edit of it: `magnitude` * tanh of a perceptron of observation and chunk."""

    actor: Mlp
    magnitude: float
    repeat: int = 1  # the same edit for so many actions

    def sample(self, base: Base, observation: Array, noise: Array) -> Array:
        """Chunks (n, horizon * actions) for observations (n, o) and noise (n, k)."""
        return self.edit(observation, base.sample(observation, noise))

    def edit(self, observation: Array, chunk: Array) -> Array:
        """Other chunks (n, horizon * actions) in [-1, 1]."""
        change, _ = self.actor.forward(np.concatenate([observation, chunk], axis=1), {})
        edited: Array = np.clip(chunk + np.float32(self.magnitude) * np.tile(change, (1, self.repeat)), -1.0, 1.0)
        return edited

    def write(self, graph: Graph, base: ExportableBase, observation: str, noise: str) -> str:
        """The same as ONNX nodes; the name of the chunk."""
        return self.write_edit(graph, observation, base.write(graph, observation, noise))

    def write_edit(self, graph: Graph, observation: str, chunk: str) -> str:
        """`edit` as ONNX nodes."""
        change = graph.join([self.actor.write(graph, graph.join([observation, chunk]))] * self.repeat)
        moved = graph.add("Add", chunk, graph.add("Mul", change, graph.constant(self.magnitude)))
        return graph.add("Clip", moved, graph.constant(-1.0), graph.constant(1.0))


@dataclass
class BestOfN:
    """Of `count` chunks of the base, and of their edits, the one that the critics of (observation, chunk) like best.

    Takes `count` times the base's noise.
    """

    judges: CriticEnsemble
    count: int
    edited: ResidualEdit | None = None

    def sample(self, base: Base, observation: Array, noise: Array) -> Array:
        """Chunks (n, horizon * actions) for observations (n, o) and noise (n, count * k)."""
        seen = _each(observation, self.count)
        options = base.sample(seen, noise.reshape(len(seen), -1))
        if self.edited is not None:
            options = np.stack([options, self.edited.edit(seen, options)], axis=1).reshape(-1, options.shape[1])
            seen = _each(seen, 2)
        return _best(self.judges, seen, options, len(observation))

    def write(self, graph: Graph, base: ExportableBase, observation: str, noise: str) -> str:
        """The same as ONNX nodes; the name of the chunk."""
        size, observed = base.horizon * base.actions, base.observed
        seen, count = _write_each(graph, observation, self.count, observed), self.count
        options = base.write(graph, seen, graph.rows(noise, base.noise_size))
        if self.edited is not None:
            pairs = graph.join([options, self.edited.write_edit(graph, seen, options)])
            options, seen, count = graph.rows(pairs, size), _write_each(graph, seen, 2, observed), 2 * count
        return _write_best(graph, self.judges, seen, options, (count, size))


@dataclass
class BestOfNNoise:
    """The base's chunk from the one of `count` noises that the critics of (observation, noise) like best."""

    judges: CriticEnsemble
    count: int
    repeat: int = 1  # the same noise for so many actions

    def sample(self, base: Base, observation: Array, noise: Array) -> Array:
        """Chunks (n, horizon * actions) for observations (n, o) and noise (n, count * k / repeat)."""
        seen = _each(observation, self.count)
        best = _best(self.judges, seen, noise.reshape(len(seen), -1), len(observation))
        return base.sample(observation, np.tile(best, (1, self.repeat)))

    def write(self, graph: Graph, base: ExportableBase, observation: str, noise: str) -> str:
        """The same as ONNX nodes; the name of the chunk."""
        size = base.noise_size // self.repeat
        seen = _write_each(graph, observation, self.count, base.observed)
        best = _write_best(graph, self.judges, seen, graph.rows(noise, size), (self.count, size))
        return base.write(graph, observation, graph.join([best] * self.repeat))


def _each(x: Array, count: int) -> Array:
    return np.repeat(x, count, axis=0)


def _write_each(graph: Graph, x: str, count: int, size: int) -> str:
    return graph.rows(graph.join([x] * count), size)


def _best(judges: CriticEnsemble, seen: Array, options: Array, n: int) -> Array:
    """The best (n, k) of as many options for each of n, in a row (n * count, k)."""
    value = judges.value(np.concatenate([seen, options], axis=1)).reshape(n, -1)
    best: Array = options.reshape(n, value.shape[1], -1)[np.arange(n), value.argmax(axis=1)]
    return best


def _write_best(graph: Graph, judges: CriticEnsemble, seen: str, options: str, shape: tuple[int, int]) -> str:
    value = graph.rows(judges.write(graph, graph.join([seen, options])), shape[0])
    best = graph.add("ArgMax", value, axis=1, keepdims=1)
    return graph.add("GatherND", graph.rows(options, *shape), best, batch_dims=1)
