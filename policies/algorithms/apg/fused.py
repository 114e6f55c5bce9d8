"""Analytic policy gradients without torch: rollout, costs and their adjoint in one Numba kernel per engine and network.

Works on any engine whose dynamics module offers `advance`, `sense` and their adjoints for one lane (such as
`sim.engines.flight.dynamics`), on any task whose features and costs are the declared ones, and on MLP and GRU policies.
One thread, vectors across vehicles; the tape of one block of vehicles stays in the cache.

The loss is the mean over vehicles and steps of the summed costs of the state after each step. Gradients flow through
the physics, the delayed commands, the action history and the recurrent state within the window; states carry on
across windows.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.algorithms.apg import fused_network as network
from policies.algorithms.apg import fused_plan
from policies.algorithms.apg.fused_network import CHUNK, ONE, ZERO
from policies.algorithms.apg.fused_plan import HUGE, TAPS, load_dynamics
from sim.engines.vector.blocks import block, inlined, kernel, part
from sim.engines.vector.rows import ATTITUDE, NORM, SQUARE
from sim.engines.vector.simd import ALL, LANES, select, total

Array = NDArray[np.float32]

QUARTER, HALF, TWO, THREE = np.float32(0.25), np.float32(0.5), np.float32(2.0), np.float32(3.0)
TINY = np.float32(1e-30)


@inlined
def _copy(source, first, target, start, rows):
    for i in range(rows):
        target[start + i, ALL] = source[first + i, ALL]


@inlined
def _clear(target):
    for i in range(target.shape[0]):
        target[i, ALL] = ZERO


@part
def features_of(plan, seen, y):
    """The network's input rows: scale * squash(signal - minus)."""
    for k in range(plan.feature_row.shape[0]):
        a, b = plan.feature_row[k], plan.feature_minus[k]
        inverse = plan.feature_squash[k]
        x = seen[a, ALL]
        if b >= 0:
            x -= seen[b, ALL]
        if inverse > ZERO:
            z = x * inverse
            x = x / math.sqrt(ONE + z * z)
        y[k, ALL] = plan.feature_scale[k] * x


@part
def features_adjoint(plan, y, g, g_seen):
    """Add to g_seen the gradient through `features_of`, given that of its result, g."""
    for k in range(plan.feature_row.shape[0]):
        a, b = plan.feature_row[k], plan.feature_minus[k]
        scale, inverse = plan.feature_scale[k], plan.feature_squash[k]
        slope = g[k, ALL] * scale
        if inverse > ZERO:  # d/dz z / sqrt(1 + z^2 / c^2) = (1 - (y / c)^2)^(3/2)
            ratio = y[k, ALL] * (inverse / scale)
            rest = max(ONE - ratio * ratio, ZERO)
            slope *= rest * math.sqrt(rest)
        g_seen[a, ALL] += slope
        if b >= 0:
            g_seen[b, ALL] -= slope


@inlined
def _difference(x, row, minus, alone, offset):
    """x[row] - x[minus] - offset, or x[row] - offset when it stands alone."""
    if alone:
        return x[row, ALL] - offset
    return x[row, ALL] - x[minus, ALL] - offset


@part
def _costs(plan, x, g, weight, totals, scratch):
    """Add the gradient of the weighted costs at the rows x to g, and the unweighted costs, over all lanes, to totals.

    `weight` is 1 / (vehicles * steps). `scratch` is a (rows, LANES) array with at least one row.
    """
    for term in range(plan.cost_row.shape[0]):
        row, rows, minus = plan.cost_row[term], plan.cost_rows[term], plan.cost_minus[term]
        shape, w, offset = plan.cost_shape[term], plan.cost_weight[term] * weight, plan.cost_offset[term]
        if shape == ATTITUDE:
            totals[term] += total(QUARTER * (THREE - x[row, ALL] - x[row + 4, ALL] - x[row + 8, ALL]))
            g[row, ALL] -= QUARTER * w
            g[row + 4, ALL] -= QUARTER * w
            g[row + 8, ALL] -= QUARTER * w
            continue
        square = x[row, ALL] * ZERO
        for i in range(rows):
            z = _difference(x, row + i, minus + i, minus < 0, offset)
            square += z * z
        slope = square * ZERO  # of the cost, with respect to square / 2
        if shape == SQUARE:
            totals[term] += total(square)
            slope += TWO * w
        else:
            norm = math.sqrt(square + plan.cost_soft[term])
            if shape == NORM:
                totals[term] += total(norm)
                slope = w / norm
            else:
                scratch[0, ALL] = norm
                for lane in range(LANES):
                    totals[term] += math.log1p(scratch[0, lane])
                slope = w / (norm * (ONE + norm))
        for i in range(rows):
            z = _difference(x, row + i, minus + i, minus < 0, offset)
            g[row + i, ALL] += slope * z


