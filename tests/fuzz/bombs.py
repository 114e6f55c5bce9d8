"""Hostile policy files by hand: (name, what they must be refused for, bytes). Their digests are right."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploy.trust.content import HEADER
from tests.fuzz.policy_files import of_graph, sealed

BIG = 2**31  # elements: 8 GB
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
MEMORY, WORK, KIND = (
    r"MB, more than 256",
    r"s to load and test, more than 2",
    "not among those that a policy file may use",
)

Hostile = tuple[str, str, list[Any], dict[str, Any]]


def _node(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(operator, inputs, outputs, **attributes)


def _whole(*values: int) -> Any:
    return np.array(values, np.int64)


def _real(*values: float) -> Any:
    return np.array(values, np.float32)


def _loop(body: str = "Neg", turns: str = "turns", inside: int = 0, given: str = "x", made: str = "late") -> Any:
    """Turns of an operator on what comes from the turn before; `inside` so many other loops."""
    p = f"level{inside}/"
    declared = [(f"{p}i", INT64, []), (f"{p}go", BOOL, []), (f"{p}v", FLOAT, ["N", 3])]
    ends = [(f"{p}on", BOOL, []), (f"{p}w", FLOAT, ["N", 3])]
    inputs, outputs = ([helper.make_tensor_value_info(*value) for value in part] for part in (declared, ends))
    if inside:
        work = _loop(body, turns, inside - 1, f"{p}v", f"{p}w")
    elif body == "Concat":
        work = _node(body, [f"{p}v", f"{p}v"], [f"{p}w"], axis=0)
    else:
        work = _node(body, [f"{p}v"], [f"{p}w"])
    graph = helper.make_graph([_node("Identity", [f"{p}go"], [f"{p}on"]), work], p, inputs, outputs)
    return _node("Loop", [turns, "true", given], [made], body=graph)


def _if(condition: str, then: list[Any], other: list[Any], made: str) -> Any:
    """Each branch's last node makes what the whole makes."""
    graphs = [
        helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)])
        for nodes in (then, other)
    ]
    return _node("If", [condition], [made], then_branch=graphs[0], else_branch=graphs[1])


def _conditions(depth: int) -> Any:
    node = _node("Identity", ["x"], ["b0"])
    for k in range(depth):
        node = _if("true", [node], [_node("Neg", ["x"], [f"e{k}"])], f"b{k + 1}")
    return node


def _loops() -> Iterator[Hostile]:
    endless = {"turns": np.array(2**61), "true": np.array(True)}
    yield "loop of 2^61 turns", "2.30584e[+]18 turns; 1 to 1000 are allowed", [_loop()], endless
    yield "loop without a limit", "no limit to its turns", [_loop(turns="")], endless
    count = [_node("Gather", ["x", "zero"], ["first"], axis=1), _node("Cast", ["first"], ["n"], to=INT64)]
    yield (
        "loop over a signal",
        "turns from what it computes",
        [*count, _loop(turns="n")],
        {**endless, "zero": np.array(0)},
    )
    test = [_node("ReduceMax", ["x"], ["most"], keepdims=0), _node("Greater", ["most", "two"], ["far"])]
    hidden = _if("far", [_loop()], [_node("Neg", ["x"], ["soon"])], "made")
    yield "loop behind a condition", "1 to 1000 are allowed", [*test, hidden], {**endless, "two": np.float32(2)}
    thousand = {**endless, "turns": np.array(1000)}
    yield "loops in loops", WORK, [_loop(inside=2)], thousand
    yield "loop that grows", "from turn to turn", [_loop("Concat")], thousand
    yield "conditions in conditions", "nested more than|inside four others", [_conditions(20)], endless


