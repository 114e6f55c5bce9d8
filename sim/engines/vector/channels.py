"""The imperfect way of numbers, sixteen rows at once: latency, offset, noise, dropout; see `sim.imperfect`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.vector.blocks import block, inlined, kernel
from sim.engines.vector.simd import ALL, LANES, select
from sim.engines.vector.streams import Streams, normal, normals_of_lanes, uniform
from sim.randomize import Array

ZERO, HALF, ONE = (np.float32(x) for x in (0.0, 0.5, 1.0))


class Channel(NamedTuple):
    """P numbers on their way. Arrays of LANES have no columns where nothing is to be done."""

    first: int  # column of what is sent
    owner: NDArray[np.int64]  # (P,), the signal of each
    weights: Array  # (blocks, taps * P, LANES), of the values since then, newest first
    past: Array  # (blocks, taps * P, LANES), these values
    noisy: NDArray[np.int64]  # which of them are
    noise: Array  # (P,) standard deviations
    bias: Array  # (blocks, P, LANES)
    dropout: Array  # (signals,) probabilities
    last: Array  # (blocks, P, LANES) delivered
    sent: NDArray[np.int64]  # (n,) how often, where something may be lost
    stream: Streams  # (blocks, LANES)
    arrived: Array  # (blocks, P, LANES) this control step


@inlined
def begun(row, late, index, values, std, own, delay, channel):
    """Begin one row with latency late[index], as if the first values had held; see `begin`. Returns the longest."""
    owner, weights, past, bias = channel.owner, channel.weights, channel.past, channel.bias
    width, longest = len(owner), ZERO
    taps = past.shape[1] // width  # none, where all arrives at once
    place, lane, state = row // LANES, row % LANES, own
    for k in range(delay.shape[1]):
        delay[row, k] = late[index, k]
        longest = max(longest, delay[row, k])
    for k in range(width):
        for tap in range(taps):
            weight = max(ZERO, ONE - abs(late[index, owner[k]] - tap))
            weights[place, tap * width + k, lane] = weight
            past[place, tap * width + k, lane] = values[place, k, lane]
    for k in range(len(std)):
        drawn, state = normal(state)
        bias[place, k, lane] = std[k] * np.float32(drawn)
    channel.sent[row], channel.stream[place, lane] = 0, state
    return longest


@kernel
def begin(rows, late, values, std, own, delay, channel):
    """Begin these rows with latency late (count, signals), in control steps, as if the first values had held.

    They blend linearly between control steps; `own` (count,) are the rows' streams of random numbers, `std` the
    offsets' standard deviations. Returns the longest latency.
    """
    longest = ZERO
    for index in range(len(rows)):
        longest = max(longest, begun(rows[index], late, index, values, std, own[index], delay, channel))
    return longest


@inlined
def _chance(channel, row, lane, added, lost):
    """What chance decides of a row at this control step: added (P, LANES), and which signals are lost."""
    stream, place = channel.stream, row // LANES
    before = stream[place, ALL]
    normals_of_lanes(stream, place, channel.noisy, added)
    own = stream[place, lane]
    stream[place, ALL] = before
    stream[place, lane] = own
    if len(channel.dropout):
        _dropped(channel, row, stream[place], lost, lane)


@inlined
def _dropped(channel, row, stream, lost, lane):
    for k in range(len(channel.dropout)):
        drawn, stream[lane] = uniform(stream[lane])
        lost[k, lane] = ONE if drawn < channel.dropout[k] and channel.sent[row] > 0 else ZERO
    channel.sent[row] += 1


@inlined
def _deliver(channel, place, values, added, lost, lane):
    """What arrives of values (columns, LANES) in one block."""
    first, owner, noise, dropout = channel.first, channel.owner, channel.noise, channel.dropout
    weights, past = (
        block(channel.weights, place, channel.weights.shape[1]),
        block(channel.past, place, channel.past.shape[1]),
    )
    bias, last = block(channel.bias, place, channel.bias.shape[1]), block(channel.last, place, channel.last.shape[1])
    out = block(channel.arrived, place, channel.arrived.shape[1])
    width = len(owner)
    taps = len(weights) // width
    for k in range(width):
        x = values[first + k, lane]
        if taps > 1:
            for tap in range(taps - 1, 0, -1):
                past[tap * width + k, lane] = past[(tap - 1) * width + k, lane]
            past[k, lane] = x
            x = x * weights[k, lane]
            for tap in range(1, taps):
                x = x + weights[tap * width + k, lane] * past[tap * width + k, lane]
        if len(noise):
            x = x + noise[k] * added[k, lane]
        if len(bias):
            x = x + bias[k, lane]
        if len(dropout):
            x = select(lost[owner[k], lane] > HALF, last[k, lane], x)
            last[k, lane] = x
        out[k, lane] = x


@inlined
def sent(channel, place, values, added, lost):
    """Send one block; `added` and `lost` are room for what chance decides, zero at first."""
    if len(channel.noisy):
        normals_of_lanes(channel.stream, place, channel.noisy, added)
    if len(channel.dropout):
        for lane in range(min(LANES, len(channel.sent) - place * LANES)):
            _dropped(channel, place * LANES + lane, channel.stream[place], lost, lane)
    _deliver(channel, place, values, added, lost, ALL)


@inlined
def room(channel):
    """For `sent`."""
    shape = len(channel.owner), LANES
    return np.zeros(shape, np.float32), np.zeros((len(channel.dropout), LANES), np.float32)


@kernel
def send(channel, values):
    """What arrives of values (blocks, columns, LANES)."""
    added, lost = room(channel)
    for place in range(len(values)):
        sent(channel, place, block(values, place, values.shape[1]), added, lost)


@inlined
def sent_row(channel, row, values, added, lost):
    """Send one row of values (blocks, columns, LANES)."""
    place, lane = row // LANES, row % LANES
    _chance(channel, row, lane, added, lost)
    _deliver(channel, place, block(values, place, values.shape[1]), added, lost, lane)


@kernel
def send_rows(channel, values, rows):
    """The same of these rows (count,)."""
    added, lost = room(channel)
    for row in rows:
        sent_row(channel, row, values, added, lost)
