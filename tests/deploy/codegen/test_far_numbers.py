"""Legal graphs and numbers that nobody thinks of: C says what onnxruntime says, or refuses the step or the file."""

import copy

import numpy as np
import pytest
from onnx import TensorProto, helper

from deploy.codegen.onnx_graph import GraphError
from deploy.codegen.source import generate
from deploy.codegen.structs import check_limits
from deploy.policy_file import PolicyFile
from sim.spec import Signal
from tests.deploy.codegen.graph_policy import one_node, policy_of
from tests.deploy.codegen.native import Native
from tests.deploy.sample_policy import resealed

F, LAST = np.float32, np.array([-1])


def chain(*operators, constants=None, result=(6,)):
    """A graph of (operator, other inputs, attributes) one after the other, from the signal x (6) to the command y."""
    nodes, source = [], "x"
    for k, (operator, more, attributes) in enumerate(operators):
        made = "y" if k == len(operators) - 1 else f"v{k}"
        nodes.append(helper.make_node(operator, [source, *more], [made], name=f"the_{operator}_{k}", **attributes))
        source = made
    return {"nodes": nodes, "inputs": {"x": (6,)}, "outputs": {"y": result}, "constants": constants}


def both(folder, graph, values):
    """(k, n) commands for each of these values of all signals, by C and by onnxruntime; NaN where a step is refused."""
    path = policy_of(folder / "p.onnx", **graph)
    native, policy, rows = Native(path), PolicyFile.load(path), []
    for value in values:
        native.reset()
        policy.reset()
        signals = {"x": np.broadcast_to(F(value), 6).copy()}
        got, want = native.step(signals), policy.step(signals)["y"]
        rows.append((want * np.nan if got is None else got["y"], want if np.isfinite(want).all() else want * np.nan))
    return (np.array(side) for side in zip(*rows, strict=True))


SHARE = (("Exp", (), {}), ("ReduceSum", ("last",), {"keepdims": 1}), ("Reciprocal", (), {}))
FAR = [0.0, 1.5, 85.0, -85.0, 88.0, 95.0, -100.0, 1e4, -1e4, 1e30]


@pytest.mark.parametrize(
    "operators", [(("Exp", (), {}),), (("Sinh", (), {}),), (("Cosh", (), {}),), (*SHARE[:2], ("Log", (), {}))], ids=str
)
def test_what_is_too_large_for_a_float_is_refused_as_by_onnxruntime(tmp_path, operators):
    """A step whose result onnxruntime finds infinite must not pass for a plausible command on a chip."""
    result = (1,) if len(operators) > 1 else (6,)
    graph = chain(*operators, constants={"last": LAST}, result=result)
    got, want = both(tmp_path, graph, FAR)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_logarithm_of_a_softmax_is_as_exact_far_from_zero(tmp_path):
    got, want = both(tmp_path, chain(("LogSoftmax", (), {})), [0.0, 1e4, -1e6, 1e30])
    np.testing.assert_allclose(got, want, atol=1e-6)


def whole(*operators, kind=TensorProto.INT64, constants=None, result=(6,)):
    """The same with the signals' tenfold as whole numbers, at least 1."""
    before = (("Mul", ("ten",), {}), ("Abs", (), {}), ("Add", ("one",), {}), ("Cast", (), {"to": kind}))
    made = chain(*before, *operators, ("Cast", (), {"to": TensorProto.FLOAT}), constants=constants or {}, result=result)
    made["constants"] |= {"ten": F(10), "one": F(1)}
    return made


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
@pytest.mark.parametrize(
    ("operator", "second", "result"),
    [("ReduceMean", LAST, (1,)), ("Pow", np.int64(5), (6,)), ("Pow", F(3.0), (6,))],
)
def test_whole_numbers_stay_whole(tmp_path, kind, operator, second, result):
    graph = whole((operator, ("c",), {}), kind=kind, constants={"c": np.asarray(second)}, result=result)
    assert Native(policy_of(tmp_path / "p.onnx", **graph)).selftest == 0.0


@pytest.mark.parametrize(("operator", "second"), [("ReduceL2", LAST), ("Pow", F(0.5)), ("Pow", F(-1.0))])
def test_whole_numbers_that_would_not_are_refused(tmp_path, operator, second):
    result = (1,) if operator == "ReduceL2" else (6,)
    graph = whole((operator, ("c",), {}), constants={"c": np.asarray(second)}, result=result)
    path = policy_of(tmp_path / "p.onnx", **graph)
    with pytest.raises(GraphError, match=f"the_{operator}.*cast to float32 first"):
        generate(str(path))


@pytest.mark.parametrize("attributes", [{"lambd": -0.5, "bias": 0.2}, {"lambd": 0.3, "bias": -0.1}], ids=str)
def test_an_attribute_below_zero_is_c_too(tmp_path, attributes):
    assert Native(policy_of(tmp_path / "p.onnx", **one_node("Shrink", **attributes))).selftest < 1.0


def test_a_limit_may_be_infinite_on_either_side(tmp_path):
    graph = chain(
        ("Clip", ("low", "high"), {}),
        ("IsInf", (), {}),
        ("Cast", (), {"to": TensorProto.FLOAT}),
        constants={"low": F(np.inf), "high": F(np.inf)},
    )
    assert Native(policy_of(tmp_path / "p.onnx", **graph)).selftest == 0.0


