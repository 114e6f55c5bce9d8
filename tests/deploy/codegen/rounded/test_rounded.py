"""Products of whole numbers: weights as halves of words, how large inputs may be, and a tanh that rounds by a table."""

import ctypes
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from deploy.codegen import onnx_graph, toolchain
from deploy.codegen.operators import SUPPORTED
from deploy.codegen.rounded import halves, tanh
from deploy.codegen.rounded.plan import FAST
from deploy.codegen.rounded.steps import scale_of
from deploy.codegen.source import FIRMWARE, generate
from deploy.codegen.weights import FORMATS
from tests.deploy.codegen.graph_policy import one_node, policy_of
from tests.deploy.codegen.native import Native

F = np.float32
R = np.random.default_rng(0)
ONES = (127, 300, 961, 4096, tanh.LARGEST)
MATH = """
#include "policy_math.h"
void run(const float *x, uint32_t *y, int quads, const uint32_t *table, int32_t factor);
void run(const float *x, uint32_t *y, int quads, const uint32_t *table, int32_t factor) {
    policy_tanh_rounded(y, x, quads, table, factor);
}
"""
X = np.concatenate([np.linspace(-9, 9, 100_001), np.geomspace(1e-30, 3e38, 1001), [0.0, np.inf, np.nan]]).astype(F)


@given(rows=st.integers(1, 9), inputs=st.integers(1, 40), seed=st.integers(0, 999), whole=st.booleans())
def test_a_weight_is_off_by_half_a_step_at_most(rows, inputs, seed, whole):
    rng = np.random.default_rng(seed)
    weight = rng.integers(-1, 2, (rows, inputs)).astype(F) if whole else rng.normal(size=(rows, inputs)).astype(F)
    made = halves.bytes_of(weight)
    steps = weight / scale_of(weight)[:, None]
    assert np.abs(halves.weights_of(made)[:, :inputs] / 256.0 - steps).max() <= 0.5 + 1e-4
    words = made.copy().view("<u4")  # as SMLAD sees them
    want = np.stack([(words << 8).view("<i2"), words.view("<i2")], axis=-1).reshape(rows, -1, 2, 2).reshape(rows, -1)
    np.testing.assert_array_equal(halves.weights_of(made), want)


@pytest.mark.parametrize("inputs", [4, 64, 512, 1030])
@pytest.mark.parametrize("alike", [True, False])
def test_sums_fit_32_bits_and_use_them(inputs, alike):
    weight = np.ones((3, inputs), F) if alike else R.normal(size=(3, inputs)).astype(F)
    most, whole = halves.limit(weight), halves.weights_of(halves.bytes_of(weight))
    largest = np.abs(whole).sum(axis=1).max()
    assert most * largest < 2**31
    assert most == 2**15 - 1 or (most + 1) * largest >= 2**31


@pytest.mark.parametrize("inputs", [1, 2, 3, 5, 8, 33, 64, 512, 513, 700, 1030])
@pytest.mark.parametrize("alike", [True, False])
def test_products_of_any_length_add_up_exactly(tmp_path, inputs, alike):
    """Inputs of one size are whole numbers without an error. Where fewer than 8 bits would be left, it is as int8."""
    weight = np.ones((inputs, 5), F) if alike else R.normal(size=(inputs, 5)).astype(F)
    node = one_node("Gemm", "w", "b", constants={"w": weight, "b": F([0.5] * 5)}, shape=(inputs,), result=(5,))
    path = policy_of(tmp_path / "p.onnx", **node)
    native = Native(path, weights="w8a8")
    fast = "policy_dense_w8a8" in generate(str(path), "w8a8")["policy.c"]
    assert fast == (halves.limit(weight.T) >= 127)
    stored = halves.weights_of(halves.bytes_of(weight.T))[:, :inputs] * (scale_of(weight.T)[:, None] / 256.0)
    if not fast:
        scale = scale_of(weight.T)[:, None]
        stored = np.rint(weight.T / scale) * scale
    for signs in (np.ones(inputs), R.choice([-1.0, 1.0], inputs), np.zeros(inputs)):
        exact = stored.astype(float) @ signs + 0.5
        np.testing.assert_allclose(native.step({"x": signs.astype(F)})["y"], exact, rtol=1e-6, atol=2e-5)


