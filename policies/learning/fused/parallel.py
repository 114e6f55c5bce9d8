"""What threads share of an iteration of PPO: flights of blocks, values and gradients of some samples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from policies.learning.fused import kernel, recurrent, surrogate
from policies.learning.fused.dense import ONE, ZERO
from policies.learning.fused.network import Net, Perceptron, room
from policies.learning.fused.rollout import play
from policies.learning.fused.surrogate import Loss, Samples, Scale, judge
from policies.learning.fused.symmetry import descend
from policies.learning.fused.work_queue import (
    FLIGHT,
    GRADIENTS,
    VALUES,
    claim,
    finish,
    finished,
    publish,
    rest,
    stopped,
    waiting,
)
from sim.engines.vector.blocks import OPTIONS, inlined, part
from sim.engines.vector.simd import ALL, LANES
from sim.randomize import Array

CLIP, ENTROPY, VALUE_MEAN, VALUE_STD, SHARE = range(5)  # places in `Learning.numbers`
PARTS = 4  # of a minibatch; as many threads are of use


class Learning(NamedTuple):
    """See `policies.learning.fused.surrogate`."""

    samples: Samples
    actor: Net
    critic: Net
    scales: tuple[Scale, Scale]  # of what the actor sees, and the critic
    std: Array
    extra: int  # where the gradient of std begins in the actor's
    unit: int  # samples of what minibatches consist of: 1, or all of a row
    order: NDArray[np.int64]  # of samples or rows, as minibatches take them
    ranges: NDArray[np.int64]  # (parts, 2): first and last of a part, of its samples or of their order
    numbers: Array
    actor_gradients: Array  # (PARTS, vectors, LANES)
    critic_gradients: Array
    metrics: NDArray[np.float64]  # (PARTS, 4)


def learning(
    samples: Samples,
    actor: Perceptron,
    critic: Perceptron,
    scales: tuple[Scale, Scale],
    std: Array,
    count: int,
    unit: int,
) -> Learning:
    """With room for minibatches out of `count` samples or rows, and for as many ranges of values as there may be."""
    found = [room(PARTS * network.size).reshape(PARTS, network.size, LANES) for network in (actor, critic)]
    order, ranges = np.zeros(count, np.int64), np.zeros((len(samples.value), 2), np.int64)
    numbers, metrics = np.zeros(5, np.float32), np.zeros((PARTS, 4))
    return Learning(
        *(samples, actor.net, critic.net, scales, std, actor.extra, unit),
        *(order, ranges, numbers, found[0], found[1], metrics),
    )


def policy_gradients(*of: Any) -> None:
    """In compiled code: as `surrogate.policy_gradients`, also by an actor that remembers."""
    raise NotImplementedError


@overload(policy_gradients, jit_options=OPTIONS)
def _policy_gradients(rows, share, samples, actor, scale, loss, std, g, g_std, scratch, metrics):
    # The function itself, not a call of it: the compiler works on what is called once more in every caller.
    return (recurrent if recurrent.remembers(actor) else surrogate).policy_gradients.py_func


@inlined
def every(rows, samples, unit):
    """The samples of these rows, of all steps; the rows themselves where they are samples."""
    if unit == 1:
        return rows
    num, found = len(samples.reward) // unit, np.zeros(len(rows) * unit, np.int64)
    for t in range(unit):
        for i in range(len(rows)):
            found[t * len(rows) + i] = t * num + rows[i]
    return found


@inlined
def _loss(w):
    return Loss(w.numbers[CLIP], w.numbers[ENTROPY], w.numbers[VALUE_MEAN], w.numbers[VALUE_STD])


@kernel
def value(queue, leads, count, w, scratch):
    """The values of the first `count` ranges; False where a helper has failed.

    Whoever `leads` publishes them, does what nobody else does, and waits for the others.
    """
    if leads:
        publish(queue, VALUES, count)
    while True:
        k = claim(queue, VALUES)
        if k < 0:
            return finished(queue, count) if leads else True
        judge(w.samples, w.ranges[k, 0], w.ranges[k, 1], w.critic, w.scales[1], _loss(w), scratch)
        finish(queue)


@kernel
def improve(queue, leads, bounds, steps, rate, clip, least, w, actor, critic, scratches):
    """A gradient step of both networks per minibatch order[bounds[k] : bounds[k + 1]]; False where a helper has failed.

    `steps` were made before, and the log standard deviations are at least `least`. The metrics are the last one's.
    Whoever `leads` publishes parts, does what nobody else does, and makes the steps; the others do parts of one.
    """
    outs = len(w.std) // 3
    for index in range(len(bounds) - 1):
        first, last = bounds[index], bounds[index + 1]
        if leads:
            w.numbers[SHARE] = ONE / np.float32((last - first) * w.unit)
            for k in range(PARTS):
                w.ranges[k, 0] = first + (last - first) * k // PARTS
                w.ranges[k, 1] = first + (last - first) * (k + 1) // PARTS
            publish(queue, GRADIENTS, PARTS)
        while True:
            k = claim(queue, GRADIENTS)
            if k < 0:
                break
            g_actor, g_critic, metrics = w.actor_gradients[k], w.critic_gradients[k], w.metrics[k]
            g_actor[:], g_critic[:], metrics[:] = ZERO, ZERO, 0.0
            rows, share, loss = w.order[w.ranges[k, 0] : w.ranges[k, 1]], w.numbers[SHARE], _loss(w)
            policy_gradients(
                *(rows, share, w.samples, w.actor, w.scales[0], loss, w.std, g_actor, g_actor[w.extra :]),
                *(scratches[0], metrics),
            )
            surrogate.value_gradients(
                *(every(rows, w.samples, w.unit), share, w.samples, w.critic, w.scales[1], loss, g_critic),
                *(scratches[1], metrics),
            )
            finish(queue)
        if not leads:
            return True
        if not finished(queue, PARTS):
            return False
        _gather(w.actor_gradients)
        _gather(w.critic_gradients)
        descend(actor, steps + index + 1, rate, clip)
        descend(critic, steps + index + 1, rate, clip)
        for v in range(outs):
            for lane in range(LANES):
                if w.std[outs + v, lane] > ZERO:  # an action
                    log = max(w.actor.weights[w.extra + v, lane], least)
                    w.actor.weights[w.extra + v, lane], w.std[v, lane] = log, log
                    w.std[2 * outs + v, lane] = math.exp(-log)
    return True


@part
def _gather(found):
    """The sum of the parts' gradients, in the place of the first one."""
    whole = found[0]
    for k in range(1, len(found)):
        more = found[k]
        for v in range(len(whole)):
            whole[v, ALL] = whole[v, ALL] + more[v, ALL]


@kernel
def help(queue, flight, w, actor, critic, scratches):
    """Do what is published, until the queue is stopped. Where there is no flight, None."""
    looks, none = 0, np.zeros(2, np.int64)
    leads, steps = none[0] != 0, none[0]  # False and 0, yet no constants: for those what is called is compiled anew
    while not stopped(queue):
        kind = waiting(queue)
        if kind == GRADIENTS:
            improve(queue, leads, none, steps, 0.0, 0.0, ZERO, w, actor, critic, scratches)
        elif kind == VALUES:
            value(queue, leads, steps, w, scratches[1])
        elif flight is not None and kind == FLIGHT:
            play(queue, leads, flight, scratches[0])
        looks = 0 if kind >= 0 else looks + 1
        rest(looks)