def test_zeros_can_be_quantised_as_they_come(tmp_path):
    """As of a memory when a flight begins: their range is nothing, and nothing must be divided by it."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["y"]),
    ]
    constants = {"w": np.arange(-12, 12, dtype=np.int8).reshape(6, 4)}
    graph = {"nodes": nodes, "inputs": {"x": (6,)}, "outputs": {"y": (4,)}, "constants": constants}
    got, want = both(tmp_path, graph, [0.0, 1.0, -3.0])
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (-1.0, 1.0, [1.0, -1.0]),
        (-0.5, None, [625.0, -0.5]),
        (None, 0.25, [0.25, -625.0]),
        (None, None, [625.0, -625.0]),
    ],
)
def test_c_keeps_to_the_limits_that_a_file_promises(tmp_path, low, high, wanted):
    """A stranger's graph need not, and who links the C has no guard."""
    nodes = [helper.make_node("Mul", ["x", "share"], ["y"])]
    path = policy_of(tmp_path / "p.onnx", nodes, {"x": (1,)}, {"y": (1,)}, {"share": F(0.0625)})
    policy = PolicyFile.load(path)
    told = [{**policy.metadata["outputs"][0], "low": low, "high": high}]
    native = Native(resealed(policy, tmp_path / "told.onnx", outputs=told))
    assert [native.step({"x": F([x])})["y"][0] for x in (1e4, -1e4)] == wanted


def test_a_file_whose_own_vectors_break_its_limits_has_no_c(tmp_path):
    policy = PolicyFile.load(policy_of(tmp_path / "p.onnx", **one_node("Neg")))
    told = [{**policy.metadata["outputs"][0], "low": -0.1, "high": 0.1}]
    with pytest.raises(GraphError, match="beyond its limits of -0.1 to 0.1, which C keeps to"):
        generate(str(resealed(policy, tmp_path / "told.onnx", outputs=told)))


@pytest.mark.parametrize("weights", ["float16", "int8", "w8a8"])
def test_rounded_weights_keep_to_the_limits_in_the_self_test_too(tmp_path, weights):
    """An honest file comes near its limits; with rounded weights its graph goes beyond them, and C does not."""
    w = np.random.default_rng(1).uniform(-1.0, 1.0, (64, 8)).astype(F)
    w[0] = 40.0  # next to which the others are few steps
    graph = one_node("MatMul", "w", constants={"w": w}, shape=(64,), result=(8,))
    policy = PolicyFile.load(policy_of(tmp_path / "p.onnx", **graph))
    values = policy.vectors.outputs["y"]
    limits = {"low": float(values.min()), "high": float(values.max())}
    told = resealed(policy, tmp_path / "told.onnx", outputs=[{**policy.metadata["outputs"][0], **limits}])
    assert Native(told, weights=weights).selftest <= 1.0


@pytest.mark.parametrize(
    ("low", "high", "taken"),
    [(0.0, 2.0**24, True), (-(2.0**24), 1.0, True), (0.0, 2.0**24 + 2.0, False), (-(2.0**24) - 2.0, 5.0, False)],
)
def test_tokens_that_c_does_not_tell_apart_are_refused(tmp_path, low, high, taken):
    policy = copy.copy(PolicyFile.load(policy_of(tmp_path / "p.onnx", **one_node("Neg"))))
    policy.inputs = (Signal("words", (6,), low=low, high=high, dtype="int64"),)
    if taken:
        check_limits(policy)
        return
    said = f"words goes from {low:.0f} to {high:.0f}; C tells whole numbers apart from -16777216 to 16777216"
    with pytest.raises(GraphError, match=said):
        check_limits(policy)


def test_too_many_numbers_are_refused_before_they_are_written(tmp_path, monkeypatch):
    """Sixteen million of them as text took gigabytes, to be refused then."""

    def written(*_):
        raise RuntimeError("they became texts")

    graph = one_node("MatMul", "w", constants={"w": np.ones((6, 30), F)}, result=(30,))
    path = policy_of(tmp_path / "p.onnx", **graph)
    monkeypatch.setattr("deploy.codegen.source.MOST_NUMBERS", 179)
    told = pytest.raises(GraphError, match="224 numbers are too many for C, which holds 179")  # in blocks of 8 outputs
    with told, monkeypatch.context() as during:
        during.setattr("deploy.codegen.program.literal", written)
        generate(str(path))
    for weights in ("float16", "int8", "w8a8"):  # counted as they are stored: two or four to a word
        assert "policy.c" in generate(str(path), weights)


def test_one_wild_sample_does_not_spoil_the_memory_for_good(tmp_path):
    """C refuses such a step; onnxruntime's state was infinite from then on, and the robot lost its policy."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Mul", ["state.h", "half"], ["kept"]),
        helper.make_node("Add", ["square", "kept"], ["next_state.h"]),
        helper.make_node("Add", ["x", "kept"], ["y"]),
    ]
    path = policy_of(tmp_path / "p.onnx", nodes, {"x": (2,)}, {"y": (2,)}, {"half": F(0.5)}, {"h": [1.0, 2.0]})
    native, policy = Native(path), PolicyFile.load(path)
    policy.reset(3)
    for value in (0.3, 1e30, 0.2, 0.1):
        signals = np.zeros((3, 2), F)
        signals[1] = value
        got, want = native.step({"x": signals[1]}), policy.step({"x": signals})["y"]
        assert np.isfinite(want[[0, 2]]).all()  # nobody else's step is refused
        np.testing.assert_array_equal(np.full(2, np.nan, F) if got is None else got["y"], want[1])
    np.testing.assert_array_equal(native.state["h"], policy.states()["h"][1])
    assert np.isfinite(policy.states()["h"]).all()
