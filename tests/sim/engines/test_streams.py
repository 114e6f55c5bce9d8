"""Random numbers in compiled code: normal and uniform, the same wherever a row stands, unlike in any other row."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engines.vector.blocks import kernel
from sim.engines.vector.simd import LANES
from sim.engines.vector.streams import OUTERMOST, QUANTILES, mixed, normal, normals, normals_of_lanes, streams, uniform


@kernel
def drawn(state, out, gaussian):
    for row in range(len(out)):
        now = state[row]
        for k in range(out.shape[1]):
            if gaussian:
                out[row, k], now = normal(now)
            else:
                out[row, k], now = uniform(now)
        state[row] = now


@kernel
def many(state, quantiles, places, out):
    for row in range(len(out)):
        normals(state[row], quantiles, places, out[row], 0)


@kernel
def side_by_side(states, places, out):
    for place in range(len(states)):
        normals_of_lanes(states, place, places, out[place])


@kernel
def mixed_in_place(values):
    for k in range(len(values)):
        values[k] = mixed(values[k])


def sample(rows, columns, gaussian=True, seed=0, purpose=0):
    out = np.zeros((len(rows), columns))
    drawn(streams(seed, np.asarray(rows), purpose), out, gaussian)
    return out


def together(rows, columns):
    """Normal numbers (rows, columns) of sixteen bits each."""
    out = np.zeros((len(rows), columns, 1), np.float32)
    many(streams(0, np.asarray(rows), 0), QUANTILES, np.arange(columns), out)
    return out[..., 0]


def in_lanes(rows, columns):
    """The same of sixteen rows at once."""
    out = np.zeros((len(rows) // LANES, columns, LANES), np.float32)
    side_by_side(streams(0, np.asarray(rows), 0).reshape(-1, LANES), np.arange(columns), out)
    return out.transpose(0, 2, 1).reshape(-1, columns)


def distance(values, cumulative):
    """The largest one between the empirical distribution and the true one (Kolmogorov and Smirnov)."""
    x = np.sort(values, axis=None)
    steps = np.arange(len(x) + 1) / len(x)
    true = np.array([cumulative(v) for v in x])
    return max((true - steps[:-1]).max(), (steps[1:] - true).max())


def gauss(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@pytest.mark.parametrize(("gaussian", "cumulative"), [(True, gauss), (False, lambda x: x)])
@pytest.mark.parametrize("shape", [(200, 1000), (200_000, 1)])  # along rows, and across them
def test_they_are_distributed_as_they_should(gaussian, cumulative, shape):
    values = sample(range(shape[0]), shape[1], gaussian)
    assert distance(values, cumulative) < 1.95 / math.sqrt(values.size)  # one draw in a thousand is further away


@pytest.mark.parametrize("draw", [together, in_lanes])
@pytest.mark.parametrize("shape", [(208, 1000), (50_000, 4)])
def test_those_of_sixteen_bits_are_normal_too(draw, shape):
    assert distance(draw(range(shape[0]), shape[1]), gauss) < 1.95 / math.sqrt(shape[0] * shape[1])
    assert abs((QUANTILES.astype(float) ** 2).mean() - 1.0) < 1e-4 and np.all(np.diff(QUANTILES) > 0.0)


def test_sixteen_rows_at_once_are_those_rows():
    one, other = together(range(1600), 1001), in_lanes(range(1600), 1001)
    np.testing.assert_allclose(other, one, rtol=2.2e-5)  # quantiles are further apart
    (beyond,) = np.nonzero(np.abs(one.reshape(-1)) > OUTERMOST)
    assert len(beyond) > 10
    np.testing.assert_array_equal(other.reshape(-1)[beyond], one.reshape(-1)[beyond])


@pytest.mark.parametrize("draw", [sample, together, in_lanes])
def test_the_tail_of_normal_numbers_is_there(draw):
    values = np.abs(draw(range(40_000), 100).astype(np.float64))
    beyond = values[values > OUTERMOST]
    assert len(beyond) > 100 and len(set(beyond)) == len(beyond)  # quantiles would repeat
    for limit in (3.0, 3.6541528853610088, 4.2, 4.5):
        wanted = math.erfc(limit / math.sqrt(2.0)) * values.size
        assert abs((values > limit).sum() - wanted) < 4.0 * math.sqrt(wanted)


@pytest.mark.parametrize("draw", [sample, together, in_lanes])
def test_streams_and_their_numbers_do_not_depend_on_each_other(draw):
    values = draw(range(512), 400)
    along, across = (
        np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in ((values[:, 1:], values[:, :-1]), (values[1:], values[:-1]))
    )
    assert max(abs(along), abs(across)) < 0.01
    for apart in (2, 3, 4):  # of one word, and of the next
        assert abs(np.corrcoef(values[:, apart:].ravel(), values[:, :-apart].ravel())[0, 1]) < 0.01
    for other in (sample(range(512), 400, seed=1), sample(range(512), 400, purpose=1)):
        assert abs(np.corrcoef(values.ravel(), other.ravel())[0, 1]) < 0.01


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=8), st.integers(0, 2**63), st.integers(0, 5))
def test_a_stream_is_that_of_its_name_whatever_the_batch(numbers, seed, purpose):
    alone = [streams(seed, np.array([n]), purpose)[0] for n in numbers]
    assert streams(seed, np.array(numbers), purpose).tolist() == alone
    assert len(set(alone)) == len(set(numbers))


def test_mixing_is_that_of_splitmix64():
    """Java's SplittableRandom, seed 0: its first number is the mixed golden gamma."""
    values = np.array([0x9E3779B97F4A7C15], np.uint64)
    mixed_in_place(values)
    assert values[0] == 0xE220A8397B1DCDAF
