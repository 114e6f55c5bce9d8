"""What is in a picture, as a network tells it: of each thing whether it is seen, its bearing and its distance.

`python -m policies.train_detector` trains it, on pictures of matches. It tells what `task.perception=detector` does
(`sim.tasks.soccer.detection.signals`), so that a policy that was trained on that takes it: `python -m policies.join`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from policies.models.networks import Array, Layer
from policies.models.vision import convolved, standardised, write_convolved, write_standardised
from sim import spec
from sim.spec import Group, Signal
from sim.tasks.soccer.detection import signals

if TYPE_CHECKING:
    from policies.models.graph import Graph

LARGEST = 16.0  # rad and m that it can tell; a power of two, so that 0 and 1 pass through scaling exactly


def told(players: int) -> Group:
    """What a detector's file gives: the signals of `sim.tasks.soccer.detection`, within limits."""
    return tuple(dataclasses.replace(s, low=-LARGEST, high=LARGEST) for s in signals(players))


@dataclass
class PictureDetector:
    """Convolutions; for each thing a softmax over their cells, which says where it is; and what is found there.

    They see a picture whose colours are standardised, whatever the light. The bearing is the mean of those of the
    columns (as points are found by `vision.KeypointEncoder`). Of values that further channels hold the means go with
    the columns' shares through two linear layers, ReLU between them: to all logits, above 0 where a thing is seen, then
    all logarithms of distances. It remembers nothing.
    """

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group  # one picture
    outputs: Group
    layers: Sequence[Layer]  # of the convolutions, as `vision` has them
    strides: Sequence[int]
    maps: Layer  # W (things, channels), b (things,)
    values: Layer  # W (things * k, channels), b (things * k,)
    head: Sequence[Layer]  # two
    bearings: Array  # rad of each column of cells
    settings: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, float] = field(default_factory=dict)

    @property
    def things(self) -> int:
        """How many it tells of."""
        return spec.size(self.outputs) // 3

    @property
    def picture(self) -> Signal:
        """What it looks at."""
        return self.inputs[0]

    def state(self) -> Group:
        """None."""
        return ()

    def initial_state(self, n: int) -> dict[str, Array]:
        """None."""
        return {}

    def limits(self) -> tuple[Array, Array]:
        """Low and high (3 things,) of what is told."""
        return spec.limits(self.outputs)

    def act(self, signals: Mapping[str, Any], state: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """What is told name -> (n, k) of pictures (n, height, width, 3), each by itself."""
        told = np.stack([self._told(picture) for picture in signals[self.picture.name]])
        return spec.unpack(self.outputs, np.clip(told, -LARGEST, LARGEST)), {}

    def _told(self, picture: NDArray[np.uint8]) -> Array:
        cells = np.maximum(convolved(standardised(picture), self.layers, self.strides), np.float32(0.0))
        rows, columns, _ = cells.shape
        flat = cells.reshape(rows * columns, -1)
        looked = flat @ self.maps[0].T + self.maps[1]
        likely = np.exp(looked - looked.max(axis=0))
        likely = (likely / likely.sum(axis=0)).T  # (things, cells)
        column = likely.reshape(-1, rows, columns).sum(axis=1)
        held = (flat @ self.values[0].T + self.values[1]).T.reshape(self.things, -1, rows * columns)
        found = (held * likely[:, None]).sum(axis=2)
        (first, bias), (last, shift) = self.head
        hidden = np.maximum(np.concatenate([found.ravel(), column.ravel()]) @ first.T + bias, np.float32(0.0))
        logit, distance = np.split(hidden @ last.T + shift, 2)
        seen = (logit > 0.0).astype(np.float32)
        away = np.minimum(np.exp(distance), np.float32(LARGEST))
        told: Array = np.stack([seen, column @ self.bearings * seen, away * seen], axis=1).ravel()
        return told

    def write(self, graph: Graph) -> str:
        """The same as ONNX nodes; what is told as a share of `LARGEST`."""
        shown, shape = write_standardised(graph, self.picture.name), self.picture.shape
        x, rows, columns = write_convolved(graph, shown, shape, self.layers, self.strides)
        x, n, cells = graph.add("Relu", x), self.things, rows * columns

        def each(layer: Layer) -> str:
            """A linear layer of every cell's channels."""
            return graph.add("Conv", x, graph.constant(layer[0][:, :, None, None]), graph.constant(layer[1]))

        likely = graph.add("Softmax", graph.rows(each(self.maps), n, cells), axis=-1)
        by_row = graph.rows(likely, n, rows, columns)
        column = graph.add("ReduceSum", by_row, graph.constant([2], np.int64), keepdims=0)
        k = len(self.values[1]) // n
        held = graph.add("Mul", graph.rows(each(self.values), n, k, cells), graph.rows(likely, n, 1, cells))
        found = graph.add("ReduceSum", held, graph.constant([3], np.int64), keepdims=0)
        together = graph.join([graph.rows(found, n * k), graph.rows(column, n * columns)])
        hidden = graph.add("Relu", graph.linear(together, *self.head[0]))
        logit, distance = graph.split(graph.linear(hidden, *self.head[1]), [n, n])
        seen = graph.real(graph.add("Greater", logit, graph.constant(0.0)))
        bearing = graph.rows(graph.add("MatMul", column, graph.constant(self.bearings[:, None])), n)
        away = graph.add("Min", graph.add("Exp", distance), graph.constant(LARGEST))
        kinds = [seen, graph.add("Mul", bearing, seen), graph.add("Mul", away, seen)]
        by_thing = np.arange(3 * n).reshape(3, n).T.reshape(-1)
        told = graph.add("Gather", graph.join(kinds), graph.constant(by_thing, np.int64), axis=1)
        return graph.add("Mul", told, graph.constant(1.0 / LARGEST))


@dataclass
class DetectorEncoder:
    """What a policy sees by, as `policies.models.vision.PictureEncoder`: the numbers are what a detector tells."""

    detector: PictureDetector

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the pictures."""
        return self.detector.picture.shape

    @property
    def size(self) -> int:
        """Three numbers of each thing."""
        return 3 * self.detector.things

    def see(self, pictures: NDArray[np.uint8]) -> Array:
        """What is told (n, size), each picture by itself."""
        told, _ = self.detector.act({self.detector.picture.name: pictures}, {})
        return spec.pack(self.detector.outputs, told)

    def write(self, graph: Graph, picture: str) -> str:
        """The same as ONNX nodes."""
        return graph.add("Mul", self.detector.write(graph), graph.constant(LARGEST))


def picture_bearings(rays: Array) -> Array:
    """How far to the left of its middle each column of a picture looks (width,), rad, in the middle row."""
    middle = rays[len(rays) // 2]
    made: Array = np.arctan2(middle[:, 1], middle[:, 0]).astype(np.float32)
    return made