def _sizes() -> Iterator[Hostile]:
    fill = [_node("ConstantOfShape", ["s"], ["z"])]
    yield "constant of 8 GB", MEMORY, fill, {"s": _whole(BIG)}
    yield "constant of 2^122 bytes", "far more than any limit", fill, {"s": _whole(2**40, 2**40, 2**40)}
    yield "expand", MEMORY, [_node("Expand", ["x", "s"], ["z"])], {"s": _whole(BIG // 3, 1, 3)}
    yield "tile", MEMORY, [_node("Tile", ["x", "s"], ["z"])], {"s": _whole(1, BIG)}
    yield "pad", MEMORY, [_node("Pad", ["x", "s"], ["z"])], {"s": _whole(0, 0, 0, BIG)}
    counted = [_node("Range", ["a", "b", "c"], ["z"])]
    yield "range", MEMORY, counted, {"a": np.array(0), "b": np.array(BIG - 1), "c": np.array(1)}
    # 2**63 - 1 to -2**63 is nothing, or with a subtraction that wraps, one; from -2**63 down to 2**62, far too many
    around = {"a": np.array(2**62), "b": np.array(-(2**63)), "c": np.array(1)}
    yield "range around the corner", "counts from", counted, around
    picture = [_node("Reshape", ["x", "four"], ["p"]), _node("Resize", ["p", "", "s"], ["z"], mode="nearest")]
    yield "resize", MEMORY, picture, {"four": _whole(1, 1, 1, -1), "s": _real(1, 1, 30000, 30000)}
    hot = {"i": _whole(1), "d": np.array(BIG), "v": _real(0, 1)}
    yield "one hot", MEMORY, [_node("OneHot", ["i", "d", "v"], ["z"])], hot
    seen = [_node("Cast", ["x"], ["i"], to=INT64), _node("Reshape", ["i", "m"], ["s"])]
    yield "a size from a signal", "takes its shape from what it computes in flight", [*seen, *fill], {"m": _whole(-1)}
    doubled = [_node("Concat", [f"c{k}" if k else "x"] * 2, [f"c{k + 1}"], axis=1) for k in range(60)]
    yield "doubled sixty times", "far more than any limit", doubled, {}
    row = [_node("Expand", ["v", "s"], ["r"]), _node("Transpose", ["r"], ["c"])]
    long = {"s": _whole(1, 30_000), "v": _real(1)}
    yield "outer product", MEMORY, [*row, _node("MatMul", ["c", "r"], ["z"])], long
    yield "einsum", MEMORY, [*row, _node("Einsum", ["r", "r", "r"], ["z"], equation="ab,cd,ef->bdf")], long
    chain = [_node("MatMul", [f"m{k}", f"m{k}"], [f"m{k + 1}"]) for k in range(20)]
    square = {"s": _whole(1500, 1500), "v": _real(1)}
    yield "twenty products of 1500", WORK, [_node("Expand", ["v", "s"], ["m0"]), *chain], square
    plane = [_node("Expand", ["v", "s"], ["p"])]
    kernel = {"w": np.zeros((1, 1, 1, 1), np.float32), "s": _whole(1, 1, 20000, 20000), "v": _real(1)}
    yield "convolution of 20000", MEMORY, [*plane, _node("Conv", ["p", "w"], ["z"])], kernel
    pool = [*plane, _node("MaxPool", ["p"], ["z"], kernel_shape=[1000, 1000])]
    yield "pool of 1000", WORK, pool, {"s": _whole(1, 1, 4000, 4000), "v": _real(1)}
    yield (
        "too many operators",
        "more than 20000",
        [_node("Neg", [f"n{k}" if k else "x"], [f"n{k + 1}"]) for k in range(20_001)],
        {},
    )


def _operators() -> Iterator[Hostile]:
    cast = _node("Cast", ["x"], ["i"], to=INT64)
    yield "division by zero", "divides whole numbers", [cast, _node("Div", ["i", "o"], ["z"])], {"o": _whole(0)}
    yield "division by a signal", "divides whole numbers", [cast, _node("Mod", ["i", "i"], ["z"])], {}
    none = _node("Slice", ["x", "o", "o", "i"], ["none"])
    empty = {"o": _whole(0), "i": _whole(1)}
    yield (
        "an empty sum",
        r"Einsum .* meets the shape \(1, 0\)",
        [none, _node("Einsum", ["none"], ["z"], equation="ab->b")],
        empty,
    )
    cell = {"s": _whole(1, 1, 0), "w": np.zeros((1, 6, 0), np.float32), "r": np.zeros((1, 6, 2), np.float32)}
    steps = [none, _node("Reshape", ["none", "s"], ["steps"], allowzero=1)]
    made = [*steps, _node("GRU", ["steps", "w", "r"], ["z"], hidden_size=2)]
    yield "a cell of nothing", r"GRU .* meets the shape \(1, 1, 0\)", made, {**empty, **cell}
    yield "nonzero", KIND, [_node("NonZero", ["x"], ["z"])], {}
    yield "random", KIND, [_node("RandomNormalLike", ["x"], ["z"])], {}
    yield "texts", "element type 8", [_node("Cast", ["x"], ["z"], to=TensorProto.STRING)], {}
    foreign = _node("FusedMatMul", ["x", "x"], ["z"], domain="com.microsoft", transB=1)
    yield "another domain", "of the domain 'com.microsoft'", [foreign], {}
    yield "an escape as operator", r"\\x1b\[31mEvil", [_node("\x1b[31mEvil", ["x"], ["z"])], {}
    yield "a name twice", "two values of the graph are called 'y'", [_node("Neg", ["x"], ["y"])], {}
    yield "made by nothing", "'ghost', which nothing before it makes", [_node("Neg", ["ghost"], ["z"])], {}


def _external(model: Any) -> None:
    tensor = model.graph.initializer.add(name="weights", data_type=FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="external.bin")


def _function(model: Any) -> None:
    node = _node("Neg", ["a"], ["b"])
    model.functions.add().CopyFrom(helper.make_function("f", "F", ["a"], ["b"], [node], [helper.make_opsetid("", 18)]))


def _sparse(model: Any) -> None:
    values, indices = numpy_helper.from_array(_real(1), "sparse"), numpy_helper.from_array(_whole(0), "where")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [BIG]))


