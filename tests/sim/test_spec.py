"""Signals and groups: packing, JSON, and errors that name what is wrong."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim import spec
from sim.randomize import Bias, Delay, Dropout, Noise
from sim.spec import Signal

NAMES = st.text("abcdefgh_", min_size=1, max_size=6).filter(str.isidentifier)
LIMITS = st.one_of(
    st.just((-math.inf, math.inf)),
    st.tuples(st.floats(-1e6, 0.0), st.floats(1e-3, 1e6)),
    st.tuples(st.just(-math.inf), st.floats(-1e6, 1e6)),
)


@st.composite
def signals(draw) -> Signal:
    low, high = draw(LIMITS)
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    unit = draw(st.sampled_from(["1", "m", "m/s", "rad/s", "kg m^2"]))
    return Signal(draw(NAMES), shape, unit, draw(st.text(max_size=5)), low, high, draw(st.floats(1e-3, 10.0)))


GROUPS = st.lists(signals(), min_size=1, max_size=5, unique_by=lambda s: s.name).map(tuple)
LEADING = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3).map(tuple)


@st.composite
def groups_with_vectors(draw):
    group = draw(GROUPS)
    shape = (*draw(st.one_of(st.just(()), LEADING)), spec.size(group))
    return group, draw(hnp.arrays(np.float32, shape, elements=st.floats(width=32)))


@given(groups_with_vectors())
def test_pack_is_the_inverse_of_unpack(case):
    group, vector = case
    values = spec.unpack(group, vector)
    assert {name: v.shape for name, v in values.items()} == {s.name: (*vector.shape[:-1], *s.shape) for s in group}
    assert spec.pack(group, values).tobytes() == vector.tobytes()
    again = spec.unpack(group, spec.pack(group, values))
    assert all(again[name].tobytes() == value.tobytes() for name, value in values.items())


@given(groups_with_vectors(), st.randoms())
def test_packing_goes_by_name(case, random):
    group, vector = case
    values = [*spec.unpack(group, vector).items(), ("unrelated", np.zeros(1, np.float32))]
    random.shuffle(values)
    assert spec.pack(group, dict(values)).tobytes() == vector.tobytes()


@given(GROUPS)
def test_slices_cover_the_vector_in_order(group):
    where = list(spec.slices(group).values())
    assert [w.start for w in where] == [0, *[w.stop for w in where[:-1]]]
    assert where[-1].stop == spec.size(group)
    assert all(spec.find(group, s.name) is s for s in group)


@given(GROUPS)
def test_json_is_faithful(group):
    text = json.dumps(spec.to_json(group), allow_nan=False)
    assert spec.from_json(json.loads(text)) == group


def test_imperfections_stay_in_simulation():
    noisy = Signal("position", (3,), "m", imperfections=(Noise(0.1),))
    assert noisy == Signal("position", (3,), "m")
    assert spec.from_json(spec.to_json((noisy,)))[0].imperfections == ()


def test_imperfections_add_up():
    signal = Signal(
        "position",
        (3,),
        imperfections=(
            Noise(3.0),
            Noise(4.0),
            Bias(6.0),
            Bias(8.0),
            Delay(0.01, 0.02),
            Delay(0.0, 0.005),
            Dropout(0.5),
            Dropout(0.2),
        ),
    )
    assert signal.noise_std() == pytest.approx(5.0)
    assert signal.bias_std() == pytest.approx(10.0)
    assert signal.delay_range() == pytest.approx((0.01, 0.025))
    assert signal.dropout_probability() == pytest.approx(0.6)
    bare = Signal("position", (3,))
    assert (bare.noise_std(), bare.delay_range(), bare.dropout_probability()) == (0.0, (0.0, 0.0), 0.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "two words"}, "two words"),
        ({"shape": ()}, "shape"),
        ({"shape": (3, 0)}, "shape"),
        ({"low": 1.0, "high": 1.0}, "low 1.0 must be below high 1.0"),
        ({"high": math.nan}, "must be below"),
        ({"max_age": 0.0}, "max_age"),
    ],
)
def test_impossible_signals_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        Signal(**{"name": "x", "shape": (3,), **arguments})


PAIR = (Signal("a", (2,)), Signal("b", (1,)))


def test_missing_and_misshapen_values_are_named():
    with pytest.raises(KeyError, match=r"missing signal\(s\) b; got a, c"):
        spec.pack(PAIR, {"a": np.zeros(2), "c": np.zeros(1)})
    with pytest.raises(KeyError, match="got none"):
        spec.pack(PAIR, {})
    with pytest.raises(ValueError, match=r"'a': shape \(3,\) does not end in \(2,\)"):
        spec.pack(PAIR, {"a": np.zeros(3), "b": np.zeros(1)})
    with pytest.raises(ValueError, match=r"'b': leading shape \(4,\) differs from \(5,\) of 'a'"):
        spec.pack(PAIR, {"a": np.zeros((5, 2)), "b": np.zeros((4, 1))})
    for wrong in (np.zeros(4), np.array(1.0)):
        with pytest.raises(ValueError, match="has 3 elements"):
            spec.unpack(PAIR, wrong)
    with pytest.raises(ValueError, match="names 'a' twice"):
        spec.slices((PAIR[0], PAIR[0]))
    with pytest.raises(KeyError, match="no signal 'z'; there are: a, b"):
        spec.find(PAIR, "z")
    assert spec.pack((), {}).shape == (0,)


@pytest.mark.parametrize("field", ["name", "shape", "unit", "frame", "low", "high", "max_age_s"])
def test_description_without_a_field_is_refused(field):
    items = spec.to_json(PAIR)
    del items[1][field]
    with pytest.raises(ValueError, match=f"signal 1 of the description lacks the field '{field}'"):
        spec.from_json(items)


@pytest.mark.parametrize("change", [{"shape": None}, {"low": "deep"}, {"max_age_s": -1.0}, {"name": "a"}])
def test_malformed_description_is_refused(change):
    items = spec.to_json(PAIR)
    items[1].update(change)
    with pytest.raises(ValueError):
        spec.from_json(items)


def test_the_dtype_is_declared_and_carried():
    group = (
        Signal("camera", (4, 6, 3), "1", "", 0.0, 255.0, dtype="uint8"),
        Signal("heat", (4, 6, 3), "1", "", 0.0, 255.0),  # as large, but of numbers
        Signal("words", (7,), "1", "", 0, 99, dtype="int64"),
        Signal("speed", (1,), "m/s"),
    )
    assert [s.name for part in (spec.pictures, spec.tokens, spec.numbers) for s in part(group)] == [
        "camera",
        "words",
        "heat",
        "speed",
    ]
    told = spec.to_json(group)
    assert spec.from_json(told) == group
    assert [item.get("dtype") for item in told] == [None, "float32", "int64", None]


def test_files_without_a_dtype_still_say_what_is_a_picture():
    (told,) = spec.to_json((Signal("camera", (4, 6, 3), "1", "", 0.0, 255.0, dtype="uint8"),))
    assert "dtype" not in told
    assert spec.from_json([told])[0].is_picture and not spec.from_json([{**told, "high": 1.0}])[0].is_picture


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "float16"}, "dtype 'float16' is not one of float32, uint8, int64"),
        ({"dtype": "uint8"}, r"uint8 is for pictures, \(height, width, 3\) from 0 to 255, not \(3,\) from 0.0 to 1.0"),
        ({"dtype": "int64", "high": 1.5}, "tokens from 0.0 to 1.5 need whole limits"),
        ({"dtype": "int64", "low": -math.inf}, "tokens from -inf to 1.0 need whole limits"),
    ],
)
def test_a_dtype_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        Signal("x", (3,), **{"low": 0.0, "high": 1.0, **fields})
