"""Which ONNX operators have C, and products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.elementwise import ELEMENTWISE, SPECIAL
from deploy.codegen.lowering.table import MADE_OF_OTHERS
from deploy.codegen.moves import MOVES
from deploy.codegen.onnx_graph import GraphError, Node, Value
from deploy.codegen.reductions import ALONG, TOTALS

Floats = NDArray[np.float32]

POOLS = {"AveragePool", "MaxPool"}
DENSE = {"Conv", "Gemm", "MatMul"}
SUPPORTED = ELEMENTWISE.keys() | SPECIAL | MOVES.keys() | TOTALS.keys() | ALONG | POOLS | DENSE | MADE_OF_OTHERS.keys()


def constant_input(node: Node, values: Sequence[Value | None], index: int) -> Floats | None:
    """An input that must be constant; None when it was left out."""
    value = values[index] if index < len(values) else None
    if value is None:
        return None
    if value.data is None:
        raise GraphError(f"{node} needs its input {index} to be constant")
    return np.asarray(value.data, np.float32)


def layer(node: Node, values: Sequence[Value | None]) -> bool:
    """Whether it is a product with one constant matrix, which is stored in the order in which it is read."""
    weight = values[1]
    return weight is not None and weight.data is not None and (node.operator == "Conv" or len(weight.shape) == 2)


def matrix(node: Node, values: Sequence[Value | None]) -> tuple[Floats, Floats]:
    """W (out, in) and b (out,) of Gemm, MatMul or Conv (kernels flattened)."""
    weight, bias = constant_input(node, values, 1), constant_input(node, values, 2)
    assert weight is not None
    attributes = node.attributes
    if node.operator == "Conv":
        weight = weight.reshape(len(weight), -1)
    elif weight.ndim != 2 or attributes.get("transA", 0):
        raise GraphError(f"{node} is not a vector times a constant matrix")
    elif not attributes.get("transB", 0):
        weight = weight.T
    if bias is None:
        bias = np.zeros(len(weight), np.float32)
    alpha, beta = np.float32(attributes.get("alpha", 1.0)), np.float32(attributes.get("beta", 1.0))
    return alpha * weight, np.broadcast_to(beta * bias.reshape(-1), (len(weight),))


def multiplication(node: Node, names: tuple[str, str, str], left: tuple[int, ...], right: tuple[int, ...]) -> list[str]:
    """A product of matrices that are both computed: x (..., rows, inner) times y (..., inner, columns)."""
    matrices = node.operator == "MatMul" and min(len(left), len(right)) >= 2
    if not matrices or np.prod(left[:-2]) != np.prod(right[:-2]):
        raise GraphError(f"{node} is neither a product with a constant matrix nor one of equally many matrices")
    (x, y, to), (*batch, rows, inner), columns = names, left, right[-1]
    return [
        f"for (int row = 0; row < {int(np.prod(batch)) * rows}; ++row)",
        f"    for (int column = 0; column < {columns}; ++column) {{",
        "        float total = 0.0f;",
        f"        for (int k = 0; k < {inner}; ++k)",
        f"            total += {x}[row * {inner} + k] * {y}[(row / {rows} * {inner} + k) * {columns} + column];",
        f"        {to}[row * {columns} + column] = total;",
        "    }",
    ]
