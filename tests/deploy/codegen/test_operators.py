"""One ONNX operator after another in C, compiled for this machine, against onnxruntime."""

import numpy as np
import pytest
from onnx import helper

from deploy.codegen.onnx_graph import GraphError, read
from deploy.codegen.operators import SUPPORTED
from deploy.codegen.source import generate
from deploy.policy_file import PolicyFileError
from tests.deploy.codegen.graph_policy import one_node, policy_of
from tests.deploy.codegen.native import Native


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
    "MatMul with itself": one_node("MatMul", "x", shape=(2, 3, 3), result=(2, 3, 3)),
    "ReduceL2": one_node("ReduceL2", "c", constants={"c": np.array([-1])}, shape=(3, 4), result=(3, 1)),
    "ReduceMax of the first": one_node(
        "ReduceMax", "c", constants={"c": np.array([1])}, shape=(3, 4), result=(4,), keepdims=0
    ),
    "ReduceMean of the middle": one_node(
        "ReduceMean", "c", constants={"c": np.array([2])}, shape=(3, 4, 2), result=(3, 1, 2)
    ),
    "BatchNormalization": one_node(
        "BatchNormalization",
        "scale",
        "bias",
        "mean",
        "variance",
        constants={name: R.uniform(0.5, 2.0, 3).astype(F) for name in ("scale", "bias", "mean", "variance")},
        shape=(3, 4),
        result=(3, 4),
    ),
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


def test_an_unsupported_operator_is_named_with_its_node_and_the_supported_ones():
    values = [helper.make_tensor_value_info(name, 1, ["N", 6]) for name in "xy"]
    node = helper.make_node("Hardmax", ["x"], ["y"], name="the_node")
    model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))
    with pytest.raises(
        GraphError, match=r"operator 'Hardmax' \(node 'the_node'\) is not supported; supported are: "
    ) as error:
        read(model.SerializeToString(), SUPPORTED)
    assert all(operator in str(error.value) for operator in SUPPORTED)


def stepped(tmp_path, x, **options):
    """y of the C for one signal x."""
    made = Native(policy_of(tmp_path / "p.onnx", **options)).step({"x": np.asarray(x, F)})
    return None if made is None else made["y"].tolist()


@pytest.mark.parametrize(("last", "want"), [(0, [1.0]), (1, [4.0])])
def test_of_equal_ones_argmax_takes_the_first_or_the_last(tmp_path, last, want):
    nodes = [helper.make_node("ArgMax", ["x"], ["place"], axis=-1, select_last_index=last)]
    nodes.append(helper.make_node("Cast", ["place"], ["y"], to=1))
    assert stepped(tmp_path, [0, 3, 1, 3, 3, 2], nodes=nodes, inputs={"x": (6,)}, outputs={"y": (1,)}) == want


def test_of_equal_ones_top_k_takes_the_first_first(tmp_path):
    nodes = [helper.make_node("TopK", ["x", "k"], ["few", "places"], axis=-1, largest=0)]
    nodes.append(helper.make_node("Cast", ["places"], ["y"], to=1))
    options = {"nodes": nodes, "inputs": {"x": (6,)}, "outputs": {"y": (4,)}, "constants": {"k": np.array([4])}}
    assert stepped(tmp_path, [2, 1, 3, 1, 2, 1], **options) == [1.0, 3.0, 5.0, 0.0]


def test_halves_are_rounded_to_even(tmp_path):
    values = [0.5, 1.5, -2.5, -0.5, 2.4999998, 8388609.0]
    assert stepped(tmp_path, values, **one_node("Round")) == np.rint(np.asarray(values, F)).tolist()


def test_an_axis_of_one_and_an_axis_of_none(tmp_path):
    """Joined with nothing, and normalised by itself."""
    nodes = [
        helper.make_node("Slice", ["x", "0", "0", "1"], ["none"]),
        helper.make_node("Concat", ["none", "x", "none"], ["joined"], axis=1),
        helper.make_node("Softmax", ["joined"], ["share"], axis=2),
        helper.make_node("CumSum", ["joined", "axis"], ["sums"], exclusive=1, reverse=1),
        helper.make_node("Add", ["share", "sums"], ["y"]),
    ]
    constants = {"0": np.array([0]), "1": np.array([1]), "axis": np.array(1)}
    options = {"nodes": nodes, "inputs": {"x": (3, 1)}, "outputs": {"y": (3, 1)}, "constants": constants}
    try:
        got = stepped(tmp_path, [[1], [2], [4]], **options)
    except PolicyFileError as error:
        pytest.skip(f"the loader refuses it: {error}")
    assert got == [[7.0], [5.0], [1.0]]


def test_infinities_inside_become_what_onnxruntime_makes_of_them(tmp_path):
    """log 0 = -inf, of which a softmax makes nothing; the step is refused only where a command is not finite."""
    nodes = [
        helper.make_node("Add", ["x", "far"], ["shifted"]),  # the vectors' signals are small
        helper.make_node("Relu", ["shifted"], ["positive"]),
        helper.make_node("Log", ["positive"], ["log"]),
        helper.make_node("Softmax", ["log"], ["y"], axis=-1),
    ]
    options = {"nodes": nodes, "inputs": {"x": (3,)}, "outputs": {"y": (3,)}, "constants": {"far": F(9.0)}}
    native = Native(policy_of(tmp_path / "p.onnx", **options))
    np.testing.assert_allclose(native.step({"x": F([-8, -9, -6])})["y"], [0.25, 0.0, 0.75], atol=1e-7)
    assert native.step({"x": F([-10, -9, -12])}) is None


def test_a_look_up_beyond_the_table_refuses_the_step(tmp_path):
    nodes = [helper.make_node("Cast", ["x"], ["k"], to=7), helper.make_node("Gather", ["table", "k"], ["y"])]
    constants = {"table": F([5.0, 6.0, 7.0, 8.0, 9.0])}
    native = Native(policy_of(tmp_path / "p.onnx", nodes, {"x": (2,)}, {"y": (2,)}, constants))
    assert native.step({"x": F([1.9, -5.0])})["y"].tolist() == [6.0, 5.0]
    assert native.step({"x": F([1.0, 5.0])}) is None
    assert native.step({"x": F([-6.0, 0.0])}) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            one_node(
                "Conv", "w", constants={"w": np.ones((1, 1, 1, 1, 1), F)}, shape=(1, 2, 2, 2), result=(1, 2, 2, 2)
            ),
            "slides over 3 dimensions",
        ),
        (one_node("Einsum", equation="naa->na", shape=(2, 2), result=(2,)), "each letter once per term"),
        (recurrent("LSTM", 4, input_forget=1), "has input_forget = 1; only 0 is supported"),
        (recurrent("GRU", 3, activations=["Relu", "Tanh"]), "has activations"),
    ],
)
def test_what_an_operator_cannot_do_is_an_error_that_names_it(tmp_path, options, message):
    with pytest.raises(GraphError, match=message) as error:
        generate(str(policy_of(tmp_path / "p.onnx", **options)))
    assert "(node 'the_node')" in str(error.value)
