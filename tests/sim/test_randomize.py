"""Samplers of what varies: ranges, shapes, modes, determinism; and delays as weights over past commands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.randomize import (
    DISTRIBUTIONS,
    MODES,
    Delay,
    Dropout,
    Vary,
    delay_weights,
    draw_robots,
    redraw,
    sample_parameters,
)

NOMINAL = {"mass": np.array([0.03], np.float32), "inertia": np.array([1.0, 2.0, 4.0], np.float32)}


@given(
    st.sampled_from(MODES),
    st.sampled_from(("uniform", "log_uniform")),
    st.floats(0.1, 2.0),
    st.floats(0.0, 3.0),
    st.booleans(),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_samples_stay_in_their_range(mode, distribution, low, width, independent, n, seed):
    vary = Vary("inertia", low, low + width, mode, distribution, independent)
    nominal = NOMINAL["inertia"]
    value = vary.sample(np.random.default_rng(seed), nominal, n)
    assert (value.shape, value.dtype) == ((n, 3), np.float32)
    assert value.flags.c_contiguous
    drawn = {"scale": value / nominal, "add": value - nominal, "set": value}[mode]
    assert drawn.min() >= low - 1e-5
    assert drawn.max() <= low + width + 1e-5
    if not independent:
        np.testing.assert_allclose(drawn, np.broadcast_to(drawn[:, :1], drawn.shape), rtol=1e-5, atol=1e-6)
    assert (value == vary.sample(np.random.default_rng(seed), nominal, n)).all()


def test_independent_elements_differ():
    value = Vary("inertia", 0.5, 1.5, "set", independent=True).sample(np.random.default_rng(0), NOMINAL["inertia"], 50)
    assert np.unique(value).size == 150


@pytest.mark.parametrize(
    ("distribution", "mean", "spread"),
    [("uniform", 2.5, 3.0 / np.sqrt(12.0)), ("log_uniform", 3.0 / np.log(4.0), 0.847), ("normal", 1.0, 4.0)],
)
def test_distributions_are_what_they_say(distribution, mean, spread):
    vary = Vary("mass", 1.0, 4.0, "set", distribution)
    value = vary.sample(np.random.default_rng(1), NOMINAL["mass"], 200_000)
    assert value.mean() == pytest.approx(mean, abs=0.03)
    assert value.std() == pytest.approx(spread, abs=0.03)


@pytest.mark.parametrize("distribution", ["uniform", "log_uniform"])
def test_a_share_of_the_draws_lies_at_the_ends(distribution):
    plain, ends = (Vary("mass", 0.5, 2.0, distribution=distribution, ends=share) for share in (0.0, 0.4))
    drawn = ends.sample(np.random.default_rng(0), np.ones(1, np.float32), 20_000)
    for end in (0.5, 2.0):
        assert (drawn == np.float32(end)).mean() == pytest.approx(0.2, abs=0.01)
    inside = drawn[(drawn > 0.5) & (drawn < 2.0)]
    spread = plain.sample(np.random.default_rng(0), np.ones(1, np.float32), 20_000)
    assert inside.mean() == pytest.approx(spread.mean(), abs=0.02)


def test_variations_of_one_name_follow_each_other():
    vary = (Vary("mass", 2.0, 2.0), Vary("mass", 0.5, 0.5, "add"))
    drawn = sample_parameters(vary, np.random.default_rng(0), NOMINAL, 4)
    assert drawn.keys() == {"mass"}
    np.testing.assert_allclose(drawn["mass"], np.full((4, 1), 0.56), rtol=1e-6)


def test_nominal_values_may_differ_per_robot():
    nominal = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    assert (Vary("inertia", 2.0, 2.0).sample(np.random.default_rng(0), nominal, 4) == 2.0 * nominal).all()


def test_what_is_drawn_may_count_per_another_parameter():
    nominal = {**NOMINAL, "force": np.zeros(3, np.float32)}
    vary = (Vary("mass", 2.0, 2.0), Vary("force", 5.0, 5.0, "set", per="mass"))
    drawn = sample_parameters(vary, np.random.default_rng(0), nominal, 4)
    np.testing.assert_allclose(drawn["force"], np.full((4, 3), 5.0 * 0.06), rtol=1e-6)


class Twins:
    """A robot whose copies differ in mass."""

    def parameters(self):
        return {**NOMINAL, "force": np.zeros(3, np.float32)}

    def draw(self, rng, n):
        return {"mass": np.linspace(1.0, 2.0, n, dtype=np.float32)[:, None]}


GUSTS = (
    Vary("mass", 0.5, 0.5, every=0.1),
    Vary("force", 1.0, 2.0, "set", per="mass", every=0.3),
    Vary("mass", 3.0, 3.0),
)


def test_a_robot_may_be_a_distribution_that_is_varied_further():
    drawn = draw_robots(Twins(), GUSTS, np.random.default_rng(0), 5)
    np.testing.assert_allclose(drawn.base["mass"][:, 0], 3.0 * np.linspace(1.0, 2.0, 5), rtol=1e-6)
    np.testing.assert_allclose(drawn.parameters["mass"][:, 0], 1.5 * np.linspace(1.0, 2.0, 5), rtol=1e-6)
    share = drawn.parameters["force"] / drawn.parameters["mass"]
    assert 1.0 <= share.min() <= share.max() <= 2.0
    assert drawn.parameters.keys() == {"mass", "force"} == drawn.base.keys()


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20), st.integers(1, 60))
def test_what_repeats_is_drawn_anew_when_due_and_only_then(ages, steps):
    before = np.array(ages)
    base = draw_robots(Twins(), GUSTS, np.random.default_rng(0), len(before)).base
    found = {
        name: (due, value)
        for name, due, value in redraw(GUSTS, np.random.default_rng(1), base, before, before + steps, 0.01)
    }
    for name, period in (("mass", 10), ("force", 30)):
        wanted = [i for i, age in enumerate(ages) if any((age + k) % period == 0 for k in range(1, steps + 1))]
        assert list(found[name][0] if name in found else []) == wanted
    if "mass" in found:
        due, value = found["mass"]
        np.testing.assert_allclose(value, 0.5 * base["mass"][due], rtol=1e-6)  # from the base: changes do not pile up


def test_unknown_parameter_lists_those_of_the_robot():
    with pytest.raises(KeyError, match="'wheelbase', which this robot does not have; it has: inertia, mass"):
        sample_parameters((Vary("wheelbase", 0.9, 1.1),), np.random.default_rng(0), NOMINAL, 2)
    with pytest.raises(KeyError, match="'weight', which this robot does not have"):
        sample_parameters((Vary("mass", 0.9, 1.1, per="weight"),), np.random.default_rng(0), NOMINAL, 2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Vary("mass", 0.9, 1.1, mode="times"), "'times' is not one of scale, add, set"),
        (lambda: Vary("mass", 0.9, 1.1, distribution="poisson"), f"not one of {', '.join(DISTRIBUTIONS)}"),
        (lambda: Vary("mass", 0.0, 1.1, distribution="log_uniform"), "log_uniform needs low > 0, got 0.0"),
        (lambda: Vary("mass", 0.9, 1.1, ends=1.5), "ends is a share of a bounded range, 0..1, got 1.5"),
        (lambda: Vary("mass", 0.9, 1.1, distribution="normal", ends=0.1), "ends is a share of a bounded range"),
        (lambda: Delay(0.02, 0.01), "0 <= low <= high"),
        (lambda: Delay(-0.01, 0.01), "0 <= low <= high"),
        (lambda: Dropout(1.0), r"\[0, 1\), got 1.0"),
        (lambda: Dropout(-0.1), "got -0.1"),
    ],
)
def test_impossible_declarations_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@given(st.integers(2, 6).flatmap(lambda t: st.tuples(st.just(t), st.lists(st.floats(0.0, t - 1.0), max_size=8))))
def test_delay_weights_blend_two_neighbours_to_the_delay(case):
    taps, delays = case
    weights = delay_weights(np.array(delays), taps)
    assert weights.shape == (len(delays), taps)
    assert (weights >= 0.0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(weights @ np.arange(taps), delays, atol=1e-5)
    assert ((weights > 0.0).sum(axis=1) <= 2).all()


def test_delay_beyond_the_stored_commands_is_refused():
    with pytest.raises(ValueError, match="a delay of 3.50 control steps needs more than 4 stored commands"):
        delay_weights(np.array([0.0, 3.5]), 4)
