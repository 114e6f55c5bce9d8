"""The loss of PPO, its gradients, and the advantages that it weighs, without an operation at a time.

As `policies.algorithms.ppo.torch_path` has them; a test holds both together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused import kernel
from policies.learning.fused.dense import ONE, TILE, ZERO, clear
from policies.learning.fused.network import CHUNK, OUTS, RESULT, backward, forward, room, vectors
from sim.engines.vector.activations import tanh
from sim.engines.vector.blocks import inlined, part
from sim.engines.vector.simd import ALL, total
from sim.randomize import Array

HALF, TWO = np.float32(0.5), np.float32(2.0)
MOST = np.float32(20.0)  # of a change of log probability


class Samples(NamedTuple):
    """A rollout of `rows` environments over T steps, sample t * rows + row; each of whole vectors (vectors, LANES)."""

    seen: Array  # what the actor sees: as below
    judged: Array  # what the critic sees: of T + 1 steps, then of episodes that ended within their time
    action: Array
    log_prob: Array  # (T * rows,) of the actions when they were taken, but for a constant
    reward: Array  # (T * rows,)
    ended: NDArray[np.int64]  # (T * rows,): GOES_ON, LOST, or the sample in `judged` of its end
    value: Array  # (samples in `judged`,)
    advantage: Array  # (T * rows,)
    target: Array  # (T * rows,) of the value
    wanted: Array  # what the actor's outputs should have been, as `action`; none where nobody says
    heed: Array  # (outs, LANES) how much their squared differences from that count


GOES_ON, LOST = -1, -2


def samples_of(num: int, horizon: int, features: int, judged: int, outputs: int, told: bool = False) -> Samples:
    """Room for a rollout of so many rows and steps, with numbers that actor and critic see, and the actor's outputs.

    `told`: somebody says what these should be.
    """
    n, states = num * horizon, (2 * horizon + 1) * num
    numbers = [np.zeros(n, np.float32) for _ in range(4)]
    return Samples(
        seen=room(states * vectors(features)),
        judged=room(states * vectors(judged)),
        action=room(n * vectors(outputs)),
        log_prob=numbers[0],
        reward=numbers[1],
        ended=np.zeros(n, np.int64),
        value=np.zeros(states, np.float32),
        advantage=numbers[2],
        target=numbers[3],
        wanted=room(n * vectors(outputs) * told),
        heed=room(vectors(outputs)),
    )


class Scale(NamedTuple):
    """(x - mean) * factor, over whole vectors (vectors, LANES)."""

    mean: Array
    factor: Array


class Loss(NamedTuple):
    """Numbers of the loss."""

    clip: np.float32
    entropy: np.float32
    value_mean: np.float32
    value_std: np.float32


@inlined
def gathered(samples, rows, first, count, scale, out):
    """Samples rows[first : first + count], normalised, to the beginning of out."""
    width = len(scale.mean)
    for i in range(count):
        at = rows[first + i] * width
        for v in range(width):
            out[i * width + v, ALL] = (samples[at + v, ALL] - scale.mean[v, ALL]) * scale.factor[v, ALL]


@inlined
def log_density(action, at, mean, place, std, outs):
    """Of an action, but for a constant; `std` begins with the log standard deviations and goes on with what counts."""
    sum_ = action[at, ALL] * ZERO
    for v in range(outs):
        u = (action[at + v, ALL] - tanh(mean[place + v, ALL])) * std[2 * outs + v, ALL]
        sum_ -= HALF * (u * u) + std[v, ALL] * std[outs + v, ALL]
    return total(sum_)


@inlined
def policy_slopes(samples, row, values, slopes, place, std, outs, loss, share, g_std):
    """The loss's gradient of one sample, with the weight `share`: of what the actor made, to slopes, and of std.

    Returns what counts for the metrics: the divergence, whether it is clipped, and the gain.
    """
    told = len(samples.wanted) > 0
    change = log_density(samples.action, row * outs, values, place, std, outs) - samples.log_prob[row]
    ratio = np.float32(math.exp(min(change, MOST)))
    advantage = samples.advantage[row]
    clipped = ratio > ONE + loss.clip if advantage > ZERO else ratio < ONE - loss.clip
    factor = ZERO if clipped else -ratio * advantage * share
    for v in range(outs):
        mean = tanh(values[place + v, ALL])
        u = (samples.action[row * outs + v, ALL] - mean) * std[2 * outs + v, ALL]
        slope = factor * u * std[2 * outs + v, ALL]
        if told:
            slope += TWO * share * samples.heed[v, ALL] * (mean - samples.wanted[row * outs + v, ALL])
        slopes[place + v, ALL] = slope * (ONE - mean * mean)
        g_std[v, ALL] += (factor * (u * u - ONE) - loss.entropy * share) * std[outs + v, ALL]
    gained = min(ratio * advantage, min(max(ratio, ONE - loss.clip), ONE + loss.clip) * advantage)
    return ratio - ONE - change, clipped, gained


@part
def policy_gradients(rows, share, samples, actor, scale, loss, std, g, g_std, scratch, metrics):
    """Add to the actor's gradients those of the samples `rows`, each with the weight `share`; to metrics (4,) sums.

    std (3 * outs, LANES): log standard deviations, 1 where there is an action, 1 / standard deviation. The metrics:
    of the divergence, of squared errors of the value, of clipped samples, and of the policy's loss.
    """
    divergence = beyond = gained = 0.0  # not in metrics at once: threads would wait for each other's lines
    last = actor.layers[len(actor.layers) - 1]
    outs, result = last[OUTS], last[RESULT]
    for first in range(0, len(rows), CHUNK):
        count = min(CHUNK, len(rows) - first)
        whole = (count + TILE - 1) // TILE * TILE
        gathered(samples.seen, rows, first, count, scale, scratch.inputs)
        forward(actor, scratch, whole)
        for i in range(count):
            apart, clipped, gain = policy_slopes(
                *(samples, rows[first + i], scratch.values, scratch.slopes, result + i * outs),
                *(std, outs, loss, share, g_std),
            )
            divergence += apart
            beyond += clipped
            gained += gain
        clear(scratch.slopes, result + count * outs, (whole - count) * outs)
        backward(actor, scratch, g, whole)
    metrics[0] += divergence
    metrics[2] += beyond
    metrics[3] -= gained


@part
def value_gradients(rows, share, samples, critic, scale, loss, g, scratch, metrics):
    """The same of the critic."""
    errors = 0.0
    place = critic.layers[len(critic.layers) - 1, RESULT]
    for first in range(0, len(rows), CHUNK):
        count = min(CHUNK, len(rows) - first)
        whole = (count + TILE - 1) // TILE * TILE
        gathered(samples.judged, rows, first, count, scale, scratch.inputs)
        forward(critic, scratch, whole)
        clear(scratch.slopes, place, whole)
        for i in range(count):
            wanted = (samples.target[rows[first + i]] - loss.value_mean) / loss.value_std
            error = total(scratch.values[place + i, ALL]) - wanted
            errors += error * error
            scratch.slopes[place + i, 0] = TWO * error * share
        backward(critic, scratch, g, whole)
    metrics[1] += errors


@kernel
def judge(samples, first, last, critic, scale, loss, scratch):
    """The values of samples first ... last - 1 in `judged`, in their unit."""
    end = critic.layers[len(critic.layers) - 1]
    width = len(scale.mean)
    for begin in range(first, last, CHUNK):
        count = min(CHUNK, last - begin)
        for i in range(count):
            for v in range(width):
                x = samples.judged[(begin + i) * width + v, ALL]
                scratch.inputs[i * width + v, ALL] = (x - scale.mean[v, ALL]) * scale.factor[v, ALL]
        forward(critic, scratch, (count + TILE - 1) // TILE * TILE)
        for i in range(count):
            made = scratch.values[end[RESULT] + i, 0]
            samples.value[begin + i] = loss.value_mean + loss.value_std * made


@kernel
def advantages(samples, steps, rows, gamma, decay):
    """Generalised advantage estimates (Schulman et al. 2016), and the targets of the value.

    Beyond the time limit of an episode counts the value of its last state; sums over time stop there.
    """
    for row in range(rows):
        running = ZERO
        for t in range(steps - 1, -1, -1):
            k = t * rows + row
            ended = samples.ended[k]
            following = k + rows if ended == GOES_ON else ended
            after = ZERO if ended == LOST else samples.value[following]
            change = samples.reward[k] + gamma * after - samples.value[k]
            running = change + gamma * decay * running if ended == GOES_ON else change
            samples.advantage[k] = running
            samples.target[k] = samples.value[k] + running


@kernel
def moments(samples, count, scale, out):
    """Sums over samples, (2 * width, LANES): of (x - mean) and of its square."""
    width = len(scale.mean)
    for v in range(width):
        mean = scale.mean[v, ALL]
        one = square = mean * ZERO
        for i in range(count):
            x = samples[i * width + v, ALL] - mean
            one += x
            square += x * x
        out[v, ALL], out[width + v, ALL] = one, square
