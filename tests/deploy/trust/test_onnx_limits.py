"""The bounds that are computed before onnxruntime sees a graph, held against what onnxruntime then does."""

import subprocess
import sys
import threading
import time

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from deploy import PolicyFile, PolicyFileError
from deploy.trust import onnx_limits
from deploy.trust.onnx_limits import Bounded, LimitError, Limits
from tests.deploy.codegen.graph_policy import policy_of
from tests.deploy.trust.onnx_cases import CASES, model_of
from tests.fuzz.policy_files import of_graph

ALL = [pytest.param(name, *case, id=f"{name}-{k}") for name, cases in CASES.items() for k, case in enumerate(cases)]


@pytest.mark.parametrize(("operator", "arrays", "attributes", "outputs"), ALL)
def test_a_rule_makes_the_shapes_and_types_that_onnxruntime_makes(operator, arrays, attributes, outputs):
    # What is whole and small decides about sizes and is constant, everything else is an input.
    named = {f"i{k}": np.asarray(a) for k, a in enumerate(arrays) if a is not None}
    sizes = {n: a for n, a in named.items() if n != "i0" or operator in ("ConstantOfShape", "Range")}
    inputs = {n: a for n, a in named.items() if n not in sizes}
    names = [f"o{k}" for k in range(outputs)]
    given = [f"i{k}" if a is not None else "" for k, a in enumerate(arrays)]
    node = helper.make_node(operator, given, names, **attributes)
    content = model_of([node], inputs, names, sizes)
    bounded = Bounded(content)
    walk = onnx_limits._Walk(20)
    wanted = walk.graph(bounded.model.graph, {n: onnx_limits.Value(a.shape, a.dtype) for n, a in inputs.items()}, {}, 1)
    made = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, inputs)
    assert [v.shape for v in wanted] == [a.shape for a in made]
    assert [v.dtype for v in wanted] == [a.dtype for a in made]
    for value, array in zip(wanted, made, strict=True):
        if value.data is not None:
            np.testing.assert_array_equal(value.data, array)
    assert walk.cost.memory >= sum(a.nbytes for a in made)


def folded(nodes, constants, **inputs):
    """What the graph's result `z` is believed to be, and what onnxruntime makes of it."""
    content = model_of(nodes, inputs, ["z"], constants)
    walk = onnx_limits._Walk(20)
    given = {n: onnx_limits.Value(a.shape, a.dtype) for n, a in inputs.items()}
    (value,) = walk.graph(Bounded(content).model.graph, given, {}, 1)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return value, session.run(None, inputs)[0]


NUMBERS = np.array([-7, -1, 0, 3, 2**31 - 1])


