"""What a policy sees, as one vector: numbers that are measured, and the points that encoders find in pictures.

Numpy data that write themselves as ONNX nodes; `policies.learning.encoders` trains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from policies.models.controller import Array, Layer
from sim import spec
from sim.spec import Group

if TYPE_CHECKING:
    from policies.models.graph import Graph

KERNEL = 3  # pixels, of every convolution


def grid(height: int, width: int) -> Array:
    """Where the pixels of a picture are (height * width, 2): right and down, -1 to 1."""
    down, right = np.meshgrid(np.linspace(-1.0, 1.0, height), np.linspace(-1.0, 1.0, width), indexing="ij")
    return np.stack([right.ravel(), down.ravel()], axis=1).astype(np.float32)


@dataclass
class EncoderConfig:
    """Settings of the encoders, one for each picture that the task shows."""

    channels: list[int] = field(default_factory=lambda: [16, 32, 32])  # of the convolutions; the last are looked for
    strides: list[int] = field(default_factory=lambda: [2, 2, 2])
    shift: int = 2  # pixels by which a picture is moved at most, each way
    draws: int = 4  # of noise and time per picture: a batch holds so many times fewer pictures

    def __post_init__(self) -> None:
        if not self.channels or len(self.channels) != len(self.strides):
            raise ValueError(f"needs one stride per convolution, got {self.channels} and {self.strides}")
        if min(*self.channels, *self.strides, self.draws) < 1 or self.shift < 0:
            raise ValueError("needs channels, strides and draws >= 1 and shift >= 0")


@dataclass
class KeypointEncoder:
    """Convolutions with ReLU between them, and for each channel of the last one the mean place of its softmax.

    That is where in the picture the channel finds what it looks for (Levine et al. 2016, arXiv 1504.00702).
    """

    shape: tuple[int, ...]  # of the picture: height, width, 3
    layers: list[Layer]  # W (out, in, KERNEL, KERNEL), b (out,); the first takes 0 to 255
    strides: list[int]

    @property
    def size(self) -> int:
        """Numbers per picture."""
        return 2 * len(self.layers[-1][1])

    def see(self, pictures: NDArray[np.uint8]) -> Array:
        """Points (n, size) in pictures (n, height, width, 3), each picture by itself: its neighbours change no bit."""
        return np.stack([self._points(picture) for picture in pictures])

    def _points(self, picture: NDArray[np.uint8]) -> Array:
        x = picture.astype(np.float32)
        for index, ((weight, bias), stride) in enumerate(zip(self.layers, self.strides, strict=True)):
            x = _convolve(np.maximum(x, np.float32(0.0)) if index else x, weight, bias, stride)
        looked = x.reshape(-1, x.shape[2])
        likely = np.exp(looked - looked.max(axis=0))
        points: Array = (likely / likely.sum(axis=0)).T @ grid(*x.shape[:2])
        return points.ravel()

    def write(self, graph: Graph, picture: str) -> str:
        """The same as ONNX nodes; the name of the points."""
        x = graph.add("Transpose", graph.real(picture), perm=[0, 3, 1, 2])
        height, width, _ = self.shape
        for index, ((weight, bias), stride) in enumerate(zip(self.layers, self.strides, strict=True)):
            x = graph.add("Relu", x) if index else x
            weights = (graph.constant(weight), graph.constant(bias))
            x = graph.add("Conv", x, *weights, strides=[stride] * 2, pads=[KERNEL // 2] * 4)
            height, width = (-(-side // stride) for side in (height, width))
        likely = graph.add("Softmax", graph.rows(x, self.size // 2, height * width), axis=-1)
        return graph.rows(graph.add("MatMul", likely, graph.constant(grid(height, width))), self.size)


def _convolve(x: Array, weight: Array, bias: Array, stride: int) -> Array:
    """(height, width, in) -> (height / stride, width / stride, out), zeros around the picture."""
    edge = KERNEL // 2
    padded = np.pad(x, ((edge, edge), (edge, edge), (0, 0)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), axis=(0, 1))[::stride, ::stride]
    y: Array = patches.reshape(-1, weight[0].size) @ weight.reshape(len(bias), -1).T + bias
    return y.reshape(*patches.shape[:2], -1)


@dataclass
class ObservationEncoder:
    """How a policy's signals become the vector that its networks see: numbers first, then each picture's points."""

    inputs: Group
    encoders: dict[str, KeypointEncoder] = field(default_factory=dict)  # by the picture's name

    def __post_init__(self) -> None:
        self.pictures = spec.pictures(self.inputs)
        self.numbers = spec.numbers(self.inputs)
        for signal in self.pictures:
            if signal.name not in self.encoders or self.encoders[signal.name].shape != signal.shape:
                raise ValueError(f"the picture {signal.name!r} of shape {signal.shape} has no encoder")

    @property
    def measured(self) -> int:
        """How many of the vector's elements are measured, not seen."""
        return spec.size(self.numbers)

    @property
    def size(self) -> int:
        """The vector's length."""
        return self.measured + sum(self.encoders[s.name].size for s in self.pictures)

    def see(self, signals: Mapping[str, Any]) -> Array:
        """The vectors (n, size) of signals (n, *shape)."""
        measured = [spec.pack(self.numbers, signals)] if self.numbers else []
        points = [self.encoders[s.name].see(signals[s.name]) for s in self.pictures]
        return np.concatenate(measured + points, axis=1) if points else measured[0]

    def write(self, graph: Graph) -> str:
        """The same as ONNX nodes, from the signals; the name of the vector."""
        points = [self.encoders[s.name].write(graph, s.name) for s in self.pictures]
        return graph.join([*(s.name for s in self.numbers), *points])

    def write_measured(self, graph: Graph, vector: str) -> str:
        """What of the vector is measured."""
        return graph.columns(vector, 0, self.measured) if self.pictures else vector
