"""Products of any form as products of equally many matrices: MatMul that broadcasts, Gemm, Einsum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from deploy.codegen.lowering.parts import Parts, Shapes, UnsupportedError


def matmul(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Vectors as matrices, one matrix for many as many. A constant matrix on the right stays: it is a layer."""
    x, y = parts.given(0), parts.given(1)
    a, b = shapes[x], shapes[y]
    if parts.known(1) and len(b) == 2 and a:
        return
    left, right = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    if (left, right) == (a, b) == ((*batch, *a[-2:]), (*batch, *b[-2:])):
        return
    made = parts.add("MatMul", _batched(parts, x, left, batch), _batched(parts, y, right, batch))
    rows, columns = left[-2:-1] if len(a) > 1 else (), right[-1:] if len(b) > 1 else ()
    parts.reshape(made, *batch, *rows, *columns, to=outputs[0])


def _batched(parts: Parts, x: str, shape: tuple[int, ...], batch: tuple[int, ...]) -> str:
    matrix = parts.reshape(x, *(1,) * (len(batch) + 2 - len(shape)), *shape)
    return parts.add("Expand", matrix, parts.constant((*batch, *shape[-2:]), np.int64))


def gemm(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """alpha A B + beta C where B or C is computed, or A is turned."""
    bias = parts.given(2)
    if parts.known(1) and (not bias or parts.known(2)) and not attributes.get("transA", 0):
        return
    x, y = parts.given(0), parts.given(1)
    x = parts.transpose(x, 1, 0) if attributes.get("transA", 0) else x
    y = parts.transpose(y, 1, 0) if attributes.get("transB", 0) else y
    alpha, beta = (parts.constant(attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if not bias:
        parts.add("Mul", parts.add("MatMul", x, y), alpha, to=outputs[0])
        return
    product = parts.add("Mul", parts.add("MatMul", x, y), alpha)
    parts.add("Add", product, parts.add("Mul", bias, beta), to=outputs[0])


def einsum(parts: Parts, attributes: Mapping[str, Any], outputs: list[str], shapes: Shapes) -> None:
    """Operand by operand from the left: sum what only one has, then one product of matrices per pair."""
    equation = attributes["equation"].decode().replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    letters = terms.replace(",", "")
    if not arrow or not letters.isalpha() or any(len(set(term)) != len(term) for term in [*operands, result]):
        raise UnsupportedError(
            f"has the equation {equation[:80]!r}; each letter once per term, and one ->, is supported"
        )
    sizes: dict[str, int] = {}
    for term, name in zip(operands, parts.inputs, strict=True):
        for label, size in zip(term, shapes[name], strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    names = [
        name
        if shapes[name] == tuple(sizes[label] for label in term)
        else parts.add("Expand", name, parts.constant([sizes[label] for label in term], np.int64))
        for term, name in zip(operands, parts.inputs, strict=True)
    ]
    term, made = operands[0], names[0]
    for index, (other, name) in enumerate(zip(operands[1:], names[1:], strict=True), 2):
        later = set(result).union(*operands[index:])
        term, made = _pair(parts, (term, made), (other, name), later, sizes)
    term, made = _summed(parts, term, made, set(result))
    parts.transpose(made, *(term.index(label) for label in result), to=outputs[0])


def _summed(parts: Parts, term: str, name: str, wanted: set[str]) -> tuple[str, str]:
    """Without the labels that nobody wants."""
    gone = [axis for axis, label in enumerate(term) if label not in wanted]
    if not gone:
        return term, name
    made = parts.add("ReduceSum", name, parts.constant(gone, np.int64), keepdims=0)
    return "".join(label for label in term if label in wanted), made


def _pair(
    parts: Parts, left: tuple[str, str], right: tuple[str, str], later: set[str], sizes: Mapping[str, int]
) -> tuple[str, str]:
    """(labels, name) of the product of two operands."""
    (a, x), (b, y) = _summed(parts, *left, later | set(right[0])), _summed(parts, *right, later | set(left[0]))
    batch = [label for label in a if label in b and label in later]
    summed = [label for label in a if label in b and label not in later]
    rows, columns = [k for k in a if k not in b], [k for k in b if k not in a]

    def matrices(term: str, name: str, *order: list[str]) -> str:
        turned = parts.transpose(name, *(term.index(label) for group in order for label in group))
        count = [math.prod(sizes[label] for label in group) for group in order]
        return parts.reshape(turned, *(count if batch else count[1:]))

    product = parts.add("MatMul", matrices(a, x, batch, rows, summed), matrices(b, y, batch, summed, columns))
    labels = [*batch, *rows, *columns]
    return "".join(labels), parts.reshape(product, *(sizes[label] for label in labels))
