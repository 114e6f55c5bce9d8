"""How the generated C stores the weights of its matrix-vector products: as they are, as float16, or as int8.

With int8 inputs are rounded, too, as they come, with a scale of their own at every call: to 16 bits, and with w8a8 to
as many as are left when four products take three instructions (deploy.codegen.rounded).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.onnx_graph import Graph, GraphError, Node
from deploy.codegen.operators import DENSE
from deploy.codegen.rounded import halves
from deploy.codegen.rounded.plan import FAST, LIMIT, planned
from deploy.codegen.rounded.steps import MOST, MOST_INPUT, bytes_limit, scale_of, steps_of
from deploy.codegen.rounded.tanh import ONE

Floats = NDArray[np.float32]


def blocks(outputs: int) -> tuple[int, int]:
    """How many blocks of eight and of four outputs hold `outputs`."""
    eights, rest = divmod(outputs, 8)
    return (eights, 1) if 0 < rest <= 4 else (eights + (rest > 0), 0)


def padded(outputs: int) -> int:
    """The number of outputs that a product writes at most."""
    eights, fours = blocks(outputs)
    return 8 * eights + 4 * fours


def rounded_words(inputs: int) -> int:
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
    return np.rint(steps_of(weight)).clip(-MOST, MOST).astype(np.int8), scale_of(weight)


def _in_words(made: NDArray[np.int8], scale: Floats, bias: Floats, width: int) -> NDArray[np.uint32]:
    """Per `width` outputs biases, scales, then of each a word per four inputs; `made`: bytes (out, words, 4)."""
    outputs, groups, _ = made.shape
    many = -(-outputs // width)
    table = np.zeros((many * width, groups, 4), np.int8)
    table[:outputs] = made
    numbers = np.zeros((2, many * width), "<f4")
    numbers[:, :outputs] = bias, scale
    head = numbers.reshape(2, many, width).transpose(1, 0, 2).reshape(many, 2 * width).view("<u4")
    rest = table.reshape(many, width, groups, 4).transpose(0, 2, 1, 3)
    return np.concatenate([head, np.ascontiguousarray(rest).view("<u4").reshape(many, -1)], axis=1).ravel()


def pack_bytes(node: Node, weight: Floats, bias: Floats) -> NDArray[np.uint32]:
    """What `policy_dense_int8` reads."""
    whole, scale = quantised(weight)
    filled = np.pad(whole, ((0, 0), (0, -weight.shape[1] % 4)))
    return _in_words(filled.reshape(len(weight), -1, 4), scale, bias, 4)


def pack_halves_of_bytes(node: Node, weight: Floats, bias: Floats) -> NDArray[np.uint32]:
    """What `policy_dense_w8a8` reads: its sums are 256 times as large."""
    return _in_words(halves.bytes_of(weight), scale_of(weight) / np.float32(256.0), bias, 8)


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
        limit = bytes_limit(value.shape[-1]) if axes else MOST_INPUT
        step = np.abs(value).max(axis=axes, keepdims=True).clip(1e-30) / np.float32(limit)
        rounded: NDArray[Any] = np.rint(value / step) * step
        return rounded
    rows = value if node.operator == "Conv" or node.attributes.get("transB", 0) else value.T
    whole, scale = quantised(rows.reshape(len(rows), -1))
    restored = (whole * scale[:, None]).reshape(rows.shape)
    return restored if rows is value else restored.T


def as_bytes_both(node: Node, index: int, value: NDArray[Any]) -> NDArray[Any]:
    """What it becomes as `planned`, in the same steps as in C. Products that are not fast are as with `as_bytes`."""
    if index == 0 and ONE in node.attributes:  # a tanh did it
        return value
    if not node.attributes.get(FAST) or index > 1:
        return as_bytes(node, index, value)
    if index == 0:
        most, limit = np.abs(value).max(axis=-1, keepdims=True).clip(1e-30), np.float32(node.attributes[LIMIT])
        rounded: NDArray[Any] = np.rint(value * (limit / most)) * (most / limit)
        return rounded
    turned = not node.attributes.get("transB", 0)
    sign = np.float32(-1.0 if node.attributes.get("alpha", 1.0) < 0.0 else 1.0)  # weights are rounded with it
    rows = sign * (value.T if turned else value)
    whole = halves.weights_of(halves.bytes_of(rows))[:, : rows.shape[1]]
    restored = sign * (whole * (scale_of(rows) / np.float32(256.0))[:, None]).astype(np.float32)
    return restored.T if turned else restored


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
    width: int = 0  # outputs of a block, if inputs are rounded
    others: str = ""  # the format of products that the plan does not make the fast way, where that is another one

    def of(self, node: Node) -> Format:
        """The format of this node's weights."""
        return FORMATS[self.others] if self.others and not node.attributes.get(FAST) else self

    def rounds(self, node: Node) -> bool:
        """Whether the inputs of this node are rounded for it, which needs room for them."""
        return self.width > 0 and ONE not in node.attributes

    def scale(self, node: Node, inputs: int) -> str:
        """The C expression of the rounded inputs' scale, which rounds them unless a tanh did."""
        if not self.rounds(node):
            return f"1.0f / {node.attributes[ONE]}.0f"
        return f"policy_rounded({{rounded}}, {{x}}, {inputs}, {node.attributes.get(LIMIT, bytes_limit(inputs))}.0f)"


_BLOCKS = "({y}, {weights}, {x}, {inputs}, {eights}, {fours});"
_ROUNDED = "({y}, {weights}, {rounded}, {inputs}, {blocks}, {scale});"
FORMATS = {
    "float32": Format("float32", "float", f"policy_dense{_BLOCKS}", pack, unchanged),
    "float16": Format("float16", "uint32_t", f"policy_dense_half{_BLOCKS}", pack_halves, as_halves),
    "int8": Format("int8", "uint32_t", f"policy_dense_int8{_ROUNDED}", pack_bytes, as_bytes, 1e-3, width=4),
    "w8a8": Format(
        "w8a8",
        "uint32_t",
        f"policy_dense_w8a8{_ROUNDED}",
        pack_halves_of_bytes,
        as_bytes_both,
        3e-3,
        planned,
        8,
        "int8",
    ),
}
