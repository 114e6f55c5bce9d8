"""The generated C, compiled for this machine, against onnxruntime."""

import ctypes
import itertools
import re
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from deploy import cli, export
from deploy.codegen import onnx_graph, toolchain
from deploy.codegen.elementwise import number
from deploy.codegen.onnx_graph import GraphError
from deploy.codegen.operators import SUPPORTED
from deploy.codegen.source import FIRMWARE, generate
from deploy.codegen.weights import FORMATS, pack, padded
from deploy.policy_file import PolicyFile
from policies.models.export import random_signals
from tests.deploy.codegen.exact import exact
from tests.deploy.codegen.graph_policy import one_node, policy_of
from tests.deploy.codegen.native import Native
from tests.deploy.sample_policy import exported, random_gru, random_mlp, resealed, small

F = np.float32
NETWORKS = {
    "mlp": lambda rng, i, o, a, b: random_mlp(rng, i, o, hidden=(a, b), activation="tanh"),
    "relu": lambda rng, i, o, a, b: random_mlp(rng, i, o, hidden=(a,), activation="relu"),
    "gru": lambda rng, i, o, a, b: random_gru(rng, i, o, width=a, hidden=b),
}


@settings(max_examples=12)
@given(
    kind=st.sampled_from(sorted(NETWORKS)),
    sizes=st.tuples(st.integers(1, 21), st.integers(1, 21)),
    history=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_the_c_of_any_network_commands_what_onnxruntime_commands(tmp_path_factory, kind, sizes, history, seed):
    path = tmp_path_factory.mktemp("c") / "p.onnx"
    controller = small(lambda rng, i, o: NETWORKS[kind](rng, i, o, *sizes), seed=seed, history=history)
    policy = exported(path, controller)
    native = Native(path)
    assert native.selftest < 0.1
    signals = random_signals(policy.inputs, 40, np.random.default_rng(seed))
    native.reset()
    for step in range(40):
        now = {name: value[step] for name, value in signals.items()}
        want, got = policy.step(now), native.step(now)
        for signal in policy.outputs:
            assert np.abs(got[signal.name] - want[signal.name]).max() <= 1e-6 * (signal.high - signal.low)
        for name, value in policy.states().items():
            np.testing.assert_allclose(native.state[name], value[0], rtol=0, atol=3e-6)
            native.state[name][:] = value[0]


def test_a_signal_with_the_name_of_a_keyword_is_refused(tmp_path):
    node = helper.make_node("Neg", ["double"], ["y"])
    with pytest.raises(GraphError, match="'double' cannot be the name of a member in C"):
        generate(str(policy_of(tmp_path / "p.onnx", [node], {"double": (2,)}, {"y": (2,)})))


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("sample") / "p.onnx"
    exported(path, small(random_gru))
    return path, Native(path)


@pytest.mark.parametrize(("weights", "closeness"), [("float16", 1e-6), ("int8", 3e-5), ("w8a8", 3e-5)])
def test_stored_weights_are_what_rounding_them_makes(sample, weights, closeness):
    """The inputs of int8 products are rounded: one that is rounded the other way changes this much."""
    path, _ = sample
    native = Native(path, weights=weights)
    policy, read, form = native.policy, onnx_graph.read(path.read_bytes(), SUPPORTED), FORMATS[weights]
    assert native.selftest < 0.5
    changes = 0.0
    for step in range(policy.vectors.steps):
        now = {name: value[step].astype(F) for name, value in policy.vectors.inputs.items()}
        feeds = {name: value[None] for name, value in now.items()}
        feeds |= {f"state.{name}": value[None].copy() for name, value in native.state.items()}
        want, got = onnx_graph.run(form.plan(read), feeds, form.stored), native.step(now)
        exact = onnx_graph.run(read, feeds)
        for signal in policy.outputs:
            span = signal.high - signal.low
            assert np.abs(got[signal.name] - want[signal.name][0]).max() < closeness * span
            changes = max(changes, np.abs(want[signal.name] - exact[signal.name]).max() / span)
    assert changes > 10.0 * closeness


@pytest.mark.parametrize("inputs", [1, 2, 3, 5, 8, 33, 512, 513, 700, 1030])
def test_int8_products_of_any_length_add_up_exactly(tmp_path, inputs):
    """Whole numbers that fit stay what they are, also where sums would overflow 32 bits if inputs kept 16."""
    weights, rng = "int8", np.random.default_rng(inputs)
    weight = rng.integers(-127, 128, (inputs, 5)).astype(F)
    weight[0] = 127.0
    constants = {"w": weight / F(127.0), "b": F([0.5] * 5)}
    node = one_node("Gemm", "w", "b", constants=constants, shape=(inputs,), result=(5,))
    native = Native(policy_of(tmp_path / "p.onnx", **node), weights=weights)
    for signs in (np.ones(inputs), rng.choice([-1.0, 0.0, 1.0], inputs), np.zeros(inputs)):
        exact = signs @ weight.astype(float) / 127.0 + 0.5
        np.testing.assert_allclose(native.step({"x": signs.astype(F)})["y"], exact, rtol=1e-6, atol=1e-6)


def test_a_weight_too_large_for_float16_is_refused(tmp_path):
    path = policy_of(
        tmp_path / "p.onnx", **one_node("MatMul", "c", constants={"c": F([[1e6]])}, shape=(1,), result=(1,))
    )
    with pytest.raises(GraphError, match=r"'the_node'\) has a weight of 1e\+06, too large for float16"):
        generate(str(path), "float16")


@given(data=st.data(), bad=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_signals_that_are_not_finite_change_nothing(sample, data, bad):
    _, native = sample
    policy = native.policy
    signals = {name: value[0].copy() for name, value in policy.vectors.inputs.items()}
    native.reset()
    assert native.step(signals)
    before = {name: value.copy() for name, value in native.state.items()}
    name = data.draw(st.sampled_from(sorted(signals)))
    broken = {**signals, name: signals[name].copy()}
    broken[name][data.draw(st.integers(0, broken[name].size - 1))] = bad
    assert native.step(broken) is None
    for state, value in native.state.items():
        np.testing.assert_array_equal(value, before[state])
    assert native.step(signals)


def test_an_overflow_inside_is_refused_too(tmp_path):
    native = Native(policy_of(tmp_path / "p.onnx", **one_node("Mul", "x")))
    assert native.step({"x": np.full(6, 1e30, F)}) is None


def test_two_robots_share_one_library_and_no_state(sample):
    path, first = sample
    second = Native(path)
    second.library = first.library
    signals = [{n: v[k] for n, v in first.policy.vectors.inputs.items()} for k in range(16)]
    first.reset(), second.reset()
    alone = [first.step(s)["left"] for s in signals]
    first.reset()
    for k, now in enumerate(signals):
        np.testing.assert_array_equal(first.step(now)["left"], alone[k])
        second.step(signals[-k])


def compile_against(folder, path, program):
    for name, text in generate(str(path)).items():
        (folder / name).write_text(text)
    (folder / "main.c").write_text('#include "policy.h"\n' + program)
    _, command = toolchain.choose("auto", "cc")
    return subprocess.run(
        [*command, *toolchain.FLAGS, "-c", str(folder / "main.c"), "-o", str(folder / "main.o")],
        capture_output=True,
        text=True,
    )


FILL = """
static void read_near(float *x) { *x = 0.0f; }
static void read_goal(float *x) { *x = 0.0f; }
static void read_rate(float *x) { *x = 0.0f; }
#define FILL(name, size, type, age) read_##name(signals->name);
void fill(policy_signals *signals);
void fill(policy_signals *signals) { POLICY_SIGNALS(FILL) }
"""


def test_a_program_that_lacks_a_signal_does_not_compile(sample, tmp_path):
    path, _ = sample
    assert compile_against(tmp_path, path, FILL).returncode == 0
    missing = compile_against(tmp_path, path, FILL.replace("read_goal", "read_gaol"))
    assert missing.returncode != 0 and "read_goal" in missing.stderr
    unknown = compile_against(
        tmp_path, path, "float f(policy_signals *s);\nfloat f(policy_signals *s) { return s->speed[0]; }"
    )
    assert unknown.returncode != 0 and "speed" in unknown.stderr


def test_the_headers_are_c_plus_plus_too(sample, tmp_path):
    path, _ = sample
    (tmp_path / "policy.h").write_text(generate(str(path))["policy.h"])
    (tmp_path / "main.cpp").write_text('#include "policy.h"\nfloat f(policy_signals &s) { return s.goal[0]; }')
    _, command = toolchain.choose("auto", "cc")
    flags = ["-x", "c++", "-nostdinc++", "-Wall", "-Wextra", "-Werror", "-c"]
    subprocess.run([*command, *flags, str(tmp_path / "main.cpp"), "-o", str(tmp_path / "main.o")], check=True)


@pytest.mark.parametrize("damage", ["weights_1[", "weights_0["])
def test_a_build_with_a_changed_weight_fails_its_self_test(sample, tmp_path, damage):
    path, _ = sample
    files = generate(str(path))
    head, _, rest = files["policy.c"].partition(f"static const float {damage}")
    declared, _, numbers = rest.partition("{\n")
    first, _, others = numbers.partition(",")
    files["policy.c"] = f"{head}static const float {damage}{declared}{{\n{first} + 0.5f,{others}"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    library = ctypes.CDLL(str(toolchain.host_library(tmp_path)))
    library.policy_selftest.restype = ctypes.c_float
    library.policy_init.restype = ctypes.c_bool
    state = (ctypes.c_float * 64)()
    assert library.policy_selftest(state) > 1.0
    assert not library.policy_init(state)


def test_a_command_that_may_be_a_million_still_has_a_self_test(sample, tmp_path):
    policy = PolicyFile.load(sample[0])
    wide = [{**told, "low": -1e6, "high": 1e6} for told in policy.metadata["outputs"]]
    path = resealed(policy, tmp_path / "wide.onnx", outputs=wide)
    made = PolicyFile.load(path)
    largest = max(np.abs(made.vectors.outputs[s.name]).max() for s in made.outputs)
    written = generate(str(path))["policy.c"]
    tolerated = [float(found) for found in re.findall(r"step\]\.\w+\[i\], ([\d.e+-]+)f\);", written)]
    assert len(tolerated) == len(made.outputs)
    assert max(tolerated) <= made.vectors.tolerance * 100.0 * max(1.0, largest) * 1.0001


MATH = """
#include "policy_math.h"
void run(int which, const float *x, float *y, int n);
void run(int which, const float *x, float *y, int n) {
    if (which == 3) policy_tanh_all(y, x, n);
    for (int i = 0; i < n && which != 3; ++i)
        y[i] = which == 0 ? policy_tanh(x[i]) : which == 1 ? policy_exp(x[i]) : which == 2 ? policy_sqrt(x[i])
            : which == 4 ? policy_sigmoid(x[i]) : which == 6 ? policy_half((uint32_t)x[i])
            : (float)(policy_broken(x + i, 1) != 0);
}
"""


@pytest.fixture(scope="module", params=[(), ("-U__SSE2__", "-U__aarch64__")], ids=["machine", "plain"])
def arithmetic(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("math")
    (folder / "policy.c").write_text(MATH)
    library = ctypes.CDLL(str(toolchain.host_library(folder, flags=[f"-I{FIRMWARE}", *request.param])))

    def run(which, x):
        x = np.ascontiguousarray(x, np.float32)
        y = np.empty_like(x)
        pointer = ctypes.POINTER(ctypes.c_float)
        library.run(which, x.ctypes.data_as(pointer), y.ctypes.data_as(pointer), x.size)
        return y

    return run


def test_tanh_is_accurate_odd_and_limited(arithmetic):
    x = np.concatenate([np.linspace(-25, 25, 400_001), np.geomspace(1e-30, 3e38, 100_000), [0.0, np.inf]]).astype(F)
    y = arithmetic(0, x)
    assert np.abs(y - np.tanh(x.astype(float))).max() < 1.1e-7
    assert np.sqrt(np.square(y - np.tanh(x.astype(float)))[np.abs(x) < 3].mean()) < 2.3e-8
    np.testing.assert_array_equal(arithmetic(0, -x), -y)
    np.testing.assert_array_equal(arithmetic(3, x), y)
    assert (np.abs(y) <= 1.0).all() and y[-1] == 1.0
    assert np.isnan(arithmetic(0, [np.nan, -np.nan])).all()


def test_exponential_sigmoid_and_root(arithmetic):
    x = np.linspace(-80, 80, 100_001).astype(F)
    exact = np.exp(x.astype(float))
    assert (np.abs(arithmetic(1, x) - exact) / exact).max() < 1e-5  # the argument's rounding grows with it
    assert np.abs(arithmetic(4, x) - 1.0 / (1.0 + np.exp(-x.astype(float)))).max() < 1.3e-7
    positive = np.concatenate([[0.0], np.geomspace(1e-30, 1e30, 100_001)]).astype(F)
    np.testing.assert_allclose(arithmetic(2, positive), np.sqrt(positive), rtol=1.5e-7)


def test_every_float16_is_read_exactly(arithmetic):
    bits = np.arange(65536, dtype=np.uint16)
    bits = bits[np.isfinite(bits.view(np.float16))]
    np.testing.assert_array_equal(arithmetic(6, bits), bits.view(np.float16).astype(F))


def test_finite_numbers_are_told_from_others_by_their_bits(arithmetic):
    x = np.array([0.0, -0.0, 1e-45, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, -np.nan], F)
    np.testing.assert_array_equal(arithmetic(5, x), ~np.isfinite(x))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_constants_read_back_exactly(value):
    text = number(value)
    assert text.endswith("f") and F(text[:-1]) == F(value)


@given(inputs=st.integers(1, 9), outputs=st.integers(1, 30))
def test_packed_weights_hold_every_weight_once(inputs, outputs):
    weight = np.arange(1, inputs * outputs + 1, dtype=F).reshape(outputs, inputs)
    bias = -np.arange(1, outputs + 1, dtype=F)
    packed = pack(None, weight, bias)
    assert len(packed) == (inputs + 1) * padded(outputs)
    assert outputs <= padded(outputs) < outputs + 4 or padded(outputs) % 8 == 0
    assert sorted(packed[packed != 0]) == sorted([*weight.ravel(), *bias])


def test_the_command_writes_three_files(sample, tmp_path, capsys):
    path, _ = sample
    assert cli.call(export.main, [f"policy={path}", "target=c", f"out={tmp_path / 'c'}"]) == 0
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["policy.c", "policy.h", "policy_math.h"]
    assert capsys.readouterr().out.count("wrote ") == 3


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "target=stm32",
            "unknown target 'stm32'; choices: c, stm32f405, nrf52840, rp2350, rp2040, teensy41, esp32c3, crazyflie",
        ),
        ("policy=nothing.onnx", "there is no file 'nothing.onnx'"),
        ("weights=int4", "unknown weights 'int4'; choices: float32, float16, int8, w8a8"),
        ("compiler=icc", "unknown compiler 'icc'; choices: auto, zig, gcc"),
    ],
)
def test_mistakes_get_one_short_line(sample, tmp_path, capsys, argument, message):
    path, _ = sample
    given = {"policy": f"policy={path}", "target": "target=stm32f405", "out": f"out={tmp_path}"}
    given[argument.partition("=")[0]] = argument
    assert cli.call(export.main, list(given.values())) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_compiler_that_refuses_says_why(tmp_path):
    (tmp_path / "policy.c").write_text("int f(void) { return nothing; }")
    with pytest.raises(toolchain.ToolchainError, match="nothing"):
        toolchain.host_library(tmp_path)


