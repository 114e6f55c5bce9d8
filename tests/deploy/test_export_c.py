"""The generated C, compiled for this machine, against onnxruntime."""

import ctypes
import itertools
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from deploy import arguments, export, graph, toolchain
from deploy.c_operators import DENSE, SUPPORTED, number, pack, padded
from deploy.c_source import FIRMWARE, generate
from deploy.graph import GraphError
from deploy.native import Native
from policies.export import random_signals
from tests.deploy.exact import exact
from tests.deploy.graph_policy import policy_of
from tests.deploy.sample_policy import exported, random_gru, random_mlp, small

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


def one_node(operator, *inputs, constants=None, shape=(6,), result=(6,), **attributes):
    """A graph of one operator between the signal x and the command y."""
    return {
        "nodes": [helper.make_node(operator, ["x", *inputs], ["y"], name="the_node", **attributes)],
        "inputs": {"x": shape},
        "outputs": {"y": result},
        "constants": constants,
    }


def after_square(operator, **options):
    """The same, of x * x: for operators that want positive numbers."""
    made = one_node(operator, **options)
    made["nodes"][0].input[0] = "xx"
    made["nodes"].insert(0, helper.make_node("Mul", ["x", "x"], ["xx"]))
    return made


F, R = np.float32, np.random.default_rng(5)
IMAGE = {"shape": (3, 9, 8)}
GRAPHS = {
    **{name: one_node(name) for name in ("Abs", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu")},
    **{name: one_node(name) for name in ("Mish", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Tanh")},
    **{name: one_node(name, "c", constants={"c": R.normal(size=6).astype(F)}) for name in ("Add", "Sub", "Mul", "Div")},
    **{name: one_node(name, "c", constants={"c": F(0.3)}) for name in ("Max", "Min")},
    "Sqrt": after_square("Sqrt"),
    "Pow": one_node("Pow", "c", constants={"c": F(2)}),
    "Clip": one_node("Clip", "low", "high", constants={"low": F(-0.5), "high": F(0.7)}),
    "Clip above": one_node("Clip", "", "high", constants={"high": F(0.7)}),
    "broadcast": one_node("Mul", "c", constants={"c": R.normal(size=(3, 1)).astype(F)}, shape=(3, 4), result=(3, 4)),
    "Transpose": one_node("Transpose", perm=[0, 2, 1], shape=(3, 4), result=(4, 3)),
    "Slice": one_node(
        "Slice",
        "a",
        "b",
        "axes",
        constants={"a": np.array([0, 1]), "b": np.array([9, 3]), "axes": np.array([1, 2])},
        shape=(3, 4),
        result=(3, 2),
    ),
    "Gather": one_node("Gather", "c", constants={"c": np.array([2, 0])}, axis=1, result=(2,)),
    "Flatten": one_node("Flatten", shape=(2, 3), result=(6,)),
    "MatMul rows": one_node(
        "MatMul", "c", constants={"c": R.normal(size=(4, 5)).astype(F)}, shape=(3, 4), result=(3, 5)
    ),
    "Gemm alpha": one_node(
        "Gemm",
        "w",
        "b",
        constants={"w": R.normal(size=(6, 5)).astype(F), "b": F([1.0])},
        result=(5,),
        alpha=0.5,
        beta=2.0,
    ),
    "Softmax": one_node("Softmax", axis=-1, shape=(3, 4), result=(3, 4)),
    "ReduceMean": one_node("ReduceMean", "c", constants={"c": np.array([-1])}, shape=(3, 4), result=(3,), keepdims=0),
    "ReduceSum": one_node("ReduceSum", "c", constants={"c": np.array([1, 2])}, shape=(3, 4), result=(1, 1), keepdims=1),
    "ReduceMax": one_node("ReduceMax", "c", constants={"c": np.array([2])}, shape=(3, 4), result=(3,), keepdims=0),
    "Conv": one_node(
        "Conv",
        "w",
        "b",
        constants={"w": R.normal(size=(5, 3, 3, 2)).astype(F), "b": R.normal(size=5).astype(F)},
        **IMAGE,
        result=(5, 5, 5),
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    ),
    "GlobalAveragePool": one_node("GlobalAveragePool", **IMAGE, result=(3, 1, 1)),
    "GlobalMaxPool": one_node("GlobalMaxPool", **IMAGE, result=(3, 1, 1)),
    "MaxPool": one_node("MaxPool", **IMAGE, result=(3, 4, 5), kernel_shape=[3, 2], strides=[2, 2], pads=[0, 1, 0, 1]),
    "AveragePool": one_node(
        "AveragePool", **IMAGE, result=(3, 5, 4), kernel_shape=[2, 2], strides=[2, 2], pads=[1, 0, 0, 0]
    ),
    "AveragePool of a signal": one_node(
        "AveragePool", shape=(2, 9), result=(2, 10), kernel_shape=[2], pads=[1, 1], count_include_pad=1
    ),
    "Conv of a signal": one_node(
        "Conv", "w", constants={"w": R.normal(size=(4, 2, 3)).astype(F)}, shape=(2, 9), result=(4, 4), strides=[2]
    ),
    "Conv per channel": one_node(
        "Conv",
        "w",
        "b",
        constants={"w": R.normal(size=(6, 1, 2, 2)).astype(F), "b": R.normal(size=6).astype(F)},
        **IMAGE,
        result=(6, 8, 7),
        group=3,
    ),
    "PRelu": one_node("PRelu", "c", constants={"c": F([0.2, -0.5, 1.5])}, shape=(2, 3), result=(2, 3)),
}


def recurrent(operator, gates, **attributes):
    """One step of a recurrent node without bias or state, in a form that torch does not write."""
    weights = {"w": R.normal(size=(1, gates * 5, 3)).astype(F), "r": R.normal(size=(1, gates * 5, 5)).astype(F)}
    made = one_node(operator, "w", "r", constants=weights, shape=(3,), result=(5,), hidden_size=5, **attributes)
    node = made["nodes"][0]
    node.input[0], node.output[:] = "sequence", ["", "last"]
    before = helper.make_node("Unsqueeze", ["x", "axis"], ["sequence"])
    made["nodes"] = [before, node, helper.make_node("Squeeze", ["last", "axis"], ["y"])]
    made["constants"]["axis"] = np.array([0])
    return made


GRAPHS |= {
    "GRU": recurrent("GRU", 3),
    "GRU that resets late": recurrent("GRU", 3, linear_before_reset=1),
    "LSTM": recurrent("LSTM", 4),
    "LayerNormalization": one_node(
        "LayerNormalization",
        "c",
        constants={"c": R.normal(size=(3, 4)).astype(F)},
        shape=(2, 3, 4),
        result=(2, 3, 4),
        axis=2,
        epsilon=0.1,
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_operators_do_what_onnxruntime_does(tmp_path, name):
    assert Native(policy_of(tmp_path / "p.onnx", **GRAPHS[name])).selftest < 1.0


def test_an_image_of_bytes_through_a_small_cnn(tmp_path):
    nodes = [
        helper.make_node("Transpose", ["image"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["planes"], ["floats"], to=1),
        helper.make_node("Mul", ["floats", "scale"], ["scaled"]),
        helper.make_node("Conv", ["scaled", "w"], ["conv"], strides=[2, 2]),
        helper.make_node("Relu", ["conv"], ["seen"]),
        helper.make_node("GlobalAveragePool", ["seen"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("Concat", ["features", "speed"], ["all"], axis=1),
        helper.make_node("Gemm", ["all", "v"], ["out"]),
        helper.make_node("Tanh", ["out"], ["command"]),
    ]
    constants = {
        "scale": F(1 / 255),
        "w": R.normal(size=(6, 3, 4, 4)).astype(F),
        "v": R.normal(size=(8, 2)).astype(F),
    }
    shapes = {"image": (12, 10, 3), "speed": (2,)}
    path = policy_of(tmp_path / "p.onnx", nodes, shapes, {"command": (2,)}, constants, kinds={"image": "|u1"})
    assert Native(path).selftest < 0.5


def test_an_lstm_cell_and_a_state_that_shifts(tmp_path):
    """The new state is made of pieces of the old one, which must not change under it."""
    n = 5
    nodes = [
        helper.make_node("Concat", ["x", "state.h"], ["xh"], axis=1),
        helper.make_node("Gemm", ["xh", "w", "b"], ["gates"], transB=1),
        helper.make_node("Split", ["gates"], ["i", "f", "g", "o"], axis=1, num_outputs=4),
        *(helper.make_node("Sigmoid", [gate], [f"s{gate}"]) for gate in "ifo"),
        helper.make_node("Tanh", ["g"], ["tg"]),
        helper.make_node("Mul", ["sf", "state.c"], ["kept"]),
        helper.make_node("Mul", ["si", "tg"], ["added"]),
        helper.make_node("Add", ["kept", "added"], ["next_state.c"]),
        helper.make_node("Tanh", ["next_state.c"], ["tc"]),
        helper.make_node("Mul", ["so", "tc"], ["next_state.h"]),
        helper.make_node("Identity", ["next_state.h"], ["y"]),
        helper.make_node("Identity", ["state.c"], ["next_state.last"]),
        helper.make_node("Identity", ["state.last"], ["next_state.earlier"]),
    ]
    constants = {"w": R.normal(size=(4 * n, 3 + n)).astype(F), "b": R.normal(size=4 * n).astype(F)}
    state = {name: np.linspace(-1, 1, n) for name in ("h", "c", "last", "earlier")}
    path = policy_of(tmp_path / "p.onnx", nodes, {"x": (3,)}, {"y": (n,)}, constants, state, steps=12)
    assert Native(path).selftest < 0.5


def test_an_unsupported_operator_is_named_with_its_node_and_the_supported_ones(tmp_path):
    path = policy_of(tmp_path / "p.onnx", **one_node("Sin"))
    with pytest.raises(
        GraphError, match=r"operator 'Sin' \(node 'the_node'\) is not supported; supported are: "
    ) as error:
        generate(str(path))
    assert all(operator in str(error.value) for operator in SUPPORTED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (one_node("Pow", "c", constants={"c": F(4)}), "exponent"),
        (
            one_node("ReduceMean", "c", constants={"c": np.array([1])}, shape=(3, 4), result=(4,), keepdims=0),
            "only the last",
        ),
        (
            one_node(
                "Conv", "w", constants={"w": np.ones((3, 3, 2, 2), F)}, **IMAGE, result=(3, 7, 6), dilations=[2, 2]
            ),
            "does not slide plainly",
        ),
        (recurrent("LSTM", 4, input_forget=1), "has input_forget = 1; only 0 is supported"),
        (recurrent("GRU", 3, activations=["Relu", "Tanh"]), "has activations"),
        (one_node("MatMul", "x", shape=(3, 3), result=(3, 3)), "to be constant"),
    ],
)
def test_what_an_operator_cannot_do_is_an_error_that_names_it(tmp_path, options, message):
    with pytest.raises(GraphError, match=message) as error:
        generate(str(policy_of(tmp_path / "p.onnx", **options)))
    assert "(node 'the_node')" in str(error.value)


def test_a_signal_with_the_name_of_a_keyword_is_refused(tmp_path):
    node = helper.make_node("Neg", ["double"], ["y"])
    with pytest.raises(GraphError, match="'double' cannot be the name of a member in C"):
        generate(str(policy_of(tmp_path / "p.onnx", [node], {"double": (2,)}, {"y": (2,)})))


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("sample") / "p.onnx"
    exported(path, small(random_gru))
    return path, Native(path)


def test_float16_weights_are_what_rounding_them_makes(sample):
    path, _ = sample
    native = Native(path, weights="float16")
    policy, read = native.policy, graph.read(path.read_bytes(), SUPPORTED)
    assert native.selftest <= 0.51  # of twice what the rounding changes
    for step in range(policy.vectors.steps):
        now = {name: value[step].astype(F) for name, value in policy.vectors.inputs.items()}
        feeds = {name: value[None] for name, value in now.items()}
        feeds |= {f"state.{name}": value[None].copy() for name, value in native.state.items()}
        want, got = graph.run(read, feeds, DENSE), native.step(now)
        exact = graph.run(read, feeds)
        for signal in policy.outputs:
            span = signal.high - signal.low
            assert np.abs(got[signal.name] - want[signal.name][0]).max() < 1e-6 * span
            assert np.abs(want[signal.name] - exact[signal.name]).max() > 1e-6 * span


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
    packed = pack(weight, bias)
    assert len(packed) == (inputs + 1) * padded(outputs)
    assert outputs <= padded(outputs) < outputs + 4 or padded(outputs) % 8 == 0
    assert sorted(packed[packed != 0]) == sorted([*weight.ravel(), *bias])


def test_the_command_writes_three_files(sample, tmp_path, capsys):
    path, _ = sample
    assert arguments.call(export.main, [f"policy={path}", "target=c", f"out={tmp_path / 'c'}"]) == 0
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["policy.c", "policy.h", "policy_math.h"]
    assert capsys.readouterr().out.count("wrote ") == 3


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("target=stm32", "unknown target 'stm32'; choices: c, stm32f405, crazyflie"),
        ("policy=nothing.onnx", "there is no file 'nothing.onnx'"),
        ("weights=int4", "unknown weights 'int4'; choices: float32, float16"),
        ("compiler=icc", "unknown compiler 'icc'; choices: auto, zig, gcc"),
    ],
)
def test_mistakes_get_one_short_line(sample, tmp_path, capsys, argument, message):
    path, _ = sample
    given = {"policy": f"policy={path}", "target": "target=stm32f405", "out": f"out={tmp_path}"}
    given[argument.partition("=")[0]] = argument
    assert arguments.call(export.main, list(given.values())) == 2
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
