"""What critics and an actor learn from a replay: losses and their gradients, without an operation at a time.

As `policies.algorithms.sac.torch_path` has them; a test holds both together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused import dense, kernel
from policies.learning.fused.dense import ONE, TILE, ZERO
from policies.learning.fused.network import (
    CHUNK,
    INPUTS,
    OUTPUTS,
    OUTS,
    RESULT,
    WEIGHT,
    Net,
    backward,
    descended,
    forward,
)
from policies.learning.fused.replay import draw, recalled
from policies.learning.fused.squashed import chosen, log_density, write_slopes
from policies.learning.fused.symmetry import Trained, descend
from sim.engines.vector.activations import tanh
from sim.engines.vector.blocks import inlined, part
from sim.engines.vector.simd import ALL, LANES
from sim.engines.vector.streams import normals, uniform
from sim.randomize import Array

TWO = np.float32(2.0)


class Batch(NamedTuple):
    """Transitions drawn from a replay, each over one or more steps, and what else is random in a gradient step."""

    row: NDArray[np.int64]  # (n,)
    after: NDArray[np.int64]  # (n,) row of the state that followed
    reward: Array  # (n,) discounted sum
    discount: Array  # (n,) of the value of the state that followed; 0 where the vehicle was lost
    noise: Array  # (n, actions), of the actor's action
    next_noise: Array  # (n, actions), of that in the state that followed
    target: Array  # (n,) of the critics


class Learner(NamedTuple):
    """Networks, and those that follow them."""

    actor: Trained
    critics: tuple[Trained, ...]
    target_actor: Net
    target_critics: tuple[Net, ...]
    log_alpha: NDArray[np.float64]  # (3,) with Adam's moments


class Rules(NamedTuple):
    """How actions are chosen, and what counts."""

    actions: int
    squashed: bool  # the actor is a distribution (SAC), or else one action (TD3)
    smoothing: np.float32  # of the latter's targets, cut off at twice that
    judges: int  # critics whose mean the actor climbs
    some: int  # target critics whose smallest value counts
    actor_every: int
    n_step: int
    gamma: np.float32
    tau: np.float32
    reward_scale: np.float32
    wanted: float  # the log density of actions that the entropy's weight aims at
    alpha_rate: float


@kernel
def sample(stored, written, n_step, gamma, stream, quantiles, batch):
    """Draw a batch, all of its random numbers from stream (1,)."""
    state = draw(stored, written, n_step, gamma, stream[0], batch)
    every = np.arange(batch.noise.shape[1])
    first, second = batch.noise.T, batch.next_noise.T
    for i in range(len(batch.row)):
        state = normals(state, quantiles, every, first, i)
        state = normals(state, quantiles, every, second, i)
    stream[0] = state


@inlined
def _recalled_seen(stored, rows, first, count, scale, out):
    for i in range(count):
        recalled(stored, rows[first + i], stored.judged, stored.seen, scale, out, i * stored.seen)


@inlined
def _recalled_judged(stored, rows, first, count, scale, out):
    for i in range(count):
        recalled(stored, rows[first + i], 0, stored.judged, scale, out, i * stored.judged)


@kernel
def targets(batch, stored, scales, alpha, actor, critics, some, rules, scratches):
    """Fill batch.target: the reward, and the smallest value that `some` target critics give what follows."""
    a, c = scratches
    layer = actor.layers[len(actor.layers) - 1]
    smallest, densities = np.zeros(CHUNK, np.float32), np.zeros(CHUNK, np.float32)
    for first in range(0, len(batch.row), CHUNK):
        count = min(CHUNK, len(batch.row) - first)
        whole = (count + TILE - 1) // TILE * TILE
        _recalled_seen(stored, batch.after, first, count, scales[0], a.inputs)
        _recalled_judged(stored, batch.after, first, count, scales[1], c.inputs)
        forward(actor, a, whole)
        for i in range(count):
            place, noise = layer[RESULT] + i * layer[OUTS], batch.next_noise[first + i]
            densities[i] = _act(a.values, place, noise, rules, scales[1], c.inputs, i * stored.judged)
        for k in range(len(some)):
            critic = critics[some[k]]
            forward(critic, c, whole)
            last = critic.layers[len(critic.layers) - 1]
            for i in range(count):
                value = c.values[last[RESULT] + i, 0]
                smallest[i] = value if k == 0 else min(value, smallest[i])
        for i in range(count):
            n = first + i
            after = smallest[i] - alpha * densities[i]
            batch.target[n] = rules.reward_scale * batch.reward[n] + batch.discount[n] * after


@inlined
def _write_action(action, index, scale, inputs, at):
    """Write an action to what critics see, normalised."""
    v, lane = index // LANES, index % LANES
    inputs[at + v, lane] = (action - scale.mean[v, lane]) * scale.factor[v, lane]


@inlined
def _act(values, place, noise, rules, scale, inputs, at):
    """Write the target's action to the critics' inputs; its log density."""
    density, limit = ZERO, TWO * rules.smoothing
    for i in range(rules.actions):
        if rules.squashed:
            action, pushed = chosen(values, place, i, rules.actions, noise[i])
            density += log_density(values, place, i, rules.actions, noise[i], pushed)
        else:
            pushed = min(max(rules.smoothing * noise[i], -limit), limit)
            action = min(max(tanh(values[place + i // LANES, i % LANES]) + pushed, -ONE), ONE)
        _write_action(action, i, scale, inputs, at)
    return density


@kernel
def judge(batch, stored, scale, critic, gradient, scratch):
    """Add to a critic's gradient; the mean squared error."""
    last, share = critic.layers[len(critic.layers) - 1], np.float32(1.0 / len(batch.row))
    g, loss = scratch.slopes, 0.0
    for first in range(0, len(batch.row), CHUNK):
        count = min(CHUNK, len(batch.row) - first)
        whole = (count + TILE - 1) // TILE * TILE
        _recalled_judged(stored, batch.row, first, count, scale, scratch.inputs)
        forward(critic, scratch, whole)
        dense.clear(g, last[RESULT], whole)
        for i in range(count):
            error = scratch.values[last[RESULT] + i, 0] - batch.target[first + i]
            g[last[RESULT] + i, 0] = TWO * share * error
            loss += error * error
        backward(critic, scratch, gradient, whole)
    return loss / len(batch.row)