@pytest.mark.parametrize("network", [random_gru, lambda rng, i, o: random_mlp(rng, i, o, hidden=(64, 64))])
def test_the_c_is_as_exact_as_onnxruntime(tmp_path, network):
    """Against the same graph in float64: what remains is the rounding of float32, in both."""
    path = tmp_path / "p.onnx"
    policy = exported(path, small(network))
    native, run = Native(path), exact(path)
    signals = random_signals(policy.inputs, 200, np.random.default_rng(3))
    errors = {"onnxruntime": 0.0, "c": 0.0, "between": 0.0}
    native.reset()
    for step in range(200):
        now = {name: value[step] for name, value in signals.items()}
        want, got = run(now, policy.states()), native.step(now)
        reference = policy.step(now)
        for name, value in policy.states().items():
            native.state[name][:] = value[0]
        pairs = {"onnxruntime": (reference, want), "c": (got, want), "between": (got, reference)}
        for signal, (who, (one, other)) in itertools.product(policy.outputs, pairs.items()):
            error = np.abs(one[signal.name] - np.asarray(other[signal.name], float)).max() / (signal.high - signal.low)
            errors[who] = max(errors[who], float(error))
    assert errors["c"] < 1.5 * errors["onnxruntime"] + 1e-8
    assert errors["between"] <= 2e-7
