"""Small MLP and GRU policies as Numba kernels over one block of LANES vehicles, forward and backward.

A network's activations for one time step are rows of one array (rows, LANES), see `sim.engines.vector.simd`. `Layout`
assigns the rows and the places of the weights in one flat vector; every dense layer reads `columns` rows (a multiple
of 4, the surplus being zero) and writes `rows` (a multiple of 4).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.vector.activations import sigmoid, tanh
from sim.engines.vector.blocks import block, inlined, part
from sim.engines.vector.simd import ALL, select, total

TILE = 4  # rows (and columns, in a weight gradient) held in registers together; products take two tiles
CHUNK = 16  # time steps whose weight gradients are accumulated together

ZERO, ONE = np.float32(0.0), np.float32(1.0)


class Layer(NamedTuple):
    """A dense layer: y rows [output, output + rows) = W x rows [source, source + columns) + b."""

    weight: int  # offset of W (rows, columns) in the flat vector
    bias: int
    rows: int
    columns: int
    source: int
    output: int  # row of the result, and of its gradient in the gradient block
    transposed: int  # offset of W^T (columns, rows) in the transposed vector
    inputs: int  # how many of the columns are used


class Layout(NamedTuple):
    """Where everything lies. `hidden` and `previous`: rows of a GRU's state after and before the step."""

    layers: tuple[Layer, ...]
    rows: int  # rows of the activation block
    action: int  # row of the (squashed) actions
    features: int
    weights: int  # length of the flat weight vector
    transposed: int
    hidden_size: int
    hidden: int
    previous: int


