"""Random numbers inside compiled code: a stream of its own for every row, decided by what names it.

The generator is SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 16):
a stream is one 64-bit number, and a row's noise costs nanoseconds instead of a call. Normal numbers come from the
ziggurat of 256 layers (Marsaglia and Tsang 2000, "The ziggurat method for generating random variables"), with the
layer and the position in it from different bits (Doornik 2005). Where there are many, sixteen bits each choose among
equally likely quantiles, with the exact distribution beyond the outermost; sixteen rows at once compute the quantile,
since as many look-ups take three times as long.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sim.engines.vector.blocks import inlined, kernel
from sim.engines.vector.simd import ALL, LANES, bits_of, flags, from_bits, narrowed, number

Streams = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)
S11, LAYER = np.uint64(11), np.uint64(255)
UNIT, HALF, ONE = 2.0**-53, 0.5, 1.0
SIGNED = np.int64(11)

LAYERS = 256
RIGHTMOST, AREA = 3.6541528853610088, 0.00492867323399  # of the ziggurat: where its tail begins, and each layer's


def _ziggurat() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The right ends (257,) of its layers, the lowest first, and the density (257,) there."""
    ends = [AREA / math.exp(-0.5 * RIGHTMOST**2), RIGHTMOST]
    for _ in range(LAYERS - 2):
        ends.append(math.sqrt(-2.0 * math.log(AREA / ends[-1] + math.exp(-0.5 * ends[-1] ** 2))))
    x = np.array([*ends, 0.0])
    return x, np.exp(-0.5 * x**2)


ENDS, DENSITY = _ziggurat()
WIDTH = 2.0**-52 * ENDS[:-1]  # of a layer, per unit of a signed number of 53 bits
INSIDE = (2.0**52 * ENDS[1:] / ENDS[:-1]).astype(np.int64)  # below it, a number is under the layer above, too


CELLS = 2**16  # equally likely ones of the normal distribution
OUTERMOST = NormalDist().inv_cdf(1.0 - 1.0 / CELLS)  # the end of the last but one
FIRST_CELL, LAST = np.uint64(0), np.uint64(CELLS - 1)
BITS = np.uint64(16)


