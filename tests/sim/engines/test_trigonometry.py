"""Short polynomials against the real thing: their stated errors hold, and they are what they approximate."""

import numpy as np
import pytest

from sim.engines.vector import trigonometry
from sim.engines.vector.blocks import kernel
from sim.engines.vector.simd import ALL, LANES, looked_up, number, whole


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
    out[0, ALL] = number(looked_up(values, whole(at[0, ALL])))


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


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.int32])
def test_lanes_look_up_each_their_own(dtype):
    rng = np.random.default_rng(0)
    values = rng.integers(-1000, 1000, 500).astype(dtype)
    at = rng.integers(0, 500, (1, LANES))
    out = np.zeros((1, LANES), np.float32)
    fetched(values, at.astype(np.float32) + np.float32(0.9), out)
    np.testing.assert_array_equal(out[0], values[at[0]])
