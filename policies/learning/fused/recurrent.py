"""Gated recurrent units for samples one after the other: a step of many rows, and backwards through their rollout.

A linear layer and ReLU, a unit with the gates reset, update and new (as torch.nn.GRUCell and
`policies.models.networks.gru.Gru` have them), a linear layer. In the table of a network that is four layers: the first,
what the unit makes of its input and of its state (three gates of whole vectors each, filled up with zeros), and the
last. All but the unit's own step is done for all steps of a few rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from policies.learning.fused import dense, surrogate
from policies.learning.fused.dense import ONE, TILE, ZERO
from policies.learning.fused.network import (
    BIAS,
    CHUNK,
    INPUTS,
    OUTPUTS,
    OUTS,
    RESULT,
    TURNED,
    WEIGHT,
    WIDTH,
    Net,
    Perceptron,
    Scratch,
    forward,
    orthogonal,
    room,
    vectors,
)
from policies.learning.fused.surrogate import GOES_ON
from policies.models.networks import Network
from policies.models.networks.gru import Gru
from sim.engines.vector.activations import sigmoid, tanh
from sim.engines.vector.blocks import inlined, part
from sim.engines.vector.simd import ALL, LANES
from sim.randomize import Array

TOGETHER = 16  # rows whose rollouts are gone through at once, a multiple of TILE
FIRST, INWARD, ACROSS, LAST = range(4)  # layers
GATES, UPDATE = 3, 1
LASTING = -3.0, 2.0  # the first biases of the update gate: of units that act at once to those that remember


class Recurrent(Perceptron):
    """A network with the states of `rows` rows, for rollouts of `horizon` steps.

    `sizes`: inputs, units of the first layer, of the state, outputs. Weights are orthogonal, gate by gate; otherwise as
    in a perceptron.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        rng: np.random.Generator,
        rows: int,
        horizon: int,
        last_gain: float = 1.0,
        last_bias: float = 0.0,
        more: int = 0,
    ) -> None:
        super().__init__(sizes, "relu", rng, last_gain, last_bias, more)
        self.horizon, self.width = horizon, vectors(sizes[2])
        self.net = self.net._replace(state=room(rows * self.width), before=room(rows * self.width))

    def _layers(self) -> Iterable[tuple[int, int]]:
        inputs, hidden, state, outputs = self.sizes
        gates = GATES * vectors(state) * LANES
        return (inputs, hidden), (hidden, gates), (state, gates), (state, outputs)

    def _draw(self, rng: np.random.Generator) -> None:
        state = self.sizes[2]
        for index, (matrix, offset) in enumerate(self.views()):
            if index in (INWARD, ACROSS):
                for gate in np.split(matrix, GATES, axis=1):
                    gate[:, :state] = orthogonal(len(matrix), state, rng)
                np.split(offset, GATES)[UPDATE][:state] = np.linspace(*LASTING, state) if index == INWARD else 0.0
            else:
                matrix[:] = math.sqrt(2.0) * orthogonal(len(matrix), len(offset), rng)

    def matrices(self, of: Array | None = None) -> list[tuple[Array, Array]]:
        """Copies of W (outputs, inputs) and b (outputs,) of each layer, with gates as torch.nn.GRUCell stacks them."""
        first, *gates, last = super().matrices(of)
        state = self.sizes[2]

        def stacked(values: Array) -> Array:
            return np.concatenate([gate[:state] for gate in np.split(values, GATES)])

        return [first, *((stacked(weight), stacked(bias)) for weight, bias in gates), last]

    def _held(self, network: Network) -> list[tuple[Array, Array]]:
        if not isinstance(network, Gru):
            raise ValueError(f"a gated unit goes on from a gated unit, not from {type(network).__name__}")
        wide = vectors(network.hidden) * LANES - network.hidden

        def apart(values: Array) -> Array:
            """Each gate filled up with zeros to whole vectors."""
            gates = [np.concatenate([g, np.zeros((wide, *g.shape[1:]), np.float32)]) for g in np.split(values, GATES)]
            return np.concatenate(gates)

        gates = ((network.w_ih, network.b_ih), (network.w_hh, network.b_hh))
        layers = [network.input, *((apart(weight), apart(bias)) for weight, bias in gates), network.output]
        return [(weight.T, bias) for weight, bias in layers]

    def scratch(self) -> Scratch:
        count = max(CHUNK, TOGETHER * self.horizon)
        numbers = count * (self.values // CHUNK + 2 * self.width)
        inputs = room(count * int(self.net.layers[FIRST, WIDTH]))
        return Scratch(inputs, room(numbers), room(numbers), room(0), np.zeros(0, np.float32))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"state": np.array(self.net.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        kept: Any = self.net.state
        kept[:] = state["state"]


@inlined
def _place(net, index, most):
    """Where the values of a layer begin, of at most so many samples; behind the last one the states before and after
    each step.
    """
    if index <= LAST:
        return net.layers[index, RESULT] // CHUNK * most
    last = net.layers[LAST]
    return (last[RESULT] // CHUNK + last[OUTS] + (index - LAST - 1) * net.layers[LAST, WIDTH]) * most


@part
def _linear(net, index, x, first, y, place, count):
    """What layer `index` makes of x (count, inputs)."""
    layer = net.layers[index]
    dense.fill(net.weights, layer[BIAS], layer[OUTS], y, place, count)
    dense.product(net.weights, layer[WEIGHT], layer[INPUTS], layer[OUTS], x, first, layer[WIDTH], y, place, count)


@part
def _stepped(y, inward, across, before, after, width, count):
    """The states after a step, and the gates in the place of what the unit made of its input."""
    for i in range(count):
        a, b, h = inward + i * GATES * width, across + i * GATES * width, i * width
        for v in range(width):
            reset = sigmoid(y[a + v, ALL] + y[b + v, ALL])
            update = sigmoid(y[a + width + v, ALL] + y[b + width + v, ALL])
            new = tanh(y[a + 2 * width + v, ALL] + reset * y[b + 2 * width + v, ALL])
            y[a + v, ALL], y[a + width + v, ALL], y[a + 2 * width + v, ALL] = reset, update, new
            y[after + h + v, ALL] = new + update * (y[before + h + v, ALL] - new)


@part
def _advanced(net, scratch, row, count):
    """As `network.forward` of rows whose states go one step further."""
    y, whole = scratch.values, (count + TILE - 1) // TILE * TILE
    width = net.layers[LAST, WIDTH]
    hidden, inward, across = _place(net, FIRST, CHUNK), _place(net, INWARD, CHUNK), _place(net, ACROSS, CHUNK)
    before, after = _place(net, LAST + 1, CHUNK), _place(net, LAST + 2, CHUNK)
    for k in range(count * width):
        y[before + k, ALL] = net.state[row * width + k, ALL]
    _linear(net, FIRST, scratch.inputs, 0, y, hidden, whole)
    dense.activate(net.activation, y, hidden, whole * net.layers[FIRST, OUTS])
    _linear(net, INWARD, y, hidden, y, inward, whole)
    _linear(net, ACROSS, y, before, y, across, whole)
    _stepped(y, inward, across, before, after, width, whole)
    _linear(net, LAST, y, after, y, _place(net, LAST, CHUNK), whole)
    for k in range(count * width):
        net.state[row * width + k, ALL] = y[after + k, ALL]


@inlined
def _forgotten(net, row):
    width = net.layers[LAST, WIDTH]
    for v in range(width):
        net.state[row * width + v, ALL] = ZERO


def remembers(net: Any) -> bool:
    """Whether a network of this Numba type is recurrent: code for the other kind is not compiled."""
    return not isinstance(net.types[net.fields.index("state")], types.NoneType)


def forget(net: Net, row: int) -> None:
    """In compiled code: a row begins anew, if the network remembers anything."""
    raise NotImplementedError


def advance(net: Net, scratch: Scratch, row: int, count: int) -> None:
    """In compiled code: what the network makes of the next step of the rows row ... row + count - 1, at most CHUNK."""
    raise NotImplementedError


@overload(forget)
def _forget(net, row):
    if remembers(net):
        return lambda net, row: _forgotten(net, row)
    return lambda net, row: None


@overload(advance)
def _advance(net, scratch, row, count):
    if remembers(net):
        return lambda net, scratch, row, count: _advanced(net, scratch, row, count)
    return lambda net, scratch, row, count: forward(net, scratch, (count + TILE - 1) // TILE * TILE)


@inlined
def _began(samples, rows, first, t, num):
    """Whether what row rows[first] does at a step t > 0 belongs to another episode than what it did before."""
    return samples.ended[(t - 1) * num + rows[first]] != GOES_ON


@part
def _through(net, scratch, samples, rows, first, count, whole, num, steps, most):
    """What the network makes of all steps of the rows rows[first : first + count], sample t * whole + row of them."""
    y, width = scratch.values, net.layers[LAST, WIDTH]
    hidden, inward, across = _place(net, FIRST, most), _place(net, INWARD, most), _place(net, ACROSS, most)
    before, after = _place(net, LAST + 1, most), _place(net, LAST + 2, most)
    _linear(net, FIRST, scratch.inputs, 0, y, hidden, whole * steps)
    dense.activate(net.activation, y, hidden, whole * steps * net.layers[FIRST, OUTS])
    _linear(net, INWARD, y, hidden, y, inward, whole * steps)
    for t in range(steps):
        at = t * whole * width
        for i in range(whole):
            for v in range(width):
                k = at + i * width + v
                if i >= count or (t > 0 and _began(samples, rows, first + i, t, num)):
                    y[before + k, ALL] = ZERO
                elif t > 0:
                    y[before + k, ALL] = y[after + k - whole * width, ALL]
                else:
                    y[before + k, ALL] = net.before[rows[first + i] * width + v, ALL]
        a, b = inward + GATES * at, across + GATES * at
        _linear(net, ACROSS, y, before + at, y, b, whole)
        _stepped(y, a, b, before + at, after + at, width, whole)
    _linear(net, LAST, y, after, y, _place(net, LAST, most), whole * steps)


@part
def _learned(net, index, x, first, g, place, gradient, count):
    """Add to the gradient what layer `index` has to learn, from its inputs x and the gradient g of what it made."""
    layer = net.layers[index]
    inputs = (layer[INPUTS] + TILE - 1) // TILE * TILE
    dense.total(g, place, layer[OUTS], gradient, layer[BIAS], count)
    dense.weight_product(g, place, layer[OUTS], x, first, layer[WIDTH], inputs, gradient, layer[WEIGHT], count)


@part
def _below(net, index, g, place, below, count):
    """Add to g the gradient of what layer `index` was told, from that of what it made."""
    layer = net.layers[index]
    dense.product(net.turned, layer[TURNED], layer[OUTPUTS], layer[WIDTH], g, place, layer[OUTS], g, below, count)


@part
def _step_slopes(y, g, inward, across, before, after, width, count):
    """The gradients of what the unit made of input and state, and the direct one of the state before, from that after.

    Places as in `_stepped`; those of the slopes are the same.
    """
    for i in range(count):
        a, b, h = inward + i * GATES * width, across + i * GATES * width, i * width
        for v in range(width):
            reset, update, new = y[a + v, ALL], y[a + width + v, ALL], y[a + 2 * width + v, ALL]
            slope = g[after + h + v, ALL]
            g_new = slope * (ONE - update) * (ONE - new * new)
            g_update = slope * (y[before + h + v, ALL] - new) * update * (ONE - update)
            g_reset = g_new * y[b + 2 * width + v, ALL] * reset * (ONE - reset)
            g[a + v, ALL], g[a + width + v, ALL], g[a + 2 * width + v, ALL] = g_reset, g_update, g_new
            g[b + v, ALL], g[b + width + v, ALL], g[b + 2 * width + v, ALL] = g_reset, g_update, g_new * reset
            g[before + h + v, ALL] = slope * update


@part
def _back(net, scratch, samples, rows, first, count, whole, num, steps, most, gradient):
    """Add to the gradient, from that of the last values in scratch.slopes."""
    y, g, width = scratch.values, scratch.slopes, net.layers[LAST, WIDTH]
    hidden, inward, across = _place(net, FIRST, most), _place(net, INWARD, most), _place(net, ACROSS, most)
    last, before, after = _place(net, LAST, most), _place(net, LAST + 1, most), _place(net, LAST + 2, most)
    every = whole * steps
    _learned(net, LAST, y, after, g, last, gradient, every)
    dense.clear(g, after, every * width)
    _below(net, LAST, g, last, after, every)
    for t in range(steps - 1, -1, -1):
        at = t * whole * width
        a, b = inward + GATES * at, across + GATES * at
        _step_slopes(y, g, a, b, before + at, after + at, width, whole)
        if t > 0:
            _below(net, ACROSS, g, b, before + at, whole)
            for i in range(count):
                if not _began(samples, rows, first + i, t, num):
                    for k in range(at + i * width, at + (i + 1) * width):
                        g[after + k - whole * width, ALL] = g[after + k - whole * width, ALL] + g[before + k, ALL]
    _learned(net, ACROSS, y, before, g, across, gradient, every)
    _learned(net, INWARD, y, hidden, g, inward, gradient, every)
    outs = net.layers[FIRST, OUTS]
    dense.clear(g, hidden, every * outs)
    _below(net, INWARD, g, inward, hidden, every)
    dense.slope(net.activation, y, hidden, g, hidden, every * outs)
    _learned(net, FIRST, scratch.inputs, 0, g, hidden, gradient, every)


@part
def policy_gradients(rows, share, samples, actor, scale, loss, std, g, g_std, scratch, metrics):
    """As `surrogate.policy_gradients`, of all steps of the given rows, by an actor that remembers."""
    divergence = beyond = gained = 0.0
    layer = actor.layers[LAST]
    outs, width, num = layer[OUTS], len(scale.mean), len(actor.before) // layer[WIDTH]
    steps = len(samples.reward) // num
    most = TOGETHER * steps
    result = _place(actor, LAST, most)
    for first in range(0, len(rows), TOGETHER):
        count = min(TOGETHER, len(rows) - first)
        whole = (count + TILE - 1) // TILE * TILE
        numbers = np.zeros(count, np.int64)
        for t in range(steps):
            for i in range(count):
                numbers[i] = t * num + rows[first + i]
            inputs = scratch.inputs[t * whole * width : (t + 1) * whole * width]
            surrogate.gathered(samples.seen, numbers, 0, count, scale, inputs)
        _through(actor, scratch, samples, rows, first, count, whole, num, steps, most)
        dense.clear(scratch.slopes, result, whole * steps * outs)
        for t in range(steps):
            for i in range(count):
                apart, clipped, gain = surrogate.policy_slopes(
                    *(samples, t * num + rows[first + i], scratch.values, scratch.slopes),
                    *(result + (t * whole + i) * outs, std, outs, loss, share, g_std),
                )
                divergence += apart
                beyond += clipped
                gained += gain
        _back(actor, scratch, samples, rows, first, count, whole, num, steps, most, g)
    metrics[0] += divergence
    metrics[2] += beyond
    metrics[3] -= gained
