"""What is in a picture, as a network tells it: of each thing whether it is seen, its bearing and its distance.

`python -m policies.train_detector` trains it, on pictures of matches. It tells what `task.perception=detector` does
(`sim.tasks.detection.signals`), so that a policy that was trained on that takes it: `python -m policies.join`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.models.controller import Array, Layer
from policies.models.vision import PictureEncoder
from sim import spec
from sim.spec import Group, Signal
from sim.tasks.detection import signals

if TYPE_CHECKING:
    from policies.models.graph import Graph

LARGEST = 16.0  # rad and m that it can tell; a power of two, so that 0 and 1 pass through scaling exactly


def told(players: int) -> Group:
    """What a detector's file gives: the signals of `sim.tasks.detection`, within limits."""
    return tuple(dataclasses.replace(s, low=-LARGEST, high=LARGEST) for s in signals(players))


@dataclass
class PictureDetector:
    """Convolutions and fully connected layers with ReLU between them; of each thing a logit, a bearing, a distance.

    The last layer gives all logits, then all bearings (shares of half the view), then all logarithms of distances. A
    thing is seen where its logit is above 0. It remembers nothing.
    """

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group  # one picture
    outputs: Group
    eye: PictureEncoder
    layers: Sequence[Layer]
    view: float  # rad, across
    settings: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, float] = field(default_factory=dict)

    @property
    def things(self) -> int:
        """How many it tells of."""
        return spec.size(self.outputs) // 3

    def state(self) -> Group:
        """None."""
        return ()

    def initial_state(self, n: int) -> dict[str, Array]:
        """None."""
        return {}

    def limits(self) -> tuple[Array, Array]:
        """Low and high (3 things,) of what is told."""
        return spec.limits(self.outputs)

    def act(
        self, signals: Mapping[str, Any], state: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """What is told name -> (n, k) of pictures (n, height, width, 3)."""
        x = self.eye.see(signals[self.picture.name])
        for k, (weight, bias) in enumerate(self.layers):
            x = (np.maximum(x, np.float32(0.0)) if k else x) @ weight.T + bias
        logit, bearing, distance = np.split(x, 3, axis=1)
        seen = (logit > 0.0).astype(np.float32)
        bearing = np.float32(self.view / 2.0) * bearing * seen
        distance = np.minimum(np.exp(distance), np.float32(LARGEST)) * seen
        told = np.stack([seen, bearing, distance], axis=-1).reshape(len(x), -1)
        return spec.unpack(self.outputs, np.clip(told, -LARGEST, LARGEST)), {}

    @property
    def picture(self) -> Signal:
        """What it looks at."""
        return self.inputs[0]

    def write(self, graph: Graph) -> str:
        """The same as ONNX nodes; what is told as a share of `LARGEST`."""
        x, n = self.eye.write(graph, self.picture.name), self.things
        for k, (weight, bias) in enumerate(self.layers):
            x = graph.linear(graph.add("Relu", x) if k else x, weight, bias)
        logit, bearing, distance = graph.split(x, [n, n, n])
        seen = graph.real(graph.add("Greater", logit, graph.constant(0.0)))
        bearing = graph.add("Mul", graph.add("Mul", bearing, graph.constant(self.view / 2.0)), seen)
        distance = graph.add("Min", graph.add("Exp", distance), graph.constant(LARGEST))
        all_of = graph.join([seen, bearing, graph.add("Mul", distance, seen)])
        by_thing = np.arange(3 * n).reshape(3, n).T.reshape(-1)
        told = graph.add("Gather", all_of, graph.constant(by_thing, np.int64), axis=1)
        return graph.add("Mul", told, graph.constant(1.0 / LARGEST))
