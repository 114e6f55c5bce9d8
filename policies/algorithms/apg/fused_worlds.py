"""Analytic policy gradients in a task's own world, without torch: features, network and their adjoint as kernels.

The same arithmetic as in `worlds.py`, over blocks of sixteen rows; the world is stepped between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.algorithms.apg import ApgConfig, fused, make_layout, to_network
from policies.algorithms.apg import fused_network as network
from policies.algorithms.apg.fused_network import CHUNK, ZERO
from policies.algorithms.apg.windows import Windows
from policies.models.networks import Network
from sim.engines.vector.blocks import block, from_lanes, kernel, sane
from sim.engines.vector.rows import LARGEST
from sim.engines.vector.simd import ALL, LANES, select
from sim.engines.vector.tables import feature_table
from sim.env import sensor
from sim.spec import size, slices, unpack
from sim.tasks import features_of, initial_action
from sim.tasks.abilities import HasRehearsal

Array = NDArray[np.float32]


class Features(NamedTuple):
    """Of the policy's signals; see `sim.engines.vector.tables`."""

    feature_row: NDArray[np.int64]
    feature_minus: NDArray[np.int64]
    feature_scale: Array
    feature_squash: Array


@kernel
def act(features, layout, weights, remembers, sensed, step, stride, activation, hidden, action):
    """Actions (blocks, k, LANES) for what is sensed (blocks, P, LANES) at a step of a window of at most `stride`.

    `activation` (blocks * stride, rows, LANES) keeps what the adjoint needs; hidden (blocks, h, LANES) moves on.
    """
    for place in range(len(sensed)):
        y, seen = block(activation, place * stride + step, layout.rows), block(sensed, place, sensed.shape[1])
        fused.features_of(features, seen, y)
        for k in range(layout.features):
            y[k, ALL] = select(abs(y[k, ALL]) <= LARGEST, y[k, ALL], ZERO)
        state = block(hidden, place, hidden.shape[1])
        if remembers is None:
            network.mlp_forward(weights, layout, y, state)
        else:
            network.gru_forward(weights, layout, y, state)
        out = block(action, place, action.shape[1])
        for k in range(len(out)):
            out[k, ALL] = y[layout.action + k, ALL]


@kernel
def act_adjoint(
    features,
    layout,
    transposed,
    remembers,
    by_action,
    step,
    stride,
    learned,
    activation,
    by_network,
    by_hidden,
    slopes,
    gradient,
):
    """From the gradient by_action (n, k) to that by what was sensed, slopes (blocks, P, LANES); adds to `gradient`.

    Of the first `learned` steps of a window, for CHUNK of them at once: by_network (blocks, CHUNK, rows, LANES) holds
    them until then. by_hidden (blocks, h, LANES) goes from after the step to before it.
    """
    slopes[:] = ZERO
    for place in range(len(slopes)):
        y, own = block(activation, place * stride + step, layout.rows), by_network[place]
        g = block(own, step % CHUNK, layout.rows)
        for k in range(layout.rows):
            g[k, ALL] = y[k, ALL] * ZERO
        for lane in range(LANES):
            for k in range(by_action.shape[1]):
                g[layout.action + k, lane] = by_action[place * LANES + lane, k]
        state = block(by_hidden, place, by_hidden.shape[1])
        if remembers is None:
            network.mlp_backward(transposed, layout, y, g, state)
        else:
            network.gru_backward(transposed, layout, y, g, state)
        count = min(CHUNK, learned - step)
        if step % CHUNK == 0 and count > 0:
            for layer in layout.layers:
                network.weight_gradient(layer, own, activation, place * stride + step, count, gradient)
        fused.features_adjoint(features, y, g, block(slopes, place, slopes.shape[1]))


@kernel
def turned(weights, layout, out):
    """The layers' transposed weights."""
    network.transpose(weights, out, layout.layers)


class FusedWorlds(Windows):
    """See the module."""

    def __init__(self, task: HasRehearsal, config: ApgConfig, seed: int) -> None:
        super().__init__(task, config, seed)
        table = feature_table(features_of(task), slices(task.policy))
        places, numbers = table.places.T.copy(), table.numbers.T.copy()
        self.features = Features(places[0], places[1], numbers[0], numbers[1])
        self.layout = make_layout(config, len(places[0]), size(task.commands))
        self.weights = network.initial_weights(
            self.layout, np.random.default_rng(np.random.SeedSequence(seed)), 0.1, initial_action(task)
        )
        self.gradient, self.first, self.second = (np.zeros_like(self.weights) for _ in range(3))
        self.remembers = True if self.layout.hidden_size else None  # so that kernels are compiled for the one
        self.sensed = sensor(self.world, task.policy)
        self.stride = -(-config.window // CHUNK) * CHUNK
        blocks = config.num_envs // LANES
        self.activation = np.zeros((blocks * self.stride, self.layout.rows, LANES), np.float32)
        self.by_network = np.zeros((blocks, CHUNK, self.layout.rows, LANES), np.float32)
        self.transposed = np.zeros(self.layout.transposed, np.float32)
        self.hidden = np.zeros((blocks, max(1, self.layout.hidden_size), LANES), np.float32)
        self.action = np.zeros((blocks, size(task.commands), LANES), np.float32)

    def begin_with(self, layers: Sequence[tuple[Array, Array]]) -> None:
        self.weights[:] = network.flatten(self.layout, [*layers])

    def inputs(self) -> int:
        return self.layout.features

    def window(self) -> tuple[Array, float]:
        c, world, task = self.config, self.world, self.task
        how = self.features, self.layout
        for t in range(c.window):
            act(*how, self.weights, self.remembers, self.sensed(), t, self.stride, *self._room(), self.action)
            action = from_lanes(self.action, c.num_envs)
            world.step(unpack(task.commands, self.low + (action + np.float32(1.0)) * self.half))
        cost, counts = world.costs()
        learned = c.window - c.ahead
        turned(self.weights, self.layout, self.transposed)
        by_hidden, slopes = np.zeros_like(self.hidden), np.zeros_like(self.sensed())
        world.begin_pulling()
        for t in range(c.window - 1, -1, -1):
            by_action = sane(world.pull(t, c.adjoint_clip) * self.half * counts[t][:, None])
            back = self.transposed, self.remembers, by_action, t, self.stride, learned
            act_adjoint(*how, *back, self.activation, self.by_network, by_hidden, slopes, self.gradient)
            world.pull_sensed(t, from_lanes(slopes, c.num_envs))
        self.gradient /= np.float32(max(1, int(counts[:learned].sum())))
        return cost, float(counts.mean())

    def _room(self) -> tuple[Array, Array]:
        return self.activation, self.hidden

    def improve(self, rate: float) -> float:
        c = self.config
        moments = self.first, self.second, self.update + 1
        return float(fused.adam(self.weights, self.gradient, *moments, rate, c.beta1, c.beta2, c.gradient_clip))

    def forget(self, rows: NDArray[np.bool_]) -> None:
        self.hidden *= ~rows.reshape(-1, 1, LANES)

    def network(self) -> Network:
        return to_network(self.config, self.layout, self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        arrays = {name: getattr(self, name).copy() for name in ("weights", "first", "second", "hidden")}
        return {**arrays, "world": self.world.state_dict(), "update": self.update, "lost": self.lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name in ("weights", "first", "second", "hidden"):
            getattr(self, name)[...] = state[name]
        self.world.load_state_dict(state["world"])
        self.update, self.lost = int(state["update"]), int(state["lost"])
