"""How the generated C stores the weights of its matrix-vector products: as they are, as float16, or as int8.

With int8 the inputs of products are rounded to 16 bits, as they come: with a scale of their own at every call. W8A8
rounds them to 8 bits between hidden layers (deploy.codegen.rounded).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.onnx_graph import Graph, GraphError, Node
from deploy.codegen.operators import DENSE
from deploy.codegen.rounded.plan import LONG, ROUNDED, SHORT, planned
from deploy.codegen.rounded.tanh import BITS8, BITS16, LARGEST

Floats = NDArray[np.float32]
MOST, MOST_INPUT, MOST_SUM = 127, 2**15 - 1, 2**31 - 1  # of an int8, an int16, an int32


def blocks(outputs: int) -> tuple[int, int]:
    """How many blocks of eight and of four outputs hold `outputs`."""
    eights, rest = divmod(outputs, 8)
    return (eights, 1) if 0 < rest <= 4 else (eights + (rest > 0), 0)


def padded(outputs: int) -> int:
    """The number of outputs that a product writes at most."""
    eights, fours = blocks(outputs)
    return 8 * eights + 4 * fours


def words(inputs: int) -> int:
    """The number of words that hold the inputs of an int8 product, two to a word."""
    return 2 * -(-inputs // 4)


def pack(node: Node, weight: Floats, bias: Floats) -> Floats:
    """The order in which `policy_dense` reads W (out, in) and b (out,): per block the biases, then per input a row."""
    outputs, inputs = weight.shape
    columns = np.zeros((inputs + 1, padded(outputs)), np.float32)
    columns[0, :outputs], columns[1:, :outputs] = bias, weight.T
    eights, fours = blocks(outputs)
    parts = [columns[:, 8 * k : 8 * k + 8] for k in range(eights)] + [columns[:, 8 * eights :]] * fours
    return np.concatenate([np.ravel(part) for part in parts])


def pack_halves(node: Node, weight: Floats, bias: Floats) -> NDArray[np.uint32]:
    """The same as float16, two to a word."""
    packed = pack(node, weight, bias)
    with np.errstate(over="ignore"):
        rounded = packed.astype("<f2")
    if not np.isfinite(rounded).all():
        raise GraphError(f"{node} has a weight of {np.abs(packed).max():g}, too large for float16")
    return rounded.view("<u4")


def quantised(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """W (out, in) as int8 (out, in) and a scale per output (out,)."""
    scale = (np.abs(weight).max(axis=1).clip(1e-30) / MOST).astype(np.float32)
    return np.rint(weight / scale[:, None]).clip(-MOST, MOST).astype(np.int8), scale


def _in_words(
    weight: Floats, bias: Floats, width: int, word: Callable[[NDArray[np.int8]], NDArray[Any]]
) -> NDArray[np.uint32]:
    """Per `width` outputs biases, scales, then a word each per four inputs (..., 4), which `word` makes bytes of."""
    whole, scale = quantised(weight)
    outputs, inputs = weight.shape
    many, groups = -(-outputs // width), words(inputs) // 2
    table = np.zeros((width * many, 4 * groups), np.int8)
    table[:outputs, :inputs] = whole
    ordered = word(table.reshape(many, width, groups, 4)).transpose(0, 2, 1, 3)
    numbers = np.zeros((2, width * many), "<f4")
    numbers[:, :outputs] = bias, scale
    head = numbers.reshape(2, many, width).transpose(1, 0, 2).reshape(many, 2 * width).view("<u4")
    return np.concatenate([head, np.ascontiguousarray(ordered).view("<u4").reshape(many, -1)], axis=1).ravel()


def pack_bytes(node: Node, weight: Floats, bias: Floats) -> NDArray[np.uint32]:
    """What `policy_dense_int8` reads. In a word the inputs have the order 0, 2, 1, 3."""
    return _in_words(weight, bias, 4, lambda table: table[..., [0, 2, 1, 3]])


def pack_halves_of_bytes(node: Node, weight: Floats, bias: Floats) -> NDArray[np.uint32]:
    """What `policy_dense_w8a8` reads. A word has two signed halves, w0 + 256 w1 and w2 + 256 w3."""

    def word(table: NDArray[np.int8]) -> NDArray[Any]:
        wide = table.astype("<i2")
        return wide[..., ::2] + np.int16(256) * wide[..., 1::2]

    return _in_words(weight, bias, 8, word)


def as_halves(node: Node, index: int, value: NDArray[Any]) -> NDArray[Any]:
    """What input number `index` of `node` becomes when weights are stored as float16."""
    if node.operator not in DENSE or index == 0:
        return value
    with np.errstate(over="ignore"):
        return value.astype(np.float16).astype(np.float32)


def as_bytes(node: Node, index: int, value: NDArray[Any]) -> NDArray[Any]:
    """What it becomes when weights are stored as int8. A convolution rounds finer: per patch, not per image."""
    if node.operator not in DENSE or index > 1:
        return value
    if index == 0:
        axes = None if node.operator == "Conv" else -1
        limit = min(MOST_INPUT, MOST_SUM // (MOST * value.shape[-1])) if axes else MOST_INPUT
        step = np.abs(value).max(axis=axes, keepdims=True).clip(1e-30) / np.float32(limit)
        rounded: NDArray[Any] = np.rint(value / step) * step
        return rounded
    rows = value if node.operator == "Conv" or node.attributes.get("transB", 0) else value.T
    whole, scale = quantised(rows.reshape(len(rows), -1))
    restored = (whole * scale[:, None]).reshape(rows.shape)
    return restored if rows is value else restored.T


def as_bytes_both(node: Node, index: int, value: NDArray[Any]) -> NDArray[Any]:
    """What it becomes when inputs are rounded as `planned`, in the same steps as in C. Of convolutions as `as_bytes`."""
    how = node.attributes.get(ROUNDED, LONG)
    if node.operator not in DENSE or index != 0 or how == LONG:
        return as_bytes(node, index, value)
    if how in LARGEST:  # a tanh did it
        return value
    most, limit = np.abs(value).max(axis=-1, keepdims=True).clip(1e-30), np.float32(MOST)
    restored: NDArray[Any] = np.rint(value * (limit / most)) * (most / limit)
    return restored


def unchanged(node: Node, index: int, value: NDArray[Any]) -> NDArray[Any]:
    """What it becomes when weights are stored as they are."""
    return value


@dataclass(frozen=True)
class Format:
    """`call` is the C statement, `pack` (node, W, b) what it reads, `stored` (node, index, input) what that means.

    `tolerance`: of commands' ranges, by which C and `stored` may differ where a value is rounded the other way.
    """

    name: str
    kind: str  # the C type of the packed elements
    call: str
    pack: Callable[[Node, Floats, Floats], NDArray[Any]]
    stored: Callable[[Node, int, NDArray[Any]], NDArray[Any]]
    tolerance: float = 0.0
    plan: Callable[[Graph], Graph] = lambda graph: graph  # what is done to a graph first
    rounds: bool = False  # whether inputs are rounded here, which needs room for them
    width: int = 4  # outputs of a block

    def of(self, node: Node) -> Format:
        """The format of this node's weights."""
        return _W8A8[node.attributes.get(ROUNDED, LONG)] if self.name == "w8a8" else self

    def blocks(self, outputs: int) -> int:
        """How many blocks hold `outputs`."""
        return -(-outputs // self.width)


_BLOCKS = "({y}, {weights}, {x}, {inputs}, {eights}, {fours});"
_ROUNDED = "({y}, {weights}, {rounded}, {inputs}, {blocks}, %s);"
_LONG, _SHORT = "policy_round16({rounded}, {x}, {inputs})", "policy_round8({rounded}, {x}, {inputs})"
_INT8, _BOTH = f"policy_dense_int8{_ROUNDED}", f"policy_dense_w8a8{_ROUNDED}"
FORMATS = {
    "float32": Format("float32", "float", f"policy_dense{_BLOCKS}", pack, unchanged),
    "float16": Format("float16", "uint32_t", f"policy_dense_half{_BLOCKS}", pack_halves, as_halves),
    "int8": Format("int8", "uint32_t", _INT8 % _LONG, pack_bytes, as_bytes, 1e-3, rounds=True),
    "w8a8": Format(
        "w8a8",
        "uint32_t",
        _BOTH % _SHORT,
        pack_halves_of_bytes,
        as_bytes_both,
        1e-2,
        plan=planned,
        rounds=True,
        width=8,
    ),
}
_W8A8 = {
    LONG: FORMATS["int8"],
    SHORT: FORMATS["w8a8"],
    BITS16: replace(FORMATS["int8"], call=_INT8 % f"1.0f / {LARGEST[BITS16]}.0f", rounds=False),
    BITS8: replace(FORMATS["w8a8"], call=_BOTH % f"1.0f / {LARGEST[BITS8]}.0f", rounds=False),
}