def _quantiles() -> NDArray[np.float32]:
    """The middle (CELLS,) of each."""
    upper = np.array([*map(NormalDist().inv_cdf, (np.arange(CELLS // 2, CELLS) + 0.5) / CELLS)], np.float32)
    return np.concatenate([-upper[::-1], upper])


# Of the number v in (-1, 1) that a cell stands for, the quantile is v times a polynomial of log2(1 - v^2), whose own
# polynomial is that of log2(m) - m - 126 for a mantissa m in [1, 2): minimax fits, by reweighted least squares. In all
# it is within 2.2e-5 of the quantile, of which cells are further apart.
R0, R1, R2, R3, R4, R5, R6, R7, R8 = (
    *map(np.float32, (1.2533182, -0.22740375, 0.0078681428, 0.0010799445, -6.7280009e-05)),
    *map(np.float32, (-2.1051412e-05, -1.7490128e-06, -6.7442329e-08, -1.0322704e-09)),
)
L0, L1, L2, L3, L4 = map(np.float32, (-128.5128632, 3.0701027, -2.120687, 0.6451475, -0.081616648))
S16, S32, SIXTEEN = np.uint32(16), np.uint64(32), np.uint32(0xFFFF)
MANTISSA, UNITY, SHARE = np.uint32(0x7FFFFF), np.uint32(0x3F800000), np.float32(2.0**-23)
CELL, EDGE = np.float32(2.0 / CELLS), np.float32(1.0 / CELLS - 1.0)
WHOLE, NONE, INNER = np.float32(1.0), np.float32(0.0), np.float32(4.0 / CELLS)  # 1 - v^2 of all but the outermost


QUANTILES = _quantiles()  # an argument of kernels: a constant of this size takes long to compile


@inlined
def mixed(x):
    """Sixty-four bits that depend on all of those of x."""
    x = (x ^ (x >> S30)) * FIRST
    x = (x ^ (x >> S27)) * SECOND
    return x ^ (x >> S31)


@kernel
def _streams(seed, numbers, purpose):
    out = np.empty(len(numbers), np.uint64)
    for k in range(len(numbers)):
        x = mixed(np.uint64(numbers[k]) * GOLDEN + np.uint64(1)) + seed
        x = mixed(x * GOLDEN + np.uint64(1)) + purpose
        out[k] = mixed(x * GOLDEN)
    return out


def streams(seed: int, numbers: NDArray[np.int64], purpose: int) -> Streams:
    """(n,): a stream for each of these numbers, for that purpose."""
    found: Streams = _streams(np.uint64(seed % 2**64), np.asarray(numbers, np.int64), np.uint64(purpose))
    return found


@inlined
def uniform(state):
    """The next number in [0, 1), and the stream after it."""
    state += GOLDEN
    return np.float64(mixed(state) >> S11) * UNIT, state


@inlined
def normal(state):
    """The next standard normal number, and the stream after it."""
    while True:
        state += GOLDEN
        drawn = mixed(state)
        layer = np.int64(drawn & LAYER)
        place = np.int64(drawn) >> SIGNED
        x = np.float64(place) * WIDTH[layer]
        if abs(place) < INSIDE[layer]:
            return x, state
        if layer == 0:
            return _tail(state, x, RIGHTMOST)
        height, state = uniform(state)
        if DENSITY[layer] + height * (DENSITY[layer + 1] - DENSITY[layer]) < math.exp(-HALF * x * x):
            return x, state


@inlined
def _tail(state, side, beyond):
    """A normal number that is larger than `beyond`, with the sign of `side` (Marsaglia 1964)."""
    while True:
        first, state = uniform(state)
        second, state = uniform(state)
        x, y = -math.log(ONE - first) / beyond, -math.log(ONE - second)
        if y + y > x * x:
            return math.copysign(beyond + x, side), state


@inlined
def normals(state, quantiles, places, out, lane):
    """Standard normal numbers in the rows `places` (count,) of out (rows, LANES); the stream after them."""
    word = state
    for k in range(len(places)):
        if k % 4 == 0:
            state += GOLDEN
            word = mixed(state)
        cell = word & LAST
        out[places[k], lane] = quantiles[cell]
        if cell in (FIRST_CELL, LAST):
            out[places[k], lane] = _tail(mixed(state + np.uint64(k + 1)), quantiles[cell], OUTERMOST)[0]
        word = word >> BITS
    return state


@inlined
def quantile(v):
    """The normal number below which the share (1 + v) / 2 of them lies, for a vector of cells; and 1 - v^2."""
    y = (WHOLE - v) * (WHOLE + v)
    bits = bits_of(y)
    m = from_bits((bits & MANTISSA) | UNITY)
    w = SHARE * number(bits) + (L0 + m * (L1 + m * (L2 + m * (L3 + m * L4))))
    x = v * (R0 + w * (R1 + w * (R2 + w * (R3 + w * (R4 + w * (R5 + w * (R6 + w * (R7 + w * R8))))))))
    return x, y


@inlined
def normals_of_lanes(states, place, places, out):
    """The same of the sixteen rows states[place], in all lanes; states (blocks, LANES) are advanced."""
    state = states[place, ALL]
    nearest = number(narrowed(state)) * NONE + WHOLE  # to an end of (-1, 1)
    for first in range(0, len(places), 4):
        state = state + GOLDEN
        word = mixed(state)
        part, rest = narrowed(word), narrowed(word >> S32)
        for k in range(first, min(first + 4, len(places))):
            if k == first + 2:
                part = rest
            x, y = quantile(CELL * number(part & SIXTEEN) + EDGE)
            nearest = min(nearest, y)
            out[places[k], ALL] = x
            part = part >> S16
    beyond = flags(nearest < INNER)
    for lane in range(LANES if beyond else 0):
        if beyond >> lane & 1:
            _tails(states[place, lane], places, out, lane)
    states[place, ALL] = state


@inlined
def _tails(state, places, out, lane):
    """Those of `normals` that are beyond the outermost quantiles."""
    word = state
    for k in range(len(places)):
        if k % 4 == 0:
            state += GOLDEN
            word = mixed(state)
        if word & LAST in (FIRST_CELL, LAST):
            out[places[k], lane] = _tail(mixed(state + np.uint64(k + 1)), out[places[k], lane], OUTERMOST)[0]
        word = word >> BITS