@pytest.mark.parametrize("flags", [(), ("-DPOLICY_PLAIN_C",), ("-ffast-math",)])
def test_the_table_of_tanh_in_c_is_that_in_python(tmp_path, flags):
    (tmp_path / "policy.c").write_text(MATH)
    library = ctypes.CDLL(str(toolchain.host_library(tmp_path, flags=[f"-I{FIRMWARE}", *flags])))
    x = np.concatenate([X, -X])
    x = np.ascontiguousarray(np.pad(x, (0, -len(x) % 4)))
    for one in ONES:
        made = np.zeros(len(x) // 2, np.uint32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, made, tanh.table())]
        library.run(*pointers[:2], len(x) // 4, pointers[2], tanh.factor(one))
        ordered = made.view("<i2").reshape(-1, 4)[:, [0, 2, 1, 3]].ravel()
        np.testing.assert_array_equal(ordered, tanh.whole(x, one))


@pytest.mark.parametrize("one", ONES)
def test_it_is_near_tanh_and_never_jumps(one):
    x = X[np.isfinite(X)]
    whole = tanh.whole(x, one)
    assert np.abs(whole / one - np.tanh(x.astype(float))).max() <= tanh.WORST + 0.51 / one
    assert np.abs(tanh.whole(-x, one) + whole).max() <= 1
    line = np.diff(tanh.whole(np.linspace(-9, 9, 200_001), one))
    assert line.min() >= 0 and line.max() <= 2
    np.testing.assert_array_equal(tanh.whole(F([np.inf, -np.inf, np.nan]), one), [one, -one, 0])


def layers(path, *nodes, scale=1.0, outputs=None, sizes=(6, 9, 7, 3)):
    """x -> a -> tanh b -> c -> tanh d -> y, with further nodes."""
    shapes = dict(zip(("w0", "w1", "w2"), itertools.pairwise(sizes), strict=True))
    constants = {name: R.normal(size=shape).astype(F) for name, shape in shapes.items()} | {"scale": F(scale)}
    made = [helper.make_node("Mul", ["x", "scale"], ["x1"])]
    for source, weight, to in (("x1", "w0", "a"), ("b", "w1", "c"), ("d", "w2", "y")):
        made.append(helper.make_node("Gemm", [source, weight], [to]))
        if to != "y":
            made.append(helper.make_node("Tanh", [to], [chr(ord(to) + 1)]))
    return policy_of(path, [*made, *nodes], {"x": sizes[:1]}, {"y": sizes[-1:], **(outputs or {})}, constants)


def rounding(path):
    return generate(str(path), "w8a8")["policy.c"].count("policy_tanh_rounded(quantised")


def test_a_tanh_between_products_rounds_for_the_next(tmp_path):
    assert rounding(layers(tmp_path / "p.onnx")) == 2


@pytest.mark.parametrize(
    ("node", "outputs", "left"),
    [
        (helper.make_node("Neg", ["b"], ["z"]), {"z": (9,)}, 1),
        (helper.make_node("Neg", ["c"], ["z"]), {"z": (7,)}, 1),
        (helper.make_node("Gemm", ["b", "w1"], ["z"]), {"z": (7,)}, 2),  # two products may read one
    ],
)
def test_one_that_others_see_too_stays_a_number(tmp_path, node, outputs, left):
    assert rounding(layers(tmp_path / "p.onnx", node, outputs=outputs)) == left


def test_the_chosen_numbers_are_what_the_c_computes(tmp_path):
    """All is rounded alike: what remains is float32, by which a number is rounded the other way now and then."""
    path = layers(tmp_path / "p.onnx", sizes=(22, 64, 61, 4))
    native = Native(path, weights="w8a8")
    form = FORMATS["w8a8"]
    graph = form.plan(onnx_graph.read(path.read_bytes(), SUPPORTED))
    assert [node.attributes[FAST] for node in graph.nodes if FAST in node.attributes] == [True, True, False]
    apart = []
    for x in R.normal(size=(50, 22)).astype(F):
        want = onnx_graph.run(graph, {"x": x[None]}, form.stored)["y"][0]
        apart.append(np.abs(native.step({"x": x})["y"] - want).max() / np.abs(want).max())
    assert np.median(apart) < 1e-6 and max(apart) < 2e-4


def test_what_becomes_infinite_inside_is_refused(tmp_path):
    native = Native(layers(tmp_path / "p.onnx", scale=1e30), weights="w8a8")
    assert native.step({"x": np.full(6, 1e9, F)}) is None
    assert native.step({"x": np.ones(6, F)}) is not None
