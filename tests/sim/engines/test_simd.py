"""The vector type against numpy, element by element."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.engines.vector.blocks import from_lanes, kernel, to_lanes
from sim.engines.vector.simd import ALL, LANES, select, total

ROWS = 16
TWO = np.float32(2.0)


@kernel
def exercise(x, y, out, lane):
    """Every operation on the rows x[0] and y[0]."""
    a, b = x[0, lane], y[0, lane]
    out[0, lane] = a + b
    out[1, lane] = a - b
    out[2, lane] = a * b
    out[3, lane] = a / b
    out[4, lane] = min(a, b)
    out[5, lane] = max(a, b)
    out[6, lane] = abs(a)
    out[7, lane] = math.sqrt(abs(a))
    out[8, lane] = select(a > b, a, b)
    out[9, lane] = select(a < b, a, TWO)
    out[10, lane] = select(a <= b, TWO, b)
    out[11, lane] = -a
    out[12, lane] = TWO * a + TWO
    out[13, lane] += a
    out[14, lane] = TWO - a
    out[15, lane] = TWO / b


@kernel
def added_up(x):
    return total(x[0, ALL])


def expected(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    two = np.float32(2.0)
    rows = [a + b, a - b, a * b, a / b, np.minimum(a, b), np.maximum(a, b), abs(a), np.sqrt(abs(a)), np.maximum(a, b)]
    rows += [np.where(a < b, a, two), np.where(a <= b, two, b), -a, two * a + two, a, two - a, two / b]
    return np.stack(rows)


def vectors(least: float) -> st.SearchStrategy[np.ndarray]:
    magnitude = st.floats(least, 1e3, width=32)
    return hnp.arrays(np.float32, LANES, elements=st.builds(math.copysign, magnitude, st.sampled_from([-1.0, 1.0])))


@settings(max_examples=50, deadline=None)
@given(a=vectors(0.0), b=vectors(0.0625))
def test_operations_agree_with_numpy_on_all_lanes_and_on_one(a: np.ndarray, b: np.ndarray) -> None:
    x, y = np.tile(a, (2, 1)), np.tile(b, (2, 1))
    out = np.zeros((ROWS, LANES), np.float32)
    exercise(x, y, out, ALL)
    np.testing.assert_allclose(out, expected(a, b), rtol=1e-6, atol=1e-6)
    single = np.zeros_like(out)
    for lane in range(LANES):
        exercise(x, y, single, lane)
    np.testing.assert_allclose(single, out, rtol=1e-6, atol=1e-6)
    assert added_up(x) == np.float32(a.sum()) or math.isclose(added_up(x), a.astype(np.float64).sum(), abs_tol=1e-2)


def test_nan_is_not_hidden() -> None:
    x, y = np.ones((2, LANES), np.float32), np.ones((2, LANES), np.float32)
    x[0, 5] = np.nan
    out = np.zeros((ROWS, LANES), np.float32)
    exercise(x, y, out, ALL)
    assert np.isnan(out[[0, 1, 2, 3, 6, 7, 11, 12, 13, 14]][:, 5]).all()
    assert np.isfinite(np.delete(out, 5, axis=1)).all()


@given(st.integers(1, 40), st.integers(1, 5))
def test_lanes_and_back_is_a_copy(n, columns):
    values = np.arange(n * columns, dtype=np.float32).reshape(n, columns)
    lanes = to_lanes(values)
    back = from_lanes(lanes, n)
    lanes[:] = -1.0
    np.testing.assert_array_equal(back, values)
