"""python -m tests.fuzz.operators [each=N] [seed=N]: operators with strange shapes, numbers and attributes.

What the bounds let pass is run by onnxruntime: it must make the shapes that were foretold, and must not end the
process. Prints each case that it did not foretell; a process that dies names the case in its last line of errors.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper

from deploy.trust.onnx_limits import Bounded, Value, _Walk
from deploy.trust.onnx_reader import OnnxError
from tests.deploy.trust.onnx_cases import CASES, model_of

SIZES = [0, 1, 1, 2, 3, 5, 17]
NUMBERS = [0, 1, -1, 2, -2, 3, 5, 7, 100, -100, 2**31, 2**62, -(2**63)]
NAMES = "axis group keepdims direction mode dilations pads layout select_last_index reverse exclusive largest sorted "
NAMES += "batch_dims ceil_mode count_include_pad auto_pad noop_with_empty_axes reduction activations num_outputs "
NAMES += "linear_before_reset hidden_size clip approximate upper storage_order strides kernel_shape antialias"
VALUES = [
    0,
    1,
    -1,
    2,
    [1, 1],
    [2, 2, 2, 2],
    ["Tanh"],
    ["Affine", "Relu"],
    "ab,bc->ca",
    "aab,acb->c",
    "ab->aab",
    "abc->",
]
VALUES += ["reflect", "edge", "wrap", "bidirectional", "reverse", "add", "mul", "SAME_LOWER", "VALID", "cubic", ""]


def _other_numbers(array: Any, draw: random.Random) -> Any:
    """The same kind of array in another shape or with another number in it."""
    shape = list(array.shape)
    if shape and draw.random() < 0.5:
        shape[draw.randrange(len(shape))] = draw.choice(SIZES)
    else:
        shape = draw.choices(SIZES[:5], k=draw.randrange(6))
    count = int(np.prod(shape))
    if array.dtype == np.int64:
        made = np.array(draw.choices(NUMBERS, k=count), np.int64)
        if array.size and draw.random() < 0.5:
            made = array.copy()
            made.flat[draw.randrange(made.size)] = draw.choice(NUMBERS)
            return made
    else:
        made = np.array([draw.uniform(-1.0, 1.0) for _ in range(count)]).astype(array.dtype)
    return made.reshape(shape)


def strange(case: tuple[Any, ...], draw: random.Random) -> tuple[list[Any], dict[str, Any], int]:
    """A case (arrays, attributes, outputs) with up to three things changed."""
    arrays, attributes = [None if a is None else np.asarray(a) for a in case[0]], dict(case[1])
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        present = [k for k, a in enumerate(arrays) if a is not None]
        if present and draw.random() < 0.6:
            k = draw.choice(present)
            arrays[k] = _other_numbers(arrays[k], draw)
        elif attributes and draw.random() < 0.6:
            name = draw.choice(list(attributes))
            value = attributes[name]
            if isinstance(value, list) and value:
                attributes[name] = [*value[:-1], draw.choice([*NUMBERS[:7], 100, 2**31])]
            else:
                attributes[name] = draw.choice(NUMBERS if isinstance(value, int) else VALUES)
        else:
            attributes[draw.choice(NAMES.split())] = draw.choice(VALUES)
    return arrays, attributes, case[2]


def tried(operator: str, case: tuple[list[Any], dict[str, Any], int], draw: random.Random) -> str | None:
    """What was not foretold; "" when all was; None when the bounds or onnxruntime refused the case."""
    arrays, attributes, outputs = case
    named = {f"i{k}": a for k, a in enumerate(arrays) if a is not None}
    inputs = {n: a for n, a in named.items() if draw.random() < (0.8 if a.dtype.kind == "f" else 0.15)}
    names = [f"o{k}" for k in range(outputs)]
    node_inputs = [f"i{k}" if a is not None else "" for k, a in enumerate(arrays)]
    constants = {n: a for n, a in named.items() if n not in inputs}
    about = f"{operator} {attributes} { ({n: a.shape for n, a in named.items()}) } inputs {list(inputs)}"
    try:
        node = helper.make_node(operator, node_inputs, names, **attributes)
        content = model_of([node], inputs, names, constants)
    except (ValueError, TypeError):
        return None
    walk = _Walk(20)
    try:
        foretold = walk.graph(
            Bounded(content).model.graph, {n: Value(a.shape, a.dtype) for n, a in inputs.items()}, {}, 1
        )
        if walk.cost.memory > 2**28 or walk.cost.seconds > 1.0:
            return None
    except OnnxError:
        return None
    print(about, file=sys.stderr, flush=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        made = session.run(None, inputs)
    except Exception:  # refusing is fine, and onnxruntime's own classes share no base with a public name
        return None
    for value, array in zip(foretold, made, strict=True):
        same = value.data is None or np.array_equal(value.data, array)
        if (value.shape, value.dtype) != (array.shape, array.dtype) or not same:
            numbers = {n: a.tolist() for n, a in constants.items() if a.size < 9}
            wrong = f"{value.dtype} {value.shape} foretold, {array.dtype} {array.shape} made"
            return f"{about} {numbers}: {wrong}, {'with' if same else 'without'} the right numbers"
    return ""


if __name__ == "__main__":
    options = dict(argument.split("=") for argument in sys.argv[1:])
    draw = random.Random(int(options.get("seed", 0)))
    ran = 0
    for operator, cases in CASES.items():
        for _ in range(int(options.get("each", 10))):
            end = tried(operator, strange(draw.choice(cases), draw), draw)
            ran += end == ""
            if end:
                print(end)
    print(f"{ran} ran")
