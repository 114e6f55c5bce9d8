"""A recurrent student that learns to act as it is told: forward, error and adjoint in one Numba kernel, without torch.

The kernels of `policies.algorithms.apg.fused_network`, as in `policies.algorithms.apg.fused`, but on flights that
somebody else has recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from policies.algorithms.apg import fused
from policies.algorithms.apg import fused_network as network
from policies.algorithms.apg.fused_network import CHUNK, ONE, ZERO
from policies.models.networks.gru import Gru
from sim.engines.vector.blocks import block, kernel
from sim.engines.vector.simd import ALL, LANES, total
from sim.randomize import Array

ARRAYS = ("weights", "first", "second")  # of the student, saved as they are
BETA1, BETA2 = 0.9, 0.99  # of Adam


class Segment(NamedTuple):
    """T steps of n environments, in blocks of LANES: (blocks * T, rows, LANES) each."""

    features: Array
    label: Array  # the actions wanted
    goes_on: Array  # one row: 0 where the episode ends with this step, else 1
    hidden: Array  # (blocks, state, LANES), before the first step


class Scratch(NamedTuple):
    """Memory for one block."""

    activation: Array  # (T, rows, LANES)
    g_network: Array  # (CHUNK, rows, LANES)
    hidden: Array  # (1, state, LANES)
    g_hidden: Array
    transposed: Array


def to_segment(features: Array, label: Array, goes_on: Array, hidden: Array) -> Segment:
    """From (T, n, k) each, and the recurrent state (n, h) at the beginning."""

    def lanes(values: Array) -> Array:
        steps, n, rows = values.shape
        apart = values.reshape(steps, n // LANES, LANES, rows).transpose(1, 0, 3, 2)
        return np.ascontiguousarray(apart, np.float32).reshape(-1, rows, LANES)

    return Segment(lanes(features), lanes(label), lanes(goes_on), lanes(hidden[None]))


@kernel
def imitate(layout, weights, gradient, segment, scratch, first, count, steps):
    """Add to `gradient` that of the mean squared error of the student's actions in `count` blocks from `first` on.

    The recurrent state is carried through the segment of `steps`, and zeroed where an episode ends. Returns the error.
    """
    actions, size = layout.layers[3].rows, layout.hidden_size
    weight = ONE / np.float32(count * steps * LANES * actions)
    hidden, g_hidden = block(scratch.hidden, 0, size), block(scratch.g_hidden, 0, size)
    error = 0.0
    network.transpose(weights, scratch.transposed, layout.layers)
    for index in range(first, first + count):
        begin = block(segment.hidden, index, size)
        for i in range(size):
            hidden[i, ALL] = begin[i, ALL]
            g_hidden[i, ALL] = ZERO
        for t in range(steps):
            y = block(scratch.activation, t, layout.rows)
            x = block(segment.features, index * steps + t, layout.features)
            goes_on = block(segment.goes_on, index * steps + t, 1)
            for i in range(layout.features):
                y[i, ALL] = x[i, ALL]
            network.gru_forward(weights, layout, y, hidden)
            for i in range(size):
                hidden[i, ALL] *= goes_on[0, ALL]
        for t in range(steps - 1, -1, -1):
            y = block(scratch.activation, t, layout.rows)
            g = block(scratch.g_network, t % CHUNK, layout.rows)
            label = block(segment.label, index * steps + t, actions)
            goes_on = block(segment.goes_on, index * steps + t, 1)
            for i in range(actions):
                gap = y[layout.action + i, ALL] - label[i, ALL]
                error += total(gap * gap)
                g[layout.action + i, ALL] = (weight + weight) * gap
            for i in range(size):
                g_hidden[i, ALL] *= goes_on[0, ALL]
            network.gru_backward(scratch.transposed, layout, y, g, g_hidden)
            if t % CHUNK == 0:
                for layer in layout.layers:
                    network.weight_gradient(
                        layer, scratch.g_network, scratch.activation, t, min(CHUNK, steps - t), gradient
                    )
    return error * weight


class Student:
    """A GRU policy with its optimiser, for segments of `steps` control steps. `bias` is what it does at first."""

    def __init__(
        self, features: int, hidden: list[int], actions: int, rng: np.random.Generator, bias: float, steps: int
    ) -> None:
        self.layout = network.gru_layout(features, hidden[0], hidden[1], actions)
        self.weights = network.initial_weights(self.layout, rng, 0.1, bias)
        self.gradient, self.first, self.second = (np.zeros_like(self.weights) for _ in range(3))
        self.updates, self.steps = 0, steps

        def room(first: int, rows: int) -> Array:
            return np.zeros((first, rows, LANES), np.float32)

        rows, size = self.layout.rows, self.layout.hidden_size
        transposed = np.zeros(self.layout.transposed, np.float32)
        self.scratch = Scratch(room(steps, rows), room(CHUNK, rows), room(1, size), room(1, size), transposed)

    def error(self, segment: Segment, first: int, count: int) -> float:
        """The mean squared error on `count` blocks of a segment; its gradient is added to `gradient`."""
        arguments = self.layout, self.weights, self.gradient, segment, self.scratch
        return float(imitate(*arguments, first, count, self.steps))

    def study(self, segment: Segment, blocks: int, rate: float, clip: float) -> tuple[float, float]:
        """One pass over a segment, `blocks` per gradient step. Returns the mean error and the last gradient's norm."""
        errors = []
        for first in range(0, len(segment.hidden), blocks):
            errors.append(self.error(segment, first, blocks))
            self.updates += 1
            norm = fused.adam(
                self.weights, self.gradient, self.first, self.second, self.updates, rate, BETA1, BETA2, clip
            )
        return float(np.mean(errors)), float(norm)

    def network(self) -> Gru:
        """What has been learned so far."""
        encoder, inward, recurrent, output = network.matrices(self.layout, self.weights)
        return Gru(encoder, inward[0], recurrent[0], inward[1], recurrent[1], output)

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        return {"updates": self.updates, **{name: getattr(self, name).copy() for name in ARRAYS}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.updates = int(state["updates"])
        for name in ARRAYS:
            getattr(self, name)[...] = state[name]