def _training(model: Any) -> None:
    model.training_info.add().algorithm.CopyFrom(model.graph)


def _promised(model: Any) -> None:
    model.graph.initializer.add(name="empty", data_type=FLOAT, dims=[BIG - 1])


def _sequence(model: Any) -> None:
    model.graph.input.append(helper.make_tensor_sequence_value_info("s", FLOAT, None))


EDITS = {
    "external data": ("external_data, which a policy file must not have", _external),
    "functions": ("functions, which a policy file must not have", _function),
    "sparse constants": ("sparse_initializer, which a policy file must not have", _sparse),
    "training": ("training_info, which a policy file must not have", _training),
    "a constant without its values": ("'empty' of shape .* has its values in no field", _promised),
    "a sequence": ("sequence_type, which a policy file must not have", _sequence),
}


def inflating(megabytes: int) -> str:
    """Zeros, deflated a thousandfold: one block again and again."""
    packer = zlib.compressobj(9)
    first, again = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return b64encode(first + again * (megabytes - 1)).decode()


def _metadata() -> Iterator[tuple[str, str, dict[str, Any]]]:
    fields = {"unit": "1", "frame": "", "max_age_s": 0.1}
    x = {"name": "x", "shape": [3], "low": None, "high": None, **fields}
    y = {"name": "y", "shape": [3], "low": -1.0, "high": 1.0, **fields}
    steps = [[0.0, 0.0, 0.0]] * 8
    vectors = {"tolerance": 1e-5, "inputs": {"x": steps}, "outputs": {"y": steps}, "state": {}}
    camera = {"name": "x", "shape": [64, 64, 3], **fields, "low": 0.0, "high": 255.0}
    packed = {**vectors, "inputs": {"x": inflating(3000)}}
    yield "a picture of 3 GB", r"are not 8 of \(64, 64, 3\)", {"inputs": [camera], "vectors": packed}
    vast = {**camera, "shape": [1_000_000, 1_000_000, 3]}
    yield "a picture of 3 TB", "more than 4194304 numbers", {"inputs": [vast], "vectors": packed}
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    yield "deep metadata", "nests more than 24 deep", {"training": {"deep": deep}}
    yield "large metadata", "bytes, more than 8388608", {"training": {"text": "x" * (9 << 20)}}
    yield "many lists", "more than 200000 lists", {"training": {"lists": [[]] * 300_000}}
    yield "limits of 1e8", "the command 'y' may be -1e[+]08 to 1e[+]08", {"outputs": [{**y, "low": -1e8, "high": 1e8}]}
    yield "limits of 1e30", "(low|high) of 'y' is -?1e[+]30", {"outputs": [{**y, "low": -1e30, "high": 1e30}]}
    yield "a tolerance of 1 %", r"not in \(0, 0.001\]", {"vectors": {**vectors, "tolerance": 0.01}}
    many = {**vectors, "inputs": {"x": steps * 125}, "outputs": {"y": steps * 125}}
    yield "a thousand vectors", "1000 test vectors, more than 256", {"vectors": many}
    state = {"name": "s", "shape": [1 << 30], "initial": []}
    yield "a state of 4 GB", "a size of the state 's' is 1073741824", {"state": [state]}
    yield "an escape in the name", r"name is no printable text .* quad\\x1b\[2J", {"name": "quad\x1b[2J\x1b[31m"}
    yield "a turned name", "name is no printable text", {"name": "quad\u202egnp.exe"}
    yield "an escape in the robot", "robot is no printable text", {"robot": "\x1b]0;owned\x07"}
    yield "a rate of 1e300", "rate_hz is 1e[+]300, not a number from 0.1 to 10000", {"rate_hz": 1e300}
    yield "a huge whole number", "rate_hz is 1000", {"rate_hz": 10**400}
    yield "a shape of text", "the shape of 'x' is '333'", {"inputs": [{**x, "shape": "333"}]}
    yield "vectors of text", "are no numbers", {"vectors": {**vectors, "outputs": {"y": [["a"] * 3] * 8}}}
    yield "an unknown rule", "no rule '__class__'", {"envelope": {"__class__": 1}}
    yield "a rule of another kind", "the safe 'y' is", {"envelope": {"safe": {"y": {"a": 1}}}}
    yield "ages without end", "max_age_s of 'x' is 1000000000.0", {"inputs": [{**x, "max_age_s": 1e9}]}