@inlined
def _weigh(plan, exogenous, action, before, out):
    """The rows that costs look at: signals are in `out` already."""
    _copy(exogenous, 0, out, plan.signals, plan.exogenous)
    start = plan.signals + plan.exogenous
    for i in range(plan.actions):
        out[start + i, ALL] = action[i, ALL]
        out[start + plan.actions + i, ALL] = action[i, ALL] - before[i, ALL]


@inlined
def _clip(g, limit):
    """Scale each vehicle's adjoint down to the norm `limit`."""
    square = g[0, ALL] * g[0, ALL]
    for i in range(1, g.shape[0]):
        square += g[i, ALL] * g[i, ALL]
    factor = select(square > limit * limit, limit / math.sqrt(square + TINY), ONE)
    for i in range(g.shape[0]):
        g[i, ALL] *= factor


@part
def _finite(x):
    """Whether every number of the block is of a sane size (NaN and infinity are not)."""
    for i in range(x.shape[0]):
        for lane in range(LANES):
            if not (abs(x[i, lane]) < HUGE):
                return False
    return True


def _window(plan, layout, batch, tape, weights, gradient, totals, window, h, limit, offset, learn):
    """Fly all vehicles for `window` steps of h seconds and, if `learn`, run backwards.

    Adds to `gradient` (weights,) the gradient of the loss and to `totals` (costs,) the unweighted costs summed over
    vehicles and steps. `limit`, times a vehicle's leeway, bounds the norm of its state adjoint, in units of the loss's
    weight 1 / (vehicles * steps). Returns the number of blocks whose flight was not finite: those are left out of the
    gradient.
    """
    blocks = batch.state.shape[0]
    weight = ONE / np.float32(blocks * LANES * window)
    slots = tape.action.shape[0] - window
    actions, history = plan.actions, plan.history
    seen, weighed = block(tape.seen, 0, tape.seen.shape[1]), block(tape.weighed, 0, tape.weighed.shape[1])
    g_seen, g_weighed = block(tape.g_seen, 0, tape.seen.shape[1]), block(tape.g_weighed, 0, tape.weighed.shape[1])
    g_state, g_applied = block(tape.g_state, 0, STATE_ROWS), block(tape.g_applied, 0, COMMAND_ROWS)
    g_hidden = block(tape.g_hidden, 0, tape.g_hidden.shape[1])
    history_row = plan.signals + plan.exogenous
    lost = 0
    network.transpose(weights, tape.transposed, layout.layers)

    for index in range(blocks):
        parameters = block(batch.parameters, index, PARAMETER_ROWS)
        taps = block(batch.taps, index, TAPS)
        past = block(batch.past, index, batch.past.shape[1])
        hidden = block(batch.hidden, index, batch.hidden.shape[1])
        bias, leeway = block(batch.bias, index, plan.signals), block(batch.leeway, index, 1)
        for k in range(slots):
            _copy(past, k * actions, block(tape.action, k, actions), 0, actions)
        _copy(block(batch.state, index, STATE_ROWS), 0, block(tape.state, 0, STATE_ROWS), 0, STATE_ROWS)

        for t in range(window):
            state = block(tape.state, t, STATE_ROWS)
            following = block(tape.state, t + 1, STATE_ROWS)
            y = block(tape.activation, t, layout.rows)
            applied = block(tape.applied, t, COMMAND_ROWS)
            noise = block(batch.noise, (offset + index * window + t) % batch.noise.shape[0], plan.signals)
            sense(state, seen, ALL)
            for i in range(plan.signals):
                seen[i, ALL] += noise[i, ALL] + bias[i, ALL]
            _copy(
                block(batch.exogenous, index * (window + 1) + t, plan.exogenous), 0, seen, plan.signals, plan.exogenous
            )
            for k in range(history):
                _copy(block(tape.action, slots + t - 1 - k, actions), 0, seen, history_row + k * actions, actions)
            features_of(plan, seen, y)
            forward(weights, layout, y, hidden)
            _copy(y, layout.action, block(tape.action, slots + t, actions), 0, actions)
            a0, a1 = block(tape.action, slots + t, actions), block(tape.action, slots + t - 1, actions)
            a2, a3 = block(tape.action, slots + t - 2, actions), block(tape.action, slots + t - 3, actions)
            for i in range(actions):
                centre, half = plan.command_centre[i], plan.command_half[i]
                delayed = (taps[0, ALL] * a0[i, ALL] + taps[1, ALL] * a1[i, ALL]) + (
                    taps[2, ALL] * a2[i, ALL] + taps[3, ALL] * a3[i, ALL]
                )
                applied[i, ALL] = centre + half * delayed
            advance(state, parameters, applied, following, ALL, h)

        last = block(tape.state, window, STATE_ROWS)
        _copy(last, 0, block(batch.state, index, STATE_ROWS), 0, STATE_ROWS)
        for k in range(slots):
            _copy(block(tape.action, window + k, actions), 0, past, k * actions, actions)
        if not learn:
            continue
        if not _finite(last):
            lost += 1
            continue

        _clear(g_state)
        _clear(g_hidden)
        for k in range(slots + window):
            _clear(block(tape.g_action, k, actions))
        for t in range(window - 1, -1, -1):
            state = block(tape.state, t, STATE_ROWS)
            y = block(tape.activation, t, layout.rows)
            action, before = block(tape.action, slots + t, actions), block(tape.action, slots + t - 1, actions)
            # The costs of the state that this step led to.
            following = block(tape.state, t + 1, STATE_ROWS)
            sense(following, weighed, ALL)
            exogenous = block(batch.exogenous, index * (window + 1) + t + 1, plan.exogenous)
            _weigh(plan, exogenous, action, before, weighed)
            _clear(g_weighed)
            _costs(plan, weighed, g_weighed, weight, totals, g_applied)
            sense_adjoint(following, g_weighed, g_state, ALL)
            g_now, g_before = block(tape.g_action, slots + t, actions), block(tape.g_action, slots + t - 1, actions)
            for i in range(actions):
                change = g_weighed[history_row + actions + i, ALL]
                g_now[i, ALL] += g_weighed[history_row + i, ALL] + change
                g_before[i, ALL] -= change
            _clip(g_state, limit * weight * leeway[0, ALL])
            # The physics, and the delayed commands.
            _clear(g_applied)
            advance_adjoint(state, parameters, block(tape.applied, t, COMMAND_ROWS), g_state, g_applied, ALL, h)
            for k in range(TAPS):
                g_tap = block(tape.g_action, slots + t - k, actions)
                for i in range(actions):
                    half = plan.command_half[i]
                    g_tap[i, ALL] += half * taps[k, ALL] * g_applied[i, ALL]
            # The policy, its features, and the state that they saw.
            g_network = block(tape.g_network, t % CHUNK, layout.rows)
            _copy(g_now, 0, g_network, layout.action, actions)
            backward(tape.transposed, layout, y, g_network, g_hidden)
            if t % CHUNK == 0:
                for layer in layout.layers:
                    network.weight_gradient(layer, tape.g_network, tape.activation, t, min(CHUNK, window - t), gradient)
            _clear(g_seen)
            features_adjoint(plan, y, g_network, g_seen)
            for k in range(history):
                g_past = block(tape.g_action, slots + t - 1 - k, actions)
                for i in range(actions):
                    g_past[i, ALL] += g_seen[history_row + k * actions + i, ALL]
            sense_adjoint(state, g_seen, g_state, ALL)
    return lost


