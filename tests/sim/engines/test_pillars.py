"""Pillars in an airspace: surfaces and closest moments by hand, slopes by differences."""

import numpy as np
import pytest

from sim.engines.flight import pillars
from sim.engines.flight.airspace import ABSENT, REACH
from sim.engines.flight.rows import STATE_ROWS
from sim.engines.vector.blocks import from_lanes, to_lanes

EACH = 8
# Two airspaces, of two pillars and one.
STAND = np.array([[[0.0, 0.0, 0.2], [1.0, 0.5, 0.1]], [[0.4, 0.4, 0.3], [0.0, 0.0, 0.0]]], np.float32)


def places() -> np.ndarray:
    state = np.zeros((16, STATE_ROWS))
    state[:, :3] = np.random.default_rng(3).uniform((-0.6, -0.6, 0.5), (1.4, 1.2, 2.0), (16, 3))
    return state


def looked(state: np.ndarray, known: int) -> tuple[np.ndarray, np.ndarray]:
    order, table = np.zeros((16, 2), np.int64), np.zeros((1, 3 * known, 16))
    pillars.look_around(to_lanes(state, np.float64), EACH, STAND, order, 0, known, table)
    return from_lanes(table, 16), order


def test_the_nearest_surface_comes_first() -> None:
    state = places()
    seen, _ = looked(state, 3)
    for row, told in enumerate(seen.reshape(16, 3, 3)):
        there = [one for one in STAND[row // EACH] if one[2] > 0.0]
        ways = [one[:2] - state[row, :2] for one in there]
        gaps = [np.linalg.norm(way) - one[2] for way, one in zip(ways, there, strict=True)]
        for k, nearest in enumerate(np.argsort(gaps)):
            unit = ways[nearest] / np.linalg.norm(ways[nearest])
            np.testing.assert_allclose(told[k], [*gaps[nearest] * unit, 0.0], atol=1e-5)  # away from it, inside
        np.testing.assert_array_equal(told[len(there) :], np.tile(ABSENT, (3 - len(there), 1)))


def test_nobody_is_told_of_pillars_out_of_reach() -> None:
    """Nor of any, who is nowhere; and slopes know it."""
    state, g = places(), np.zeros((1, STATE_ROWS, 16))
    state[0, 0], state[1, 0], state[2, 0] = REACH + 1.4, -REACH, np.nan  # of two: none, one, none
    seen, order = looked(state, 2)
    there = seen.reshape(16, 2, 3)[:, :, 2] == 0.0
    assert there[:4].tolist() == [[False, False], [True, False], [False, False], [True, True]]
    pillars.look_around_adjoint(to_lanes(state, np.float64), EACH, STAND, order, np.ones((16, 6)), g)
    found = from_lanes(g, 16)
    assert np.isfinite(found).all() and not found[[0, 2]].any() and found[[1, 3], 0].all()


def test_the_closest_moment_lies_within_a_step() -> None:
    before, after = np.zeros((16, 2)), np.zeros((16, STATE_ROWS))
    before[0], after[0, :2] = (-1.0, 0.25), (1.0, 0.25)  # past it, 5 cm beside, between two moments
    before[1], after[1, :2] = (-1.0, 0.0), (-0.5, 0.0)
    before[8], after[8, :2] = (3.0, 0.4), (3.0, 0.4)  # at rest, and the other pillar is not there
    gap = np.zeros(16, np.float32)
    pillars.graze(to_lanes(before, np.float64), to_lanes(after, np.float64), EACH, STAND, gap)
    assert gap[[0, 1, 8]] == pytest.approx([0.05, 0.3, 2.3], abs=1e-5)
    pillars.graze(to_lanes(before, np.float64), to_lanes(after, np.float64), EACH, np.zeros_like(STAND), gap)
    assert np.isinf(gap).all()


def test_slopes_agree_with_differences() -> None:
    state, rng = places(), np.random.default_rng(4)
    by_seen = rng.normal(size=(16, 6))

    def worth(values: np.ndarray) -> tuple[float, np.ndarray]:
        """What is seen, weighed, and what it costs to be near; the slopes of both."""
        cost, slopes = np.zeros(16), np.zeros((1, STATE_ROWS, 16))
        lanes = to_lanes(values, np.float64)
        pillars.too_near(lanes, EACH, STAND, 0.8, cost, slopes)
        seen, order = looked(values, 2)
        there = seen != np.tile(ABSENT, 2)  # who is not there depends on nothing
        pillars.look_around_adjoint(lanes, EACH, STAND, order, by_seen, slopes)
        return float(cost.sum() + (by_seen * seen * there).sum()), from_lanes(slopes, 16)

    _, slopes = worth(state)
    assert np.abs(slopes[:, 2:]).max() == 0.0
    for row in range(16):
        for k in range(2):
            high, low = state.copy(), state.copy()
            high[row, k] += 1e-4
            low[row, k] -= 1e-4
            numeric = (worth(high)[0] - worth(low)[0]) / 2e-4
            assert slopes[row, k] == pytest.approx(numeric, rel=2e-2, abs=2e-2)