def _pad(n: int) -> int:
    return -(-n // TILE) * TILE


class _Builder:
    """Hands out rows and weight offsets."""

    def __init__(self) -> None:
        self.rows = self.weights = self.transposed = 0
        self.layers: list[Layer] = []

    def take(self, rows: int) -> int:
        start = self.rows
        self.rows += _pad(rows)
        return start

    def dense(self, source: int, inputs: int, outputs: int) -> int:
        if outputs % TILE:
            raise ValueError(f"layers must have a multiple of {TILE} outputs, got {outputs}")
        output = self.take(outputs)
        columns = _pad(inputs)
        weight, bias = self.weights, self.weights + outputs * columns
        self.layers.append(Layer(weight, bias, outputs, columns, source, output, self.transposed, inputs))
        self.weights = bias + outputs
        self.transposed += columns * outputs
        return output


def mlp_layout(features: int, hidden: tuple[int, ...], actions: int) -> Layout:
    """features -> hidden (tanh) ... -> actions (tanh)."""
    build = _Builder()
    row, width = build.take(features), features
    for size in (*hidden, actions):
        row, width = build.dense(row, width, size), size
    return Layout(tuple(build.layers), build.rows, row, features, build.weights, build.transposed, 0, 0, 0)


def gru_layout(features: int, encoder: int, hidden: int, actions: int) -> Layout:
    """features -> encoder (ReLU) -> GRU hidden -> actions (tanh); gates r, z, n as in torch.nn.GRUCell."""
    build = _Builder()
    source = build.take(features)
    encoded = build.dense(source, features, encoder)
    build.dense(encoded, encoder, 3 * hidden)
    previous = build.take(hidden)
    build.dense(previous, hidden, 3 * hidden)
    after = build.take(hidden)
    action = build.dense(after, hidden, actions)
    return Layout(
        tuple(build.layers), build.rows, action, features, build.weights, build.transposed, hidden, after, previous
    )


def initial_weights(layout: Layout, rng: np.random.Generator, output_scale: float, bias: float) -> NDArray[np.float32]:
    """torch's default, U(+-1/sqrt(inputs)); the last layer is scaled by `output_scale`, its bias is atanh(`bias`)."""
    flat = np.zeros(layout.weights, np.float32)
    for layer in layout.layers:
        bound = 1.0 / np.sqrt(layer.inputs)
        matrix = flat[layer.weight : layer.bias].reshape(layer.rows, layer.columns)
        matrix[:, : layer.inputs] = rng.uniform(-bound, bound, (layer.rows, layer.inputs))
        flat[layer.bias : layer.bias + layer.rows] = rng.uniform(-bound, bound, layer.rows)
    last = layout.layers[-1]
    flat[last.weight : last.bias] *= output_scale
    flat[last.bias : last.bias + last.rows] = np.arctanh(bias)
    return flat


def matrices(layout: Layout, flat: NDArray[np.float32]) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """(W (rows, inputs), b (rows,)) of each layer, copies."""
    return [
        (
            flat[la.weight : la.bias].reshape(la.rows, la.columns)[:, : la.inputs].copy(),
            flat[la.bias : la.bias + la.rows].copy(),
        )
        for la in layout.layers
    ]


def flatten(layout: Layout, layers: list[tuple[Any, Any]]) -> NDArray[np.float32]:
    """The inverse of `matrices`."""
    flat = np.zeros(layout.weights, np.float32)
    for la, (weight, bias) in zip(layout.layers, layers, strict=True):
        flat[la.weight : la.bias].reshape(la.rows, la.columns)[:, : la.inputs] = weight
        flat[la.bias : la.bias + la.rows] = bias
    return flat


@part
def transpose(weights, out, layers):
    """W^T of every layer, for the backward pass."""
    for layer in layers:
        for j in range(layer.columns):
            for i in range(layer.rows):
                out[layer.transposed + j * layer.rows + i] = weights[layer.weight + i * layer.columns + j]


@part
def product(w, offset, rows, columns, x, source, y, output):
    """y[output + i] += sum_j w[offset + i columns + j] x[source + j]; x and y may be the same array."""
    whole = rows // (2 * TILE) * (2 * TILE)
    for i in range(0, whole, 2 * TILE):
        o, k = output + i, offset + i * columns
        a0, a1, a2, a3 = y[o, ALL], y[o + 1, ALL], y[o + 2, ALL], y[o + 3, ALL]
        a4, a5, a6, a7 = y[o + 4, ALL], y[o + 5, ALL], y[o + 6, ALL], y[o + 7, ALL]
        for j in range(columns):
            v = x[source + j, ALL]
            a0 += w[k + j] * v
            a1 += w[k + columns + j] * v
            a2 += w[k + 2 * columns + j] * v
            a3 += w[k + 3 * columns + j] * v
            a4 += w[k + 4 * columns + j] * v
            a5 += w[k + 5 * columns + j] * v
            a6 += w[k + 6 * columns + j] * v
            a7 += w[k + 7 * columns + j] * v
        y[o, ALL], y[o + 1, ALL], y[o + 2, ALL], y[o + 3, ALL] = a0, a1, a2, a3
        y[o + 4, ALL], y[o + 5, ALL], y[o + 6, ALL], y[o + 7, ALL] = a4, a5, a6, a7
    for i in range(whole, rows, TILE):
        o, k = output + i, offset + i * columns
        a0, a1, a2, a3 = y[o, ALL], y[o + 1, ALL], y[o + 2, ALL], y[o + 3, ALL]
        for j in range(columns):
            v = x[source + j, ALL]
            a0 += w[k + j] * v
            a1 += w[k + columns + j] * v
            a2 += w[k + 2 * columns + j] * v
            a3 += w[k + 3 * columns + j] * v
        y[o, ALL], y[o + 1, ALL], y[o + 2, ALL], y[o + 3, ALL] = a0, a1, a2, a3


@inlined
def dense(weights, layer, x, y):
    """The layer's pre-activation: rows of y from rows of x (which may be the same array)."""
    for i in range(layer.rows):
        y[layer.output + i, ALL] = weights[layer.bias + i]
    product(weights, layer.weight, layer.rows, layer.columns, x, layer.source, y, layer.output)


@inlined
def dense_adjoint(transposed, layer, g):
    """g rows of the source = W^T g rows of the output."""
    for j in range(layer.columns):
        g[layer.source + j, ALL] = ZERO
    product(transposed, layer.transposed, layer.columns, layer.rows, g, layer.output, g, layer.source)


@part
def weight_gradient(layer, g, x, first, steps, gradient):
    """Add to the flat gradient the sum over lanes and steps of g (output rows) times x (source rows).

    x is (T, rows, LANES), of which `steps` from `first` on count; g (CHUNK, rows, LANES) holds their gradients at
    step % CHUNK.
    """
    size = g.shape[1]
    for i in range(0, layer.rows, TILE):
        row = layer.output + i
        b0 = b1 = b2 = b3 = block(g, 0, size)[row, ALL] * ZERO
        for t in range(steps):
            h = block(g, (first + t) % CHUNK, size)
            b0 += h[row, ALL]
            b1 += h[row + 1, ALL]
            b2 += h[row + 2, ALL]
            b3 += h[row + 3, ALL]
        gradient[layer.bias + i] += total(b0)
        gradient[layer.bias + i + 1] += total(b1)
        gradient[layer.bias + i + 2] += total(b2)
        gradient[layer.bias + i + 3] += total(b3)
        for j in range(0, layer.columns, TILE):
            source = layer.source + j
            a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = b0 * ZERO
            a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = a00
            for t in range(steps):
                h, y = block(g, (first + t) % CHUNK, size), block(x, first + t, size)
                h0, h1, h2, h3 = h[row, ALL], h[row + 1, ALL], h[row + 2, ALL], h[row + 3, ALL]
                v0, v1, v2, v3 = y[source, ALL], y[source + 1, ALL], y[source + 2, ALL], y[source + 3, ALL]
                a00 += h0 * v0
                a01 += h0 * v1
                a02 += h0 * v2
                a03 += h0 * v3
                a10 += h1 * v0
                a11 += h1 * v1
                a12 += h1 * v2
                a13 += h1 * v3
                a20 += h2 * v0
                a21 += h2 * v1
                a22 += h2 * v2
                a23 += h2 * v3
                a30 += h3 * v0
                a31 += h3 * v1
                a32 += h3 * v2
                a33 += h3 * v3
            o = layer.weight + i * layer.columns + j
            p, q, s = o + layer.columns, o + 2 * layer.columns, o + 3 * layer.columns
            gradient[o] += total(a00)
            gradient[o + 1] += total(a01)
            gradient[o + 2] += total(a02)
            gradient[o + 3] += total(a03)
            gradient[p] += total(a10)
            gradient[p + 1] += total(a11)
            gradient[p + 2] += total(a12)
            gradient[p + 3] += total(a13)
            gradient[q] += total(a20)
            gradient[q + 1] += total(a21)
            gradient[q + 2] += total(a22)
            gradient[q + 3] += total(a23)
            gradient[s] += total(a30)
            gradient[s + 1] += total(a31)
            gradient[s + 2] += total(a32)
            gradient[s + 3] += total(a33)


@inlined
def squash(y, row, rows):
    """tanh in place."""
    for i in range(rows):
        y[row + i, ALL] = tanh(y[row + i, ALL])


@inlined
def squash_adjoint(y, g, row, rows):
    """g times tanh' = 1 - y^2, in place."""
    for i in range(rows):
        g[row + i, ALL] *= ONE - y[row + i, ALL] * y[row + i, ALL]


@part
def mlp_forward(weights, layout, y, hidden):
    """Fill the activation rows y from its feature rows. `hidden` is not used."""
    for layer in layout.layers:
        dense(weights, layer, y, y)
        squash(y, layer.output, layer.rows)


@part
def mlp_backward(transposed, layout, y, g, g_hidden):
    """From the gradient in g's action rows to that in its feature rows, by way of all pre-activations."""
    for k in range(len(layout.layers) - 1, -1, -1):
        layer = layout.layers[k]
        squash_adjoint(y, g, layer.output, layer.rows)
        dense_adjoint(transposed, layer, g)


@part
def gru_forward(weights, layout, y, hidden):
    """Fill the activation rows y from its feature rows and `hidden` (H, LANES), which receives the new recurrent state.

    The rows of the gates' pre-activations end as r, z, n (input side) and the recurrent part of n (hidden side).
    """
    encoder, inward, recurrent, output = layout.layers
    h = layout.hidden_size
    dense(weights, encoder, y, y)
    for i in range(encoder.rows):
        y[encoder.output + i, ALL] = max(y[encoder.output + i, ALL], ZERO)
    for i in range(h):
        y[layout.previous + i, ALL] = hidden[i, ALL]
    dense(weights, inward, y, y)
    dense(weights, recurrent, y, y)
    a, b = inward.output, recurrent.output
    for i in range(2 * h):
        y[a + i, ALL] = sigmoid(y[a + i, ALL] + y[b + i, ALL])
    for i in range(h):
        n = tanh(y[a + 2 * h + i, ALL] + y[a + i, ALL] * y[b + 2 * h + i, ALL])
        z = y[a + h + i, ALL]
        after = n + z * (y[layout.previous + i, ALL] - n)
        y[a + 2 * h + i, ALL] = n
        y[layout.hidden + i, ALL] = after
        hidden[i, ALL] = after
    dense(weights, output, y, y)
    squash(y, output.output, output.rows)


@part
def gru_backward(transposed, layout, y, g, g_hidden):
    """As mlp_backward; g_hidden (H, LANES) goes from the gradient of the state after the step to that before it."""
    encoder, inward, recurrent, output = layout.layers
    h = layout.hidden_size
    squash_adjoint(y, g, output.output, output.rows)
    dense_adjoint(transposed, output, g)
    a, b = inward.output, recurrent.output
    for i in range(h):
        r, z, n = y[a + i, ALL], y[a + h + i, ALL], y[a + 2 * h + i, ALL]
        side = y[b + 2 * h + i, ALL]
        after = g[layout.hidden + i, ALL] + g_hidden[i, ALL]
        gn = after * (ONE - z) * (ONE - n * n)
        gz = after * (y[layout.previous + i, ALL] - n) * z * (ONE - z)
        gr = gn * side * r * (ONE - r)
        g[a + i, ALL], g[a + h + i, ALL], g[a + 2 * h + i, ALL] = gr, gz, gn
        g[b + i, ALL], g[b + h + i, ALL], g[b + 2 * h + i, ALL] = gr, gz, gn * r
        g_hidden[i, ALL] = after * z
    dense_adjoint(transposed, inward, g)
    dense_adjoint(transposed, recurrent, g)
    for i in range(h):
        g_hidden[i, ALL] += g[layout.previous + i, ALL]
    for i in range(encoder.rows):
        alive = y[encoder.output + i, ALL] > ZERO
        g[encoder.output + i, ALL] = select(alive, g[encoder.output + i, ALL], ZERO)
    dense_adjoint(transposed, encoder, g)