@part
def _gate(critic, outs, gate):
    """The first layer's weights of the first `outs` vectors of inputs, as (outputs, inputs)."""
    layer = critic.layers[0]
    flat, source = gate.reshape(-1), critic.weights.reshape(-1)
    for j in range(min(outs * LANES, layer[INPUTS])):
        for i in range(layer[OUTPUTS]):
            flat[i * outs * LANES + j] = source[(layer[WEIGHT] + j * layer[OUTS]) * LANES + i]


@kernel
def climb(batch, stored, scales, alpha, actor, critics, gradient, rules, scratches, gate, push):
    """Add to the actor's gradient that of alpha times the log density less the critics' mean; means of both."""
    a, c = scratches
    layer, outs = actor.layers[len(actor.layers) - 1], (rules.actions + LANES - 1) // LANES
    place, wide, share = layer[RESULT], layer[OUTS], np.float32(1.0 / len(batch.row))
    density, value = 0.0, 0.0
    pushed, action = np.zeros((CHUNK, rules.actions), np.float32), np.zeros((CHUNK, rules.actions), np.float32)
    for first in range(0, len(batch.row), CHUNK):
        count = min(CHUNK, len(batch.row) - first)
        whole = (count + TILE - 1) // TILE * TILE
        _recalled_seen(stored, batch.row, first, count, scales[0], a.inputs)
        _recalled_judged(stored, batch.row, first, count, scales[1], c.inputs)
        forward(actor, a, whole)
        for i in range(count):
            for j in range(rules.actions):
                k, noise = place + i * wide, batch.noise[first + i, j]
                if rules.squashed:
                    action[i, j], pushed[i, j] = chosen(a.values, k, j, rules.actions, noise)
                    density += log_density(a.values, k, j, rules.actions, noise, pushed[i, j])
                else:
                    action[i, j] = tanh(a.values[k + j // LANES, j % LANES])
                _write_action(action[i, j], j, scales[1], c.inputs, i * stored.judged)
        dense.clear(push, 0, whole * outs)
        for k in range(rules.judges):
            critic = critics[k].net
            forward(critic, c, whole)
            last, lowest = critic.layers[len(critic.layers) - 1], critic.layers[0]
            dense.clear(c.slopes, last[RESULT], whole)
            for i in range(count):
                value += c.values[last[RESULT] + i, 0]
                c.slopes[last[RESULT] + i, 0] = -share / np.float32(rules.judges)
            for index in range(len(critic.layers) - 1, 0, -1):
                descended(critic, c, index, whole)
            _gate(critic, outs, gate)
            dense.product(gate, 0, lowest[OUTPUTS], outs, c.slopes, lowest[RESULT], lowest[OUTS], push, 0, whole)
        dense.clear(a.slopes, place, whole * wide)
        for i in range(count):
            for j in range(rules.actions):
                toward = push[i * outs + j // LANES, j % LANES] * scales[1].factor[j // LANES, j % LANES]
                if rules.squashed:
                    write_slopes(a.values, place + i * wide, j, rules.actions, a.slopes, action[i, j], pushed[i, j],
                                 toward, alpha * share)  # fmt: skip
                else:
                    a.slopes[place + i * wide + j // LANES, j % LANES] = toward * (ONE - action[i, j] * action[i, j])
        backward(actor, a, gradient, whole)
    return density / len(batch.row), value / (rules.judges * len(batch.row))


@kernel
def follow(target, source, share):
    """Move weights by `share` of the way to the source's."""
    for k in range(len(target)):
        target[k, ALL] = target[k, ALL] + share * (source[k, ALL] - target[k, ALL])


@inlined
def _weigh(state, gradient, step, rate):
    """A step of Adam of a number, its first and second moment."""
    state[1] += 0.1 * (gradient - state[1])
    state[2] += 0.001 * (gradient * gradient - state[2])
    root = math.sqrt(state[2] / (1.0 - 0.999**step))
    state[0] -= rate * state[1] / (1.0 - 0.9**step) / (root + 1e-8)


@inlined
def _shuffled(order, count, state):
    """Draw the first `count` of an order without replacement; the stream after them."""
    for k in range(count):
        share, state = uniform(state)
        other = k + int(share * (len(order) - k))
        order[k], order[other] = order[other], order[k]
    return state


@kernel
def improve(count, done, written, rate, learner, stored, scales, rules, batch, scratches, gate, push, stream, quantiles,
            metrics):  # fmt: skip
    """So many gradient steps of the critics, now and then one of the actor, after `done` of them; targets follow.

    The metrics (3,) are the last ones: the critics' loss, the actor's log density, and its value.
    """
    order = np.arange(len(learner.critics))
    for step in range(done + 1, done + count + 1):
        alpha = np.float32(math.exp(learner.log_alpha[0]))
        sample(stored, written, rules.n_step, rules.gamma, stream, quantiles, batch)
        if rules.some < len(order):
            stream[0] = _shuffled(order, rules.some, stream[0])
        acting = learner.actor.net if rules.squashed else learner.target_actor
        targets(batch, stored, scales, alpha, acting, learner.target_critics, order[: rules.some], rules, scratches)
        metrics[0] = 0.0
        for k in range(len(learner.critics)):
            critic = learner.critics[k]
            metrics[0] += judge(batch, stored, scales[1], critic.net, critic.gradient, scratches[1])
            descend(critic, step, rate, math.inf)
        if step % rules.actor_every == 0:
            actor, turn = learner.actor, step // rules.actor_every
            density, value = climb(
                *(batch, stored, scales, alpha, actor.net, learner.critics, actor.gradient, rules, scratches),
                *(gate, push),
            )
            descend(actor, turn, rate, math.inf)
            metrics[1], metrics[2] = density, value
            if rules.squashed:
                _weigh(learner.log_alpha, -(density - rules.wanted), turn, rules.alpha_rate)
        for k in range(len(learner.critics)):
            follow(learner.target_critics[k].weights, learner.critics[k].net.weights, rules.tau)
        if not rules.squashed:
            follow(learner.target_actor.weights, learner.actor.net.weights, rules.tau)
