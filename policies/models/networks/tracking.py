"""A network that remembers where things are: a gated unit, and vectors that are carried along as the robot moves.

A learned filter: the vectors are predicted from the robot's own motion (`sim.tasks.tracking.EgoMotion`), and corrected
by what is seen, as far as a gate lets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.models.networks import Array, Layer, check_layer, float32
from policies.models.networks.activations import sigmoid
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import gated, write_gated
from sim.tasks.tracking import EgoMotion

if TYPE_CHECKING:
    from policies.models.graph import Graph


@dataclass
class TrackingGru:
    """Features (f,) and vectors (m,) to actions. `motion` are the columns of the features that say how it moves.

    Linear and ReLU of features and carried vectors; a gated unit (gates as torch.nn.GRUCell's); from both of them the
    correction of the vectors; from features, vectors and unit the actions: layers with tanh after each.
    """

    ego: EgoMotion
    motion: tuple[int, int, int]  # columns of the features: velocity ahead, to the left (m/s), turning (rad/s)
    numbers: int  # the first so many features are measured; the others are found in pictures
    encoder: Layer  # (e, f + m)
    inward: Layer  # (3 h, e)
    across: Layer  # (3 h, h)
    correction: Layer  # (2 m, e + h): what is measured, and the gate before its sigmoid
    head: Mlp  # of numbers, vectors and unit

    def __post_init__(self) -> None:
        for name in ("encoder", "inward", "across", "correction"):
            setattr(self, name, float32(getattr(self, name)))
        m, h, e = self.ego.size, self.across[0].shape[1], check_layer("encoder", *self.encoder, None)
        for name, layer, inputs, outputs in (
            ("inward", self.inward, e, 3 * h),
            ("across", self.across, h, 3 * h),
            ("correction", self.correction, e + h, 2 * m),
        ):
            if (found := check_layer(name, *layer, inputs)) != outputs:
                raise ValueError(f"{name}: returns {found} values where {outputs} are needed")
        if self.head.inputs != self.numbers + m + h:
            raise ValueError(f"head: takes {self.head.inputs} values but receives {self.numbers + m + h}")
        if not all(0 <= column < self.numbers <= self.inputs for column in self.motion):
            raise ValueError(f"motion {self.motion} are no three of {self.numbers} numbers in {self.inputs} features")

    @property
    def inputs(self) -> int:
        return int(self.encoder[0].shape[1]) - self.ego.size

    @property
    def outputs(self) -> int:
        return self.head.outputs

    def initial_state(self, n: int) -> dict[str, Array]:
        sizes = {"hidden": self.across[0].shape[1], "tracked": self.ego.size}
        return {name: np.zeros((n, size), np.float32) for name, size in sizes.items()}

    def forward(self, features: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        moving = features[:, list(self.motion)]
        carried = self.ego.carried(state["tracked"], moving[:, :2], moving[:, 2:])
        x = np.maximum(_linear(np.concatenate([features, carried], axis=1), self.encoder), np.float32(0.0))
        hidden = gated(x, state["hidden"], self.inward, self.across)
        measured, gate = np.split(_linear(np.concatenate([x, hidden], axis=1), self.correction), 2, axis=-1)
        tracked = carried + sigmoid(gate) * (measured - carried)
        known = np.concatenate([features[:, : self.numbers], tracked, hidden], axis=1)
        return self.head.forward(known, {})[0], {"hidden": hidden, "tracked": tracked}

    def write(self, graph: Graph, x: str) -> str:
        m = self.ego.size
        carried, numbers = self._write_carried(graph, x), graph.columns(x, 0, self.numbers)
        x = graph.add("Relu", graph.linear(graph.join([x, carried]), *self.encoder))
        hidden = write_gated(graph, x, "hidden", self.inward, self.across)
        measured, gate = graph.split(graph.linear(graph.join([x, hidden]), *self.correction), [m, m])
        error = graph.add("Mul", graph.add("Sigmoid", gate), graph.add("Sub", measured, carried))
        tracked = graph.add("Add", carried, error, to="next_state.tracked")
        return self.head.write(graph, graph.join([numbers, tracked, hidden]))

    def _write_carried(self, graph: Graph, features: str) -> str:
        ego = self.ego
        none = np.zeros(ego.size, np.float32)
        ahead, left, turning = (graph.columns(features, k, k + 1) for k in self.motion)
        moved = graph.linear(graph.join(["state.tracked", ahead, left]), ego.moved, none)
        half = graph.add("Mul", turning, graph.constant(np.float32(0.5) * ego.dt))
        square = graph.add("Mul", half, half)
        share = graph.add("Div", graph.constant(2.0), graph.add("Add", square, graph.constant(1.0)))
        less = graph.add("Mul", graph.add("Mul", square, share), graph.constant(ego.turns[None]))
        sideways = graph.add("Mul", graph.add("Mul", half, share), graph.linear(moved, ego.turned, none))
        return graph.add("Add", graph.add("Sub", moved, graph.add("Mul", less, moved)), sideways)


def _linear(x: Array, layer: Layer) -> Array:
    y: Array = x @ layer[0].T + layer[1]
    return y
