"""Short polynomials against the real thing: their stated errors hold, and they are what they approximate."""

import numpy as np

from sim.engines.vector import trigonometry
from sim.engines.vector.blocks import kernel
from sim.engines.vector.simd import ALL, LANES, looked_up_pair, number, whole


@kernel
def exercise(x, sine, cosine, arctan, one, other):
    for row in range(len(x)):
        a = x[row, ALL]
        sine[row, ALL] = trigonometry.sine(a)
        cosine[row, ALL] = trigonometry.cosine(a)
        arctan[row, ALL] = trigonometry.arctan(a)
        one[row, ALL], other[row, ALL] = trigonometry.upper_arctans(abs(a), a * a)


@kernel
def fetched(values, at, out):
    one, other = looked_up_pair(values, whole(at[0, ALL]))
    out[0, ALL], out[1, ALL] = number(one), number(other)


def test_errors_are_what_is_said():
    near = np.linspace(-np.pi, np.pi, 1000 * LANES, dtype=np.float32).reshape(-1, LANES)
    wide = np.sinh(np.linspace(-12.0, 12.0, 1000 * LANES)).astype(np.float32).reshape(-1, LANES)
    for x in (near, wide):
        out = [np.full(x.shape, np.nan, np.float32) for _ in range(5)]
        exercise(x, *out)
        exact = x.astype(np.float64)
        for found, expected in zip(out[2:], (exact, abs(exact), exact**2), strict=True):
            assert np.abs(found - np.arctan(expected)).max() < 2.2e-6
        if x is near:
            assert np.abs(out[0] - np.sin(exact)).max() < 1.2e-6
            assert np.abs(out[1] - np.cos(exact)).max() < 1.2e-6


def test_lanes_look_up_each_their_own_and_the_next_one():
    rng = np.random.default_rng(0)
    values = rng.integers(-(2**15), 2**15, 500).astype(np.int16)
    at = rng.integers(0, 499, (1, LANES))
    at[0, :2] = 0, 498
    out = np.zeros((2, LANES), np.float32)
    fetched(values, at.astype(np.float32) + np.float32(0.9), out)
    np.testing.assert_array_equal(out, [values[at[0]], values[at[0] + 1]])
