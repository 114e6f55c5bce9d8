"""The actor that streaming learns, as the policy file has it: layer norms and LeakyReLU between linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from policies.algorithms.streaming.stream_ac import LEAK, SMALLEST, StreamAC
from policies.models.networks import Array
from policies.models.networks.feed_forward import FeedForward

if TYPE_CHECKING:
    from policies.models.graph import Graph


class StreamedActor(FeedForward):
    """Actions in [-1, 1]: the means, clipped. The first layer has the normalisation of what is seen in it."""

    @classmethod
    def of(cls, learner: StreamAC) -> StreamedActor:
        """What has been learned so far."""
        weights = learner.actor.weights
        layers = list(zip(weights[::2], weights[1::2], strict=True))
        first, bias = layers[0]
        first = first / learner.seen.std
        layers[0] = first, bias - first @ learner.seen.mean
        last, bias = layers[-1]
        layers[-1] = last[: learner.actions], bias[: learner.actions]
        return cls([(w.astype(np.float32), b.astype(np.float32)) for w, b in layers])

    def forward(self, features: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        x = features
        for weight, bias in self.layers[:-1]:
            x = x @ weight.T + bias
            x = x - x.mean(axis=-1, keepdims=True)
            x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(SMALLEST))
            x = np.where(x > 0.0, x, np.float32(LEAK) * x)
        weight, bias = self.layers[-1]
        return np.clip(x @ weight.T + bias, -1.0, 1.0), {}

    def write(self, graph: Graph, x: str) -> str:
        for weight, bias in self.layers[:-1]:
            one = graph.constant(np.ones(len(bias)))
            x = graph.add("LayerNormalization", graph.linear(x, weight, bias), one, axis=-1, epsilon=SMALLEST)
            x = graph.add("LeakyRelu", x, alpha=LEAK)
        made = graph.linear(x, *self.layers[-1])
        return graph.add("Clip", made, graph.constant(-1.0), graph.constant(1.0))
