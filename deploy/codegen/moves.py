"""Operators that put elements elsewhere and leave them as they are: where each comes from, or a look-up in flight."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.elementwise import literal
from deploy.codegen.onnx_graph import GraphError, Node, Value, evaluate

# Which inputs hold what is moved (all: None); the others must be constant.
MOVES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Concat",)),
    **dict.fromkeys(("DepthToSpace", "Expand", "Flatten", "Identity", "Pad", "Reshape", "Slice"), (0,)),
    **dict.fromkeys(("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"), (0,)),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), (0,)),
    **dict.fromkeys(("ScatterElements", "ScatterND"), (0, 2)),
}
LOOKUPS = {"Gather", "GatherElements", "GatherND"}  # their indices may be computed in flight
NOWHERE = -1  # an element that is new: a fill
Indices = NDArray[np.int64]


def sources(node: Node) -> list[str]:
    """The inputs whose elements are moved."""
    held = MOVES[node.operator]
    return list(dict.fromkeys(node.inputs if held is None else [node.inputs[k] for k in held]))


def looked_up(node: Node, values: Sequence[Value | None]) -> bool:
    """Whether the indices are computed in flight."""
    return node.operator in LOOKUPS and values[1] is not None and values[1].data is None


def traced(node: Node, values: Sequence[Value | None], opset: int) -> tuple[dict[str, Indices], str]:
    """Per output, which element of the joined sources each is, or NOWHERE; and the fill. By moving their numbers."""
    if node.attributes.get("reduction", b"none") != b"none":
        raise GraphError(f"{node} adds up what it scatters, which is not supported")
    names, fill = sources(node), "0.0f"
    numbers: dict[str, NDArray[Any]] = {}
    start = 1  # 0: what an operator makes of nothing
    for index, (name, value) in enumerate(zip(node.inputs, values, strict=True)):
        if value is None or name in numbers:
            continue
        if name in names:
            numbers[name] = np.arange(start, start + value.size, dtype=np.float64).reshape(value.shape)
            start += value.size
        elif value.data is None:
            raise GraphError(f"{node} needs its input {name!r} to be constant")
        elif node.operator == "Pad" and index == 2:
            fill, numbers[name] = literal(value.data.item()), np.zeros(value.shape)
        else:
            numbers[name] = value.data
    made = zip(node.outputs, evaluate(node, numbers, opset), strict=True)
    return {name: array.ravel().astype(np.int64) - 1 for name, array in made if name}, fill


def runs(indices: Indices, sizes: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """(source, its first element, where that goes, how many) of elements that stay together. Source -1: the fill."""
    first = np.cumsum([0, *sizes])
    apart = np.diff(indices) != (indices[1:] != NOWHERE)
    cuts = [0, *(np.flatnonzero(apart | np.isin(indices[1:], first)) + 1), len(indices)]
    found = []
    for start, stop in itertools.pairwise(cuts):
        if stop > start:
            source = int(np.searchsorted(first, indices[start], side="right")) - 1
            begin = int(indices[start] - first[source]) if source >= 0 else 0
            found.append((source, begin, int(start), int(stop - start)))
    return found


def lookup(node: Node, values: Sequence[Value | None], result: Value) -> Callable[[str, str, str], list[str]]:
    """(data, indices, result: C arrays) -> C. Of an index that is not there comes NaN, so that the step is refused."""
    data, index = values[0], values[1]
    assert data is not None
    assert index is not None
    axis = int(node.attributes.get("axis", 0))
    if node.operator == "Gather":
        return _gather(data, index, axis % len(data.shape), result)
    if node.operator == "GatherElements":
        return _gather_elements(data, axis % len(data.shape), result)
    return _gather_nd(node, data, index, result)


def _gather(data: Value, index: Value, axis: int, result: Value) -> Callable[[str, str, str], list[str]]:
    inner = int(np.prod(data.shape[axis + 1 :], dtype=np.int64))
    length, count = data.shape[axis], index.size
    at = f"i / {inner} % {count}" if inner > 1 else f"i % {count}"
    return lambda x, k, y: [
        f"for (int i = 0; i < {result.size}; ++i) {{",
        f"    const int at = policy_index((float){k}[{at}], {length});",
        f"    {y}[i] = at < 0 ? POLICY_NAN : {x}[(i / {inner * count} * {length} + at) * {inner} + i % {inner}];",
        "}",
    ]


def _gather_elements(data: Value, axis: int, result: Value) -> Callable[[str, str, str], list[str]]:
    terms, block, stride = [], 1, 1
    for k in reversed(range(len(data.shape))):
        if k != axis:
            terms.append(f"i / {block} % {result.shape[k]} * {stride}")
        else:
            own = stride
        block *= result.shape[k]
        stride *= data.shape[k]
    place = " + ".join([f"at * {own}", *terms])
    return lambda x, k, y: [
        f"for (int i = 0; i < {result.size}; ++i) {{",
        f"    const int at = policy_index((float){k}[i], {data.shape[axis]});",
        f"    {y}[i] = at < 0 ? POLICY_NAN : {x}[{place}];",
        "}",
    ]


def _gather_nd(node: Node, data: Value, index: Value, result: Value) -> Callable[[str, str, str], list[str]]:
    """Every index is a row of numbers, one per axis from `batch_dims` on."""
    batch, depth = int(node.attributes.get("batch_dims", 0)), index.shape[-1]
    shape = data.shape[batch : batch + depth]
    inner = int(np.prod(data.shape[batch + depth :], dtype=np.int64))
    rows = int(np.prod(index.shape[batch:-1], dtype=np.int64))

    def lines(x: str, k: str, y: str) -> list[str]:
        made = [
            f"for (int row = 0; row < {index.size // max(depth, 1)}; ++row) {{",
            f"    int place = row / {rows}, lost = 0;",
        ]
        for axis, length in enumerate(shape):
            made.append(f"    const int at_{axis} = policy_index((float){k}[row * {depth} + {axis}], {length});")
            made.append(f"    place = place * {length} + at_{axis}, lost |= at_{axis} < 0;")
        put = f"{y}[row * {inner} + i] = lost ? POLICY_NAN : {x}[place * {inner} + i];"
        return [*made, f"    for (int i = 0; i < {inner}; ++i) {put}", "}"]

    return lines
