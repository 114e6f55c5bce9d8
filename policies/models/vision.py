"""What a policy sees, as one vector: numbers that are measured, and the points that encoders find in pictures.

Numpy data that write themselves as ONNX nodes; `policies.learning.encoders` trains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.models.networks import Array, Layer
from policies.models.networks.feed_forward import FeedForward
from sim import spec
from sim.spec import Group

if TYPE_CHECKING:
    from policies.models.graph import Graph

KERNEL = 3  # pixels, of every convolution
HEADS = ("keypoints", "flat")
DARK = 4.0  # of 255: differences in a picture that count as none
CONTRAST = 0.3 * 255.0  # the standard deviation of a colour once it is standardised


def grid(height: int, width: int) -> Array:
    """Where the pixels of a picture are (height * width, 2): right and down, -1 to 1."""
    down, right = np.meshgrid(np.linspace(-1.0, 1.0, height), np.linspace(-1.0, 1.0, width), indexing="ij")
    return np.stack([right.ravel(), down.ravel()], axis=1).astype(np.float32)


@dataclass
class EncoderConfig:
    """Settings of the encoders, one for each picture that the task shows."""

    channels: list[int] = field(default_factory=lambda: [16, 32, 32])  # of the convolutions; the last are looked for
    strides: list[int] = field(default_factory=lambda: [2, 2, 2])
    head: str = "keypoints"  # where the last channels find what they look for | flat: all that they hold
    shift: int = 2  # pixels by which a picture is moved at most, each way
    draws: int = 4  # of noise and time per picture: a batch holds so many times fewer pictures

    def __post_init__(self) -> None:
        if not self.channels or len(self.channels) != len(self.strides):
            raise ValueError(f"needs one stride per convolution, got {self.channels} and {self.strides}")
        if min(*self.channels, *self.strides, self.draws) < 1 or self.shift < 0:
            raise ValueError("needs channels, strides and draws >= 1 and shift >= 0")
        if self.head not in HEADS:
            raise ValueError(f"head {self.head!r} of an encoder is not one of {', '.join(HEADS)}")

    def held(self, shape: Sequence[int]) -> tuple[int, int]:
        """Height and width of what the last convolution makes of pictures of this shape."""
        height, width = shape[:2]
        for stride in self.strides:
            height, width = -(-height // stride), -(-width // stride)
        return height, width

    def found(self, shape: Sequence[int]) -> int:
        """How many numbers a picture of this shape becomes."""
        height, width = self.held(shape)
        return self.channels[-1] * (2 if self.head == "keypoints" else height * width)


class PictureEncoder(Protocol):
    """Pictures to numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the pictures: height, width, 3."""

    @property
    def size(self) -> int:
        """Numbers per picture."""

    def see(self, pictures: NDArray[np.uint8]) -> Array:
        """Numbers (n, size) of pictures (n, height, width, 3), each by itself: its neighbours change no bit."""

    def write(self, graph: Graph, picture: str) -> str:
        """The same as ONNX nodes; the name of the numbers."""


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
        x = convolved(picture, self.layers, self.strides)
        looked = x.reshape(-1, x.shape[2])
        likely = np.exp(looked - looked.max(axis=0))
        points: Array = (likely / likely.sum(axis=0)).T @ grid(*x.shape[:2])
        return points.ravel()

    def write(self, graph: Graph, picture: str) -> str:
        """The same as ONNX nodes, from the picture; the name of the points."""
        x, height, width = write_convolved(graph, picture, self.shape, self.layers, self.strides)
        likely = graph.add("Softmax", graph.rows(x, self.size // 2, height * width), axis=-1)
        return graph.rows(graph.add("MatMul", likely, graph.constant(grid(height, width))), self.size)


@dataclass
class FlatEncoder:
    """Convolutions with ReLU after each; all that the last one holds: channels, rows, columns."""

    shape: tuple[int, ...]  # of the picture: height, width, 3
    layers: list[Layer]  # W (out, in, KERNEL, KERNEL), b (out,); the first takes 0 to 255
    strides: list[int]

    @property
    def size(self) -> int:
        """Numbers per picture."""
        channels = [len(bias) for _, bias in self.layers]
        return EncoderConfig(channels, self.strides, "flat").found(self.shape)

    def see(self, pictures: NDArray[np.uint8]) -> Array:
        """Numbers (n, size) of pictures (n, height, width, 3), each picture by itself."""
        return np.stack([self._held(picture) for picture in pictures])

    def _held(self, picture: NDArray[np.uint8]) -> Array:
        x = np.maximum(convolved(picture, self.layers, self.strides), np.float32(0.0))
        held: Array = x.transpose(2, 0, 1).ravel()
        return held

    def write(self, graph: Graph, picture: str) -> str:
        """The same as ONNX nodes, from the picture; the name of the numbers."""
        x, _, _ = write_convolved(graph, picture, self.shape, self.layers, self.strides)
        return graph.rows(graph.add("Relu", x), self.size)


@dataclass
class EstimatingEncoder:
    """What a perceptron tells of what another encoder finds: estimates of a state, not features of a picture."""

    found: PictureEncoder
    head: FeedForward

    def __post_init__(self) -> None:
        if self.head.inputs != self.found.size:
            raise ValueError(f"the perceptron takes {self.head.inputs} numbers, the encoder finds {self.found.size}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the pictures: height, width, 3."""
        return self.found.shape

    @property
    def size(self) -> int:
        """Numbers per picture."""
        return self.head.outputs

    def see(self, pictures: NDArray[np.uint8]) -> Array:
        """Estimates (n, size) of pictures (n, height, width, 3), each picture by itself."""
        found = self.found.see(pictures)
        return np.concatenate([self.head.forward(one[None], {})[0] for one in found])

    def write(self, graph: Graph, picture: str) -> str:
        """The same as ONNX nodes, from the picture; the name of the estimates."""
        return self.head.write(graph, self.found.write(graph, picture))


