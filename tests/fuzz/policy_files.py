"""python -m tests.fuzz.policy_files [count=N] [seed=N]: damaged and hostile policy files, each loaded and stepped.

Prints JSON: how many were refused in one line, how many loaded, and every other end that one came to ("traceback"); the
slowest in seconds of this thread's work, and the largest growth of memory in MB. bombs=true: those of `bombs` instead.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.trust.content import HEADER, KEY, content_of, digest
from policies.models.export import serialise
from sim.spec import Signal
from tests.deploy.codegen.graph_policy import policy_of
from tests.deploy.sample_policy import exported, random_gru, random_mlp, small

NUMBERS = [0, 1, -1, 2, 255, 256, 2**31 - 1, 2**31, -(2**31), 2**32, 2**61, 2**63 - 1, -(2**63), 7, 1000, 10**6]
JSON = [None, True, 0, -1, 1, 1.5, 1e30, 1e308, 10**400, "", "x", "\x1b[31mred", "\u202e", [], {}, [[]], {"a": 1}]
OPERATORS = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""})


def sealed(content: bytes) -> bytes:
    """With the digest that belongs to the bytes, where there is a header at all."""
    header = HEADER.search(content)
    if header is None:
        return content
    start = header.start(2)
    return content[:start] + digest(content, start).encode() + content[start + 64 :]


def samples(folder: Path) -> list[bytes]:
    """Sound files of every kind: recurrent, with a history, with pictures and convolutions, as shipped."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 3, 3, 3)).astype(np.float32) / 300
    nodes = [
        helper.make_node("Cast", ["image"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["real"], ["chw"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["chw", "w"], ["seen"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["seen"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Tanh", ["flat"], ["y"]),
    ]
    sees = policy_of(folder / "c.onnx", nodes, {"image": (9, 9, 3)}, {"y": (4,)}, {"w": weight}, None, {"image": "|u1"})
    exported(folder / "g.onnx", small(random_gru))
    exported(folder / "m.onnx", small(random_mlp))
    return [content_of("quad_any"), *((folder / name).read_bytes() for name in ("g.onnx", "m.onnx")), sees.read_bytes()]


def split(content: bytes) -> tuple[Any, dict[str, Any]]:
    """The model and the metadata of a sound file."""
    model = onnx.load_from_string(content)
    metadata = json.loads({p.key: p.value for p in model.metadata_props}[KEY])
    return model, {k: v for k, v in metadata.items() if k not in ("schema", "digest")}


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, taken away, put in or copied from elsewhere; the digest usually made to fit."""
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 4, 16])):
        at, kind = draw.randrange(len(data)), draw.randrange(5)
        if kind == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at] = draw.choice([0, 1, 127, 128, 255])
        elif kind == 2:
            del data[at : at + draw.choice([1, 2, 8, 200])]
        elif kind == 3:
            data[at:at] = draw.randbytes(draw.choice([1, 4, 9]))
        else:
            start, size = draw.randrange(len(data)), draw.choice([4, 40, 400])
            data[at : at + size] = data[start : start + size]
    return sealed(bytes(data)) if draw.random() < 0.9 else bytes(data)


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            _places(value[key], found)
    return found


def damaged_json(content: bytes, draw: random.Random) -> bytes:
    """Some of the metadata replaced, removed, renamed or nested."""
    model, metadata = split(content)
    for _ in range(draw.choice([1, 1, 2, 5])):
        shallow = _places({k: v for k, v in metadata.items() if k != "vectors"}, [])
        places = [(metadata if c is not metadata and k in metadata else c, k) for c, k in shallow]
        places = places if draw.random() < 0.7 else _places(metadata["vectors"], []) or places
        if not places:
            break
        container, key = draw.choice(places)
        with contextlib.suppress(KeyError, IndexError):
            kind = draw.randrange(4)
            if kind == 0:
                container[key] = copy.deepcopy(draw.choice([*JSON, *NUMBERS]))
            elif kind == 1:
                del container[key]
            elif kind == 2:
                container[key] = [container[key]] * draw.choice([1, 2, 300])
            elif isinstance(container, dict):
                container[draw.choice(["name", "shape", "x", "\x1b]0;"])] = container.pop(key)
        if not isinstance(metadata.get("vectors"), dict):
            break
    try:
        return serialise(model, metadata)
    except ValueError:  # what JSON cannot hold: written as it stands
        first = onnx.ModelProto()
        text = json.dumps({"schema": 1, "digest": "sha256:" + "0" * 64, **metadata})
        first.metadata_props.add(key=KEY, value=text)
        del model.metadata_props[:]
        return sealed(first.SerializeToString() + model.SerializeToString())


def _damage_node(graph: Any, draw: random.Random) -> None:
    node, kind = draw.choice(graph.node), draw.randrange(6)
    names = [name for other in graph.node for name in (*other.input, *other.output)]
    if kind == 0:
        node.op_type = draw.choice(OPERATORS)
    elif kind == 1 and node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice([*names, "", "\x1b[2J"])
    elif kind == 2:
        attribute = node.attribute.add(
            name=draw.choice(["axis", "perm", "strides", "group", "to", "kernel_shape", "k"])
        )
        attribute.type = draw.choice([onnx.AttributeProto.INT, onnx.AttributeProto.INTS])
        attribute.i = draw.choice(NUMBERS)
        attribute.ints.extend(draw.choices(NUMBERS, k=draw.randrange(4)))
    elif kind == 3 and node.attribute:
        draw.choice(node.attribute).i = draw.choice(NUMBERS)
    elif kind == 4:
        graph.node.add().CopyFrom(node)
    else:
        graph.node.remove(node)


def _damage_tensor(graph: Any, draw: random.Random) -> None:
    tensor, kind = draw.choice(graph.initializer), draw.randrange(5)
    if kind == 0 and tensor.dims:
        tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(NUMBERS)
    elif kind == 1:
        tensor.data_type = draw.randrange(24)
    elif kind == 2:
        tensor.raw_data = tensor.raw_data[: draw.randrange(len(tensor.raw_data) + 1)] + draw.randbytes(
            draw.choice([0, 4])
        )
    elif kind == 3:
        wide = np.array(draw.choices(NUMBERS, k=max(1, len(tensor.raw_data) // 8)), np.int64)
        tensor.raw_data = wide.tobytes()[: len(tensor.raw_data)]
    else:
        tensor.CopyFrom(numpy_helper.from_array(np.array(draw.choices(NUMBERS, k=3), np.int64), tensor.name))


def _damage_whole(model: Any, draw: random.Random) -> None:
    kind = draw.randrange(5)
    values = [*model.graph.input, *model.graph.output]
    if kind == 0:
        model.opset_import[0].version = draw.choice([0, 1, 7, 12, 13, 17, 19, 23, 99, 2**40])
    elif kind == 1:
        model.ir_version = draw.choice([0, 3, 8, 10, 99, 2**40])
    elif kind == 2:
        dims = draw.choice(values).type.tensor_type.shape.dim
        dims[draw.randrange(len(dims))].dim_value = draw.choice(NUMBERS)
    elif kind == 3:
        draw.choice(values).type.tensor_type.elem_type = draw.randrange(24)
    else:
        draw.choice(values).name = draw.choice([v.name for v in values])


def damaged_graph(content: bytes, draw: random.Random) -> bytes:
    """Operators, attributes, constants, shapes and versions changed, in a file that is otherwise sound."""
    model, metadata = split(content)
    for _ in range(draw.choice([1, 1, 2, 4])):
        kind = draw.random()
        if kind < 0.5 and model.graph.node:
            _damage_node(model.graph, draw)
        elif kind < 0.8 and model.graph.initializer:
            _damage_tensor(model.graph, draw)
        else:
            _damage_whole(model, draw)
    return serialise(model, metadata)


MUTATORS: tuple[Callable[[bytes, random.Random], bytes], ...] = (damaged_bytes, damaged_json, damaged_graph)


def mutants(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """(which, bytes): the same for the same seed."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        sound = samples(Path(folder))
    for index in range(count):
        mutator = MUTATORS[index % len(MUTATORS)]
        yield f"{mutator.__name__} {seed}/{index}", mutator(draw.choice(sound), draw)


HOSTILE = (lambda s: np.full(s.shape, 1e39), lambda s: np.full(s.shape, 1j), lambda s: np.full(s.shape, None))


def attempt(content: bytes) -> tuple[str, str]:
    """Load it, step it, feed it what is no signal: "refused" and why, "loaded", or "traceback" of anything else."""
    try:
        try:
            policy = PolicyFile.from_bytes(content, "p.onnx")
        except PolicyFileError as error:
            assert str(error).isprintable() and len(str(error)) <= 1000, repr(str(error))
            return "refused", str(error)
        with contextlib.suppress(PolicyFileError):
            policy.step({s.name: np.zeros(s.shape, s.dtype) for s in policy.inputs})
        for wrong in HOSTILE:
            with contextlib.suppress(PolicyFileError):
                policy.step({s.name: wrong(s) for s in policy.inputs})
                raise AssertionError("took what is no signal")
        return "loaded", ""
    except BaseException:
        return "traceback", traceback.format_exc(limit=-3)


def _memory(which: str) -> float:
    """MB: "VmHWM", the peak since `_forget`, or "VmRSS", now."""
    status = Path("/proc/self/status").read_text()
    return float(status.partition(f"{which}:")[2].split()[0]) / 1024


def _forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def judged(content: bytes) -> tuple[str, str, float, float]:
    """`attempt`'s answer, seconds of this thread's work, and MB by which the process grew."""
    _forget()
    before, began = _memory("VmRSS"), time.thread_time()
    end, why = attempt(content)
    return end, why, time.thread_time() - began, _memory("VmHWM") - before


def campaign(seed: int, count: int) -> dict[str, Any]:
    """What came of so many mutants."""
    ends: collections.Counter[str] = collections.Counter()
    tracebacks = []
    slowest, largest = (0.0, ""), (0.0, "")
    for name, content in mutants(seed, count):
        end, why, spent, grown = judged(content)
        slowest, largest = max(slowest, (spent, name)), max(largest, (grown, name))
        ends[f"{name.split()[0]} {end}"] += 1
        if end == "traceback":
            tracebacks.append(f"{name}: {why}")
    return {"ends": ends, "tracebacks": tracebacks[:20], "slowest": slowest, "largest": largest}


def of_graph(nodes: list[Any], constants: dict[str, Any] | None = None, **changed: Any) -> bytes:
    """A file with the signal x (3,), the command y (3,) = tanh x, and these nodes beside that."""
    from sim import spec

    steps = np.linspace(-1.0, 1.0, 24, dtype=np.float32).reshape(8, 3)
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Tanh", ["x"], ["y"]), *nodes], "hostile", values[:1], values[1:], tensors
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    vectors = {
        "inputs": {"x": steps.tolist()},
        "outputs": {"y": np.tanh(steps).tolist()},
        "state": {},
        "tolerance": 1e-5,
    }
    metadata = {
        "name": "hostile",
        "task": "none",
        "robot": "bench",
        "rate_hz": 100.0,
        "inputs": spec.to_json((Signal("x", (3,)),)),
        "outputs": spec.to_json((Signal("y", (3,), low=-1.0, high=1.0),)),
        "state": [],
        "training": {},
        "evaluation": None,
        "vectors": vectors,
    }
    edit = changed.pop("edit", None)
    if edit:
        edit(model)
    return serialise(model, {**metadata, **changed})


if __name__ == "__main__":
    options = dict(argument.split("=") for argument in sys.argv[1:])
    if "bombs" in options:
        from tests.fuzz.bombs import bombs

        print(json.dumps({name: (reason, *judged(content)) for name, reason, content in bombs()}))
    else:
        print(json.dumps(campaign(int(options.get("seed", 0)), int(options.get("count", 300))), indent=1))