def _bytes() -> Iterator[tuple[str, str, bytes]]:
    sound = of_graph([])
    yield "NaN in the metadata", "holds the number NaN", sealed(sound.replace(b'"rate_hz": 100.0', b'"rate_hz": NaN  '))
    yield "a key twice", "says something twice", sealed(sound.replace(b'"evaluation": null', b'"name": "name"    '))
    more = onnx.ModelProto()
    more.metadata_props.add(key="more", value="x")
    yield "more metadata", "metadata other than", sealed(sound + more.SerializeToString())
    again = onnx.ModelProto()
    again.graph.CopyFrom(onnx.load_from_string(sound).graph)
    yield "a second graph", "Model has graph twice", sealed(sound + again.SerializeToString())
    header = HEADER.search(sound)
    assert header is not None
    flat = b"\x18\x00\x00\x00ORTM" + header.group(0) + b"}" + sound
    yield "onnxruntime's own format", "not run: Model has the field", sealed(flat)
    yield "a group of fields", "wire type 3 at byte", sealed(sound + b"\x13\x14")
    late = b'{"name": "x", ' + bytes(300)
    yield "metadata that begin late", "not a policy file", late + sound


def bombs() -> Iterator[tuple[str, str, bytes]]:
    """All of them."""
    for part in (_loops(), _sizes(), _operators()):
        for name, reason, nodes, constants in part:
            yield name, reason, of_graph(nodes, constants)
    for name, (reason, edit) in EDITS.items():
        yield name, reason, of_graph([], edit=edit)
    for name, reason, changed in _metadata():
        yield name, reason, of_graph([], **changed)
    yield from _bytes()