ENCODERS: dict[str, type[KeypointEncoder] | type[FlatEncoder]] = {"keypoints": KeypointEncoder, "flat": FlatEncoder}


def standardised(picture: NDArray[np.uint8]) -> Array:
    """Each colour less its mean over the picture, in `CONTRAST`s: the light's strength and tint fall out."""
    x = picture.astype(np.float32)
    off = x - x.mean((0, 1), np.float64).astype(np.float32)  # numpy sums these one after the other
    spread = np.sqrt(np.square(off).mean((0, 1), np.float64)).astype(np.float32)
    made: Array = off / (spread + np.float32(DARK)) * np.float32(CONTRAST)
    return made


def write_standardised(graph: Graph, picture: str) -> str:
    """The same of pictures (n, height, width, 3) as ONNX nodes."""
    x, axes = graph.real(picture), graph.constant([1, 2], np.int64)
    off = graph.add("Sub", x, graph.add("ReduceMean", x, axes))
    square = graph.add("ReduceMean", graph.add("Mul", off, off), axes)
    spread = graph.add("Add", graph.add("Sqrt", square), graph.constant(DARK))
    return graph.add("Mul", graph.add("Div", off, spread), graph.constant(CONTRAST))


def convolved(picture: NDArray[Any], layers: Sequence[Layer], strides: Sequence[int]) -> Array:
    """What the last convolution makes of a picture, (rows, columns, channels)."""
    x: Array = picture.astype(np.float32)
    for index, ((weight, bias), stride) in enumerate(zip(layers, strides, strict=True)):
        x = _convolve(np.maximum(x, np.float32(0.0)) if index else x, weight, bias, stride)
    return x


def write_convolved(
    graph: Graph, picture: str, shape: Sequence[int], layers: Sequence[Layer], strides: Sequence[int]
) -> tuple[str, int, int]:
    """The same as ONNX nodes: the name of the last one's outcome (n, channels, rows, columns), rows and columns."""
    x = graph.add("Transpose", graph.real(picture), perm=[0, 3, 1, 2])
    height, width = shape[:2]
    for index, ((weight, bias), stride) in enumerate(zip(layers, strides, strict=True)):
        x = graph.add("Relu", x) if index else x
        weights = (graph.weight(weight), graph.constant(bias))
        x = graph.add("Conv", x, *weights, strides=[stride] * 2, pads=[KERNEL // 2] * 4)
        height, width = (-(-side // stride) for side in (height, width))
    return x, height, width


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
    encoders: dict[str, PictureEncoder] = field(default_factory=dict)  # by the picture's name

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