@pytest.mark.parametrize(
    ("operator", "others", "attributes"),
    [
        *((name, [np.array([2, -3, 5, 7, 1])], {}) for name in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Mod")),
        *((name, [np.array([0])], {}) for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
        *((name, [], {}) for name in ("Neg", "Abs", "Identity", "Shape", "Size")),
        *((name, [np.array([0])], {"keepdims": 0}) for name in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")),
        ("Cast", [], {"to": TensorProto.BOOL}),
        ("Cast", [], {"to": TensorProto.INT32}),
        ("Gather", [np.array([-1, 1])], {}),
        ("Slice", [np.array([-1]), np.array([-(2**63)]), np.array([0]), np.array([-2])], {}),
        ("Unsqueeze", [np.array([0])], {}),
        ("Expand", [np.array([2, 5])], {}),
        ("Tile", [np.array([2])], {}),
        ("Reshape", [np.array([-1, 1])], {}),
        ("Concat", [np.array([4])], {"axis": 0}),
    ],
)
def test_sizes_that_are_computed_are_those_of_onnxruntime(operator, others, attributes):
    constants = {"a": NUMBERS, **{f"c{k}": value for k, value in enumerate(others)}}
    value, made = folded([helper.make_node(operator, list(constants), ["z"], **attributes)], constants)
    assert value.data is not None or operator == "Mod"
    if value.data is not None:
        np.testing.assert_array_equal(value.data, made)
        assert value.data.dtype == made.dtype


def test_numbers_that_might_overflow_are_not_known():
    node = helper.make_node("Mul", ["a", "a"], ["z"])
    value, made = folded([node], {"a": np.array([2**40])})
    assert value.data is None and made != 2**80
    with pytest.raises(LimitError, match="takes its shape from what it computes"):
        fill = helper.make_node("ConstantOfShape", ["z"], ["huge"])
        content = model_of([node, fill], {}, ["huge"], {"a": np.array([2**40])})
        Bounded(content).cost()


def loop(turns, scan=False):
    """x + 1, so many times, and the way there."""
    value, real = helper.make_tensor_value_info, TensorProto.FLOAT
    add = [helper.make_node("Add", ["v", "one"], ["w"]), helper.make_node("Identity", ["w"], ["seen"])]
    ends = [value("w", real, None), value("seen", real, None)]
    constants = {"one": np.float32(1), "turns": np.array(turns), "true": np.array(True)}
    if scan:
        declared = [value("v", real, ["N", 3]), value("e", real, ["M"])]
        body = helper.make_graph(add, "body", declared, ends)
        node = helper.make_node("Scan", ["x", "each"], ["last", "way"], body=body, num_scan_inputs=1)
        return [node], {**constants, "each": np.zeros((turns, 2), np.float32)}
    first = [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("v", real, ["N", 3])]
    on = helper.make_node("Identity", ["go"], ["on"])
    body = helper.make_graph([on, *add], "body", first, [value("on", TensorProto.BOOL, []), *ends])
    return [helper.make_node("Loop", ["turns", "true", "x"], ["last", "way"], body=body)], constants


@pytest.mark.parametrize("scan", [False, True])
def test_a_loop_of_few_constant_turns_flies(tmp_path, scan):
    nodes, constants = loop(20, scan)
    path = policy_of(
        tmp_path / "p.onnx", [*nodes, helper.make_node("Tanh", ["last"], ["y"])], {"x": (3,)}, {"y": (3,)}, constants
    )
    policy = PolicyFile.load(path)
    assert policy.step({"x": np.full(3, -20.5, np.float32)})["y"] == pytest.approx(np.tanh(-0.5))
    hundred = Bounded(of_graph(*loop(100, scan))).cost().seconds
    assert hundred > 4 * Bounded(of_graph(*loop(20, scan))).cost().seconds


CHILD = """
import sys, time
from pathlib import Path
from deploy import PolicyFile
grown = lambda kind: float(Path("/proc/self/status").read_text().partition(f"{kind}:")[2].split()[0]) / 1024
PolicyFile.load("quad_any")
for path in sys.argv[1:]:
    content = open(path, "rb").read()
    Path("/proc/self/clear_refs").write_text("5")
    before, began = grown("VmRSS"), time.thread_time()
    PolicyFile.from_bytes(content, "p.onnx")
    print(time.thread_time() - began, grown("VmHWM") - before)
"""


def heavy(name):
    """A graph that is just within the limits."""
    rng = np.random.default_rng(0)
    if name == "large results":
        negated = [helper.make_node("Neg", ["a"], [f"n{k}"]) for k in range(4)]
        sizes = {"s": np.array([1, 1, 1500, 1500]), "v": np.ones(1, np.float32)}
        return of_graph([helper.make_node("Expand", ["v", "s"], ["a"]), *negated], sizes)
    if name == "large constants":
        return of_graph([], {"w": rng.normal(size=20_000_000).astype(np.float32)})
    if name == "many operators":
        return of_graph([helper.make_node("Neg", [f"n{k}" if k else "x"], [f"n{k + 1}"]) for k in range(10_000)])
    if name == "products":
        chain = [helper.make_node("MatMul", [f"m{k}" if k else "w", "w"], [f"m{k + 1}"]) for k in range(4)]
        return of_graph(chain, {"w": rng.normal(size=(600, 600)).astype(np.float32) / 25})
    if name == "a convolution":
        kernels = {"p": rng.normal(size=(1, 8, 64, 64)), "w": rng.normal(size=(64, 8, 9, 9))}
        node = helper.make_node("Conv", ["p", "w"], ["z"])
        return of_graph([node], {n: v.astype(np.float32) for n, v in kernels.items()})
    nodes, constants = loop(1000)
    return of_graph(nodes, constants)


def test_what_is_within_the_limits_keeps_to_them(tmp_path):
    names = ["large constants", "many operators", "products", "a convolution", "a loop", "large results"]
    for name in names:
        (tmp_path / name).write_bytes(heavy(name))
    command = [sys.executable, "-c", CHILD, *(str(tmp_path / name) for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name, line in zip(names, done.stdout.splitlines(), strict=True):
        seconds, megabytes = map(float, line.split())
        cost = Bounded((tmp_path / name).read_bytes()).check(Limits.declared(), 8)
        assert seconds < 2.0 and megabytes < min(512.0, cost.memory / 2**20 + 60.0), (name, seconds, megabytes, cost)


def test_limits_are_declared_in_the_environment_and_the_error_says_so(tmp_path, monkeypatch):
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["z"])]
    content = of_graph(nodes, {"s": np.array([3_000_000])})
    assert PolicyFile.from_bytes(content, "p.onnx").name == "hostile"
    monkeypatch.setenv("SIM2METAL_MEMORY_MB", "10")
    with pytest.raises(PolicyFileError, match="up to 11 MB, more than 10; if you trust it, SIM2METAL_MEMORY_MB="):
        PolicyFile.from_bytes(content, "p.onnx")
    monkeypatch.setenv("SIM2METAL_MEMORY_MB", "100")
    monkeypatch.setenv("SIM2METAL_LOAD_SECONDS", "0.01")
    with pytest.raises(PolicyFileError, match="s to load and test, more than 0.01; .* SIM2METAL_LOAD_SECONDS="):
        PolicyFile.from_bytes(content, "p.onnx")
    monkeypatch.setenv("SIM2METAL_MEMORY_MB", "much")
    with pytest.raises(PolicyFileError, match="SIM2METAL_MEMORY_MB='much' in the environment is no positive number"):
        PolicyFile.from_bytes(content, "p.onnx")


def test_vectors_that_take_longer_than_was_thought_are_given_up(tmp_path, monkeypatch):
    content = of_graph([])
    run = PolicyFile._run

    def slow(self):
        run(self)
        sum(range(1_000_000))

    monkeypatch.setattr(PolicyFile, "_run", slow)
    monkeypatch.setenv("SIM2METAL_LOAD_SECONDS", "0.005")
    with pytest.raises(PolicyFileError, match="1 of 8 test vectors took .* s, more than 0.005"):
        PolicyFile.from_bytes(content, "p.onnx")


def test_many_robots_may_not_cost_more_than_each_of_them():
    """What is joined over all robots grows with their square: harmless for one, not for thousands."""
    nodes = [helper.make_node("Transpose", ["x"], ["c"]), helper.make_node("Tile", ["c", "wide"], ["w"])]
    nodes += [helper.make_node("MatMul", ["x", "w"], ["square"])]
    policy = PolicyFile.from_bytes(of_graph(nodes, {"wide": np.array([1, 10_000])}), "p.onnx")
    policy.reset(10)
    with pytest.raises(PolicyFileError, match="p.onnx: not run with 100000 robots: the graph takes up to"):
        policy.reset(100_000)
    assert policy.n == 10


def test_a_step_can_be_ended_from_another_thread(monkeypatch):
    """A graph that nobody would let pass: 2**40 turns where x is large, and none elsewhere."""
    monkeypatch.setattr(onnx_limits, "MOST_TURNS", 2**40)
    monkeypatch.setenv("SIM2METAL_LOAD_SECONDS", "1e8")
    value, real = helper.make_tensor_value_info, TensorProto.FLOAT
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["v"], ["w"])],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("v", real, ["N", 3])],
        [value("on", TensorProto.BOOL, []), value("w", real, None)],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "two"], ["far"]),
        helper.make_node("Loop", ["turns", "far", "x"], ["last"], body=body),
    ]

    def commands_depend_on_it(model):
        model.graph.node.append(model.graph.node.pop(0))
        model.graph.node[-1].input[0] = "last"

    constants = {"two": np.float32(2), "turns": np.array(2**27)}
    policy = PolicyFile.from_bytes(of_graph(nodes, constants, edit=commands_depend_on_it), "p.onnx")
    near, far = ({"x": np.full(3, value, np.float32)} for value in (1.0, 9.0))
    assert policy.step(near)["y"] == pytest.approx(np.tanh(1.0))
    threading.Timer(0.2, policy.terminate).start()
    began = time.perf_counter()
    with pytest.raises(PolicyFileError, match="the step was ended; reset begins anew"):
        policy.step(far)
    assert time.perf_counter() - began > 0.15
    with pytest.raises(PolicyFileError, match="the step was ended"):
        policy.step(near)
    policy.reset()
    assert policy.step(near)["y"] == pytest.approx(np.tanh(1.0))
