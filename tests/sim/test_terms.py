"""Features and costs: what they mean, and that numpy and torch agree."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.engines.vector import rows
from sim.engines.vector.blocks import to_lanes
from sim.engines.vector.tables import bound_table, cost_table, feature_runs
from sim.terms import HISTORY, SHAPES, Bound, Cost, Curriculum, Feature, lost

NUMBERS = st.floats(-1e3, 1e3, width=32)
PAIRS = st.integers(1, 20).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.float32, (n, 9), elements=NUMBERS), hnp.arrays(np.float32, (n, 3), elements=NUMBERS)
    )
)
SCALES = st.floats(-10.0, 10.0, width=32)
SQUASHES = st.one_of(st.none(), st.floats(0.125, 100.0, width=32))


def as_tensors(values: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in values.items()}


@given(PAIRS, st.booleans(), SCALES, SQUASHES)
def test_features_agree_between_numpy_and_torch(pair, difference, scale, squash):
    values = dict(zip(("a", "b"), pair, strict=True))
    feature = Feature("a", "b" if difference else None, scale, squash)
    ours, theirs = feature.evaluate(values), feature.evaluate(as_tensors(values))
    assert ours.shape == values["a"].shape
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


@given(PAIRS, st.sampled_from(SHAPES), st.booleans())
def test_costs_agree_between_numpy_and_torch(pair, shape, difference):
    values = {"a": pair[0], "b": pair[0][::-1].copy()}
    cost = Cost("c", "a", 1.0, shape, "b" if difference and shape != "attitude" else None)
    ours, theirs = cost.evaluate(values), cost.evaluate(as_tensors(values))
    assert ours.shape == values["a"].shape[:1]
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-4)


@given(PAIRS, st.floats(0.125, 10.0))
def test_squash_compresses_but_keeps_sign_and_order(pair, squash):
    x = np.sort(pair[0].astype(np.float64), axis=None)[None]
    y = Feature("a", squash=squash).evaluate({"a": x})
    assert (np.abs(y) <= squash).all()
    assert (np.diff(y) >= 0.0).all()
    assert (np.sign(y) == np.sign(x)).all()
    small = np.array([[1e-4 * squash]])
    np.testing.assert_allclose(Feature("a", squash=squash).evaluate({"a": small}), small, rtol=1e-6)


@given(PAIRS, st.booleans(), SCALES, SQUASHES)
def test_features_from_a_table_mean_the_same(pair, difference, scale, squash):
    values = dict(zip(("a", "b"), pair, strict=True))
    task = (Feature("b"), Feature("a", "b" if difference else None, scale, squash))
    where = {"a": slice(0, 9), "b": slice(9, 12), HISTORY: slice(12, 16)}
    n, table = len(pair[0]), feature_runs((*task, Feature(HISTORY, scale=scale)), where)
    past = np.linspace(-1.0, 1.0, 4 * n, dtype=np.float32).reshape(n, 4)
    found, some = np.zeros((n, 16), np.float32), np.zeros((2, 16), np.float32)
    seen = to_lanes(np.concatenate(pair, axis=1))
    rows.features(*table, seen, past, found)
    rows.features_of(np.array([n - 1, 0]), *table, seen, past, some)
    np.testing.assert_array_equal(some, found[[n - 1, 0]])
    np.testing.assert_allclose(found[:, 12:], np.float32(scale) * past, rtol=1e-6)
    np.testing.assert_array_equal(found[:, :3], values["b"])
    np.testing.assert_allclose(found[:, 3:12], task[1].evaluate(values), rtol=1e-5, atol=1e-5)


@given(PAIRS, st.sampled_from(SHAPES), st.booleans(), st.floats(0.0, 2.0, width=32))
def test_rewards_from_a_table_mean_the_same(pair, shape, difference, offset):
    values = {"a": pair[0], "b": pair[0][::-1].copy()}
    plain = shape == "attitude"
    costs = (
        Cost("c", "a", 0.5, shape, "b" if difference and not plain else None, 0.0 if plain else offset),
        Cost("d", "b", 2.0, softening=0.1),
    )
    n, table = len(pair[0]), cost_table(costs, {"a": slice(0, 9), "b": slice(9, 18)})
    limits = (Bound("a", 900.0), Bound("a", 500.0, "b"))
    bounds = bound_table(limits, {"a": slice(0, 9), "b": slice(9, 18)})
    gone, terms, reward = np.zeros(n, bool), np.zeros((3, n), np.float32), np.zeros(n, np.float32)
    known = np.concatenate([values["a"], values["b"]], axis=1)
    rules = rows.Rules(*bounds, *table, 18, np.float32(7.0), 3)
    ended = rows.judge(rules, to_lanes(known), np.arange(n), rows.Outcome(gone, terms, reward))
    assert ended == (not gone[3:].all())
    for term, cost in zip(terms, costs, strict=False):
        np.testing.assert_allclose(term, cost.evaluate(values), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(gone, lost(limits, values))
    np.testing.assert_array_equal(terms[2], ~gone)
    np.testing.assert_allclose(reward, 7.0 * terms[2] - 0.5 * terms[0] - 2.0 * terms[1], rtol=1e-4, atol=1e-3)


def test_what_is_not_finite_is_lost_and_earns_nothing():
    table = cost_table((Cost("c", "a", 1.0),), {"a": slice(0, 1)})
    values = np.array([[1.0], [np.nan], [np.inf], [2.0]], np.float32)
    bounds = bound_table((), {"a": slice(0, 1)})
    gone, terms, reward = np.zeros(4, bool), np.zeros((2, 4), np.float32), np.zeros(4, np.float32)
    rules = rows.Rules(*bounds, *table, 1, np.float32(1.0), 1)
    rows.judge(rules, to_lanes(values), np.zeros(4, np.int64), rows.Outcome(gone, terms, reward))
    assert gone.tolist() == [False, True, True, False] and reward.tolist() == [0.0, 0.0, 0.0, -3.0]
    with pytest.raises(ValueError, match="uses 'b', which is not there; there are: a"):
        cost_table((Cost("c", "b", 1.0),), {"a": slice(0, 1)})
    with pytest.raises(ValueError, match="a feature of the history has a scale, but no minus and no squash"):
        feature_runs((Feature(HISTORY, squash=1.0),), {HISTORY: slice(0, 1)})


def test_minus_repeats_over_previews():
    preview = np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], np.float32)
    position = np.array([[1.0, 1.0, 1.0]], np.float32)
    values = {"preview": preview, "position": position}
    expected = [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]
    assert Feature("preview", "position").evaluate(values).tolist() == expected
    assert Feature("preview", "position").evaluate(as_tensors(values)).tolist() == expected


def test_shapes_of_cost():
    values = {"x": np.array([[3.0, 4.0], [0.0, 0.0]])}
    assert Cost("c", "x", 1.0).evaluate(values).tolist() == [25.0, 0.0]
    np.testing.assert_allclose(Cost("c", "x", 1.0, "norm").evaluate(values), [np.sqrt(25.01), 0.1])
    np.testing.assert_allclose(Cost("c", "x", 1.0, "log").evaluate(values), [np.log1p(np.sqrt(25.01)), np.log1p(0.1)])
    with pytest.raises(ValueError, match="shape 'cubic' is not one of square, norm, log, attitude"):
        Cost("c", "x", 1.0, "cubic")


@given(st.floats(0.0, np.pi), hnp.arrays(np.float64, 3, elements=st.floats(-1.0, 1.0)))
def test_attitude_cost_is_the_squared_sine_of_half_the_angle(angle, axis):
    length = np.linalg.norm(axis)
    x, y, z = axis / length if length > 1e-3 else np.array([1.0, 0.0, 0.0])
    k = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    rotation = np.eye(3) + np.sin(angle) * k + (1.0 - np.cos(angle)) * k @ k  # Rodrigues
    cost = Cost("c", "rotation", 1.0, "attitude").evaluate({"rotation": rotation.reshape(1, 9)})
    np.testing.assert_allclose(cost, np.sin(angle / 2.0) ** 2, atol=1e-12)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_curriculum_rises_to_its_limit(first, second):
    rising = Curriculum("position", 1.0, 1.5, 1000, 10.0)
    earlier, later = sorted((first, second))
    assert 1.0 <= rising.weight(earlier) <= rising.weight(later) <= 10.0
    assert (rising.weight(999), rising.weight(1000), rising.weight(10**6)) == (1.0, 1.5, 10.0)
