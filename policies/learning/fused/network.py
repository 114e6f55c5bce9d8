"""Multilayer perceptrons for samples one after the other, forward and backward; see `policies.learning.fused.dense`.

All numbers of a network are one array (vectors, LANES): the weights (inputs, outputs) and bias of each layer, outputs
filled up with zeros to whole vectors. So is its gradient, and what Adam remembers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused import dense, kernel
from policies.learning.fused.dense import RELU, TANH, TILE, ZERO
from policies.models.networks import Network
from policies.models.networks.feed_forward import Mlp
from sim.engines.vector.blocks import part
from sim.engines.vector.simd import ALL, LANES, total
from sim.randomize import Array

ACTIVATIONS = {"tanh": TANH, "relu": RELU}
CHUNK = 64  # samples that go through a network together: what lies between its layers stays in the cache
# The columns of a network's table, one row per layer; places and counts of vectors, but for inputs and outputs.
WEIGHT, BIAS, INPUTS, OUTPUTS, WIDTH, OUTS, RESULT, TURNED = range(8)


def vectors(numbers: int) -> int:
    """How many hold so many numbers."""
    return -(-numbers // LANES)


def room(count: int) -> Array:
    """Vectors of zeros (count, LANES), each in one line of the cache."""
    raw = np.zeros((count + 1) * LANES, np.float32)
    first = -(raw.ctypes.data // raw.itemsize) % LANES
    return raw[first : first + count * LANES].reshape(count, LANES)


class Net(NamedTuple):
    """A perceptron as kernels see it."""

    layers: NDArray[np.int64]  # (layers, 8)
    activation: int  # between them
    weights: Array  # (vectors, LANES); behind the layers there may be more
    turned: Array  # the weights of all layers but the first as (outputs, inputs), for the backward pass
    normal: bool  # whether hidden layers are normalised before the activation (Ba et al. 2016, without a learned scale)
    state: Array | None  # (rows * width, LANES) of a recurrent network
    before: Array | None  # what it was when the rollout began


class Scratch(NamedTuple):
    """What a network makes of CHUNK samples."""

    inputs: Array  # (CHUNK * width, LANES)
    values: Array  # each layer's (CHUNK * outs, LANES)
    slopes: Array  # the gradient of each
    normal: Array  # the values before the activation, where they are normalised
    factor: Array  # (layers * CHUNK,) of each sample's


class Perceptron:
    """A network with its gradient and its Adam (Kingma & Ba 2015). `sizes`: inputs, hidden ..., outputs.

    Weights are orthogonal, times sqrt(2) or, in the last layer, `last_gain`; biases are zero but for the `last_bias`.
    `more` vectors of parameters follow those of the layers.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        rng: np.random.Generator,
        last_gain: float = 1.0,
        last_bias: float = 0.0,
        more: int = 0,
        layer_norm: bool = False,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}; choices: {', '.join(ACTIVATIONS)}")
        self.sizes = [*sizes]
        table, place, result, turned = [], 0, 0, 0
        for inputs, outputs in self._layers():
            width, outs = vectors(inputs), vectors(outputs)
            bias = place + width * LANES * outs
            table.append((place, bias, inputs, outputs, width, outs, result, turned))
            place, result = bias + outs, result + CHUNK * outs
            turned += 0 if len(table) == 1 else outputs * width
        self.extra, self.size, self.values = place, place + more, result
        self.net = Net(
            *(np.array(table, np.int64), ACTIVATIONS[activation], room(self.size), room(turned), layer_norm),
            *(None, None),
        )
        self.gradient, self.first, self.second = (room(self.size) for _ in range(3))
        self.steps = 0
        self._draw(rng)
        matrix, offset = self.views()[-1]
        matrix *= last_gain / math.sqrt(2.0)
        offset[:] = last_bias
        self.turn()

    def _layers(self) -> Iterable[tuple[int, int]]:
        """The inputs and outputs of each layer."""
        return itertools.pairwise(self.sizes)

    def _draw(self, rng: np.random.Generator) -> None:
        for matrix, offset in self.views():
            matrix[:] = math.sqrt(2.0) * orthogonal(len(matrix), len(offset), rng)

    def views(self, of: Array | None = None) -> list[tuple[Array, Array]]:
        """The (inputs, outputs) and (outputs,) of each layer: of the weights, or of another such array."""
        flat = (self.net.weights if of is None else of).reshape(-1)
        found = []
        for weight, bias, inputs, outputs, width, outs in self.net.layers[:, :6].tolist():
            rows = flat[weight * LANES : bias * LANES].reshape(width * LANES, outs * LANES)
            found.append((rows[:inputs, :outputs], flat[bias * LANES : bias * LANES + outputs]))
        return found

    def matrices(self, of: Array | None = None) -> list[tuple[Array, Array]]:
        """Copies of W (outputs, inputs) and b (outputs,) of each layer, as `views` finds them."""
        return [(weight.T.copy(), bias.copy()) for weight, bias in self.views(of)]

    def put(self, network: Network, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Do what a network does with x, when this one gets (x - mean) / std. ValueError when it has other layers."""
        found = self._held(network)
        views = self.views()
        own, theirs = ([(*v[0].shape, len(v[1])) for v in some] for some in (views, found))
        if own != theirs:
            raise ValueError(f"the network to go on from has other layers: {theirs}, not {own} (inputs, outputs)")
        weight, bias = found[0]
        scaled, moved = (weight.T * std).T, bias + mean @ weight
        found[0] = scaled.astype(np.float32), moved.astype(np.float32)
        for (into, offset), (weight, bias) in zip(views, found, strict=True):
            into[:], offset[:] = weight, bias
        self.turn()

    def _held(self, network: Network) -> list[tuple[Array, Array]]:
        """The (inputs, outputs) and (outputs,) of each of a network's layers, as they lie here."""
        if not isinstance(network, Mlp):
            raise ValueError(f"a perceptron goes on from a perceptron, not from {type(network).__name__}")
        return [(weight.T, bias) for weight, bias in network.layers]

    def scratch(self) -> Scratch:
        """For one thread."""
        inputs, normal = CHUNK * int(self.net.layers[0, WIDTH]), self.values if self.net.normal else 0
        factor = np.zeros(CHUNK * len(self.net.layers), np.float32)
        return Scratch(room(inputs), room(self.values), room(self.values), room(normal), factor)

    def turn(self) -> None:
        """After every change of the weights, before the next backward pass."""
        turn(self.net)

    def descend(self, gradient: Array, rate: float, clip: float, betas: tuple[float, float] = (0.9, 0.999)) -> float:
        """One step of Adam; the gradient's norm, beyond which `clip` it was scaled down. Sets the gradient to zero."""
        self.steps += 1
        return float(adam(self.net, gradient, self.first, self.second, self.steps, rate, clip, *betas))

    def state_dict(self) -> dict[str, Any]:
        """Copies."""
        arrays = {"weights": self.net.weights, "first": self.first, "second": self.second}
        return {name: np.array(value) for name, value in arrays.items()} | {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there."""
        self.net.weights[:], self.first[:], self.second[:] = state["weights"], state["first"], state["second"]
        self.steps = int(state["steps"])
        self.turn()


def orthogonal(rows: int, columns: int, rng: np.random.Generator) -> Array:
    """A random (rows, columns) matrix with orthonormal rows or columns, whichever are fewer."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))
    made: Array = (q if rows >= columns else q.T).astype(np.float32)
    return made


@part
def _turn(net):
    source, target = net.weights.reshape(-1), net.turned.reshape(-1)
    for index in range(1, len(net.layers)):
        layer = net.layers[index]
        weight, place = layer[WEIGHT] * LANES, layer[TURNED] * LANES
        wide, tall = layer[OUTS] * LANES, layer[WIDTH] * LANES
        for i in range(layer[OUTPUTS]):
            for j in range(layer[INPUTS]):
                target[place + i * tall + j] = source[weight + j * wide + i]


@kernel
def turn(net):
    """The weights of all layers but the first, (inputs, outputs), as (outputs, inputs)."""
    _turn(net)


@part
def forward(net, scratch, count):
    """What the network makes of the first `count` samples, a multiple of TILE, of scratch.inputs: the last values."""
    x, at = scratch.inputs, 0
    for index in range(len(net.layers)):
        layer = net.layers[index]
        outs, result = layer[OUTS], layer[RESULT]
        y = scratch.values
        dense.fill(net.weights, layer[BIAS], outs, y, result, count)
        dense.product(net.weights, layer[WEIGHT], layer[INPUTS], outs, x, at, layer[WIDTH], y, result, count)
        if index < len(net.layers) - 1:
            if net.normal:
                dense.normalise(
                    *(y, result, outs, layer[OUTPUTS], count, scratch.normal, scratch.factor, index * CHUNK)
                )
            dense.activate(net.activation, y, result, count * outs)
        x, at = y, result


@part
def descended(net, scratch, index, count):
    """From the gradient of what layer `index` made to that of what the one before it made."""
    layer, before = net.layers[index], net.layers[index - 1]
    width, below = layer[WIDTH], before[RESULT]
    g = scratch.slopes
    dense.clear(g, below, count * width)
    dense.product(net.turned, layer[TURNED], layer[OUTPUTS], width, g, layer[RESULT], layer[OUTS], g, below, count)
    dense.slope(net.activation, scratch.values, below, g, below, count * width)
    if net.normal:
        dense.normal_slope(
            *(scratch.normal, scratch.factor, (index - 1) * CHUNK, below, width, before[OUTPUTS], count, g)
        )


@part
def backward(net, scratch, gradient, count):
    """Add to the gradient, from that of the last values in scratch.slopes."""
    y, g = scratch.values, scratch.slopes
    for index in range(len(net.layers) - 1, 0, -1):
        layer = net.layers[index]
        inputs = (layer[INPUTS] + TILE - 1) // TILE * TILE
        dense.total(g, layer[RESULT], layer[OUTS], gradient, layer[BIAS], count)
        dense.weight_product(
            *(g, layer[RESULT], layer[OUTS], y, net.layers[index - 1][RESULT], layer[WIDTH], inputs),
            *(gradient, layer[WEIGHT], count),
        )
        descended(net, scratch, index, count)
    layer = net.layers[0]
    inputs = (layer[INPUTS] + TILE - 1) // TILE * TILE
    dense.total(g, layer[RESULT], layer[OUTS], gradient, layer[BIAS], count)
    dense.weight_product(
        g, layer[RESULT], layer[OUTS], scratch.inputs, 0, layer[WIDTH], inputs, gradient, layer[WEIGHT], count
    )


@kernel
def adam(net, gradient, first, second, step, rate, clip, beta1, beta2):
    """One update in place; see `Perceptron.descend`. A gradient that is not finite changes nothing."""
    w = net.weights
    square = w[0, ALL] * ZERO
    for k in range(len(gradient)):
        square += gradient[k, ALL] * gradient[k, ALL]
    norm = math.sqrt(total(square))
    if math.isfinite(norm):
        factor = np.float32(min(1.0, clip / (norm + 1e-12)))
        old1, old2 = np.float32(beta1), np.float32(beta2)
        new1, new2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
        root = math.sqrt(1.0 - beta2**step)
        scale, epsilon = np.float32(rate * root / (1.0 - beta1**step)), np.float32(1e-5 * root)
        for k in range(len(gradient)):
            g = gradient[k, ALL] * factor
            m = old1 * first[k, ALL] + new1 * g
            v = old2 * second[k, ALL] + new2 * (g * g)
            first[k, ALL], second[k, ALL] = m, v
            w[k, ALL] = w[k, ALL] - scale * m / (math.sqrt(v) + epsilon)
    for k in range(len(gradient)):
        gradient[k, ALL] = ZERO
    _turn(net)
    return norm