@kernel
def adam(weights, gradient, first, second, step, rate, beta1, beta2, clip):
    """One Adam update (Kingma & Ba 2015) in place, with the gradient scaled down to the norm `clip`; returns its norm.

    `step` counts from 1. The gradient is set to zero. A gradient that is not finite is discarded.
    """
    square = 0.0
    for i in range(gradient.shape[0]):
        square += gradient[i] * gradient[i]
    norm = math.sqrt(square)
    if math.isfinite(norm):
        factor = np.float32(min(1.0, clip / (norm + 1e-12)))
        scale = rate * math.sqrt(1.0 - beta2**step) / (1.0 - beta1**step)
        epsilon = 1e-8 * math.sqrt(1.0 - beta2**step)
        for i in range(gradient.shape[0]):
            g = gradient[i] * factor
            first[i] += np.float32(1.0 - beta1) * (g - first[i])
            second[i] += np.float32(1.0 - beta2) * (g * g - second[i])
            weights[i] -= np.float32(scale * first[i] / (math.sqrt(second[i]) + epsilon))
    for i in range(gradient.shape[0]):
        gradient[i] = ZERO
    return norm


def window_kernel(engine: str, kind: str) -> Any:
    """`_window` compiled for one engine's equations and one kind of network ("mlp" or "gru").

    The same code object with other globals, under its own name: Numba's disk cache tells functions apart by name, and
    does not accept functions as arguments or in closures.
    """
    dynamics = load_dynamics(engine)
    bound = {
        **globals(),
        "advance": dynamics.advance,
        "advance_adjoint": dynamics.advance_adjoint,
        "sense": dynamics.sense,
        "sense_adjoint": dynamics.sense_adjoint,
        "STATE_ROWS": dynamics.STATE_ROWS,
        "COMMAND_ROWS": dynamics.COMMAND_ROWS,
        "PARAMETER_ROWS": dynamics.PARAMETER_ROWS,
        "forward": {"mlp": network.mlp_forward, "gru": network.gru_forward}[kind],
        "backward": {"mlp": network.mlp_backward, "gru": network.gru_backward}[kind],
    }
    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in (network, fused_plan))
    digest = hashlib.sha256(sources).hexdigest()[:8]  # a change there makes a new kernel
    name = f"window_{engine}_{kind}_{digest}"
    function = FunctionType(_window.__code__, bound, name)
    function.__qualname__ = name
    function.__module__ = __name__
    return kernel(function)
