"""What the replacement of an operator is collected in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]


class UnsupportedError(ValueError):
    """Not this form of the operator; the message completes "operator X (node Y) ..."."""


class Parts:
    """Collects the nodes that replace one; every method returns the name of its result."""

    def __init__(self, node: Any, known: Mapping[str, AnyArray]) -> None:
        """`node`: a deploy.codegen.onnx_graph.Node; `known`: those of its inputs that are constant."""
        self.operator, self.name, self.inputs, self._known = node.operator, node.name, node.inputs, known
        self.nodes: list[tuple[str, tuple[str, ...], str, dict[str, Any]]] = []  # operator, inputs, result, attributes
        self.constants: dict[str, AnyArray] = {}

    def add(self, operator: str, *inputs: str, to: str | None = None, **attributes: Any) -> str:
        """One node with one output."""
        result = to or f"{self.name}/{operator}_{len(self.nodes)}"
        self.nodes.append((operator, inputs, result, attributes))
        return result

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """A tensor that is known beforehand."""
        name = f"{self.name}/constant_{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(value, dtype)
        return name

    def given(self, index: int) -> str:
        """The name of an input; empty when it was left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def known(self, index: int) -> bool:
        """Whether an input is constant."""
        return self.given(index) in self._known

    def data(self, index: int) -> AnyArray:
        """An input that must be constant."""
        name = self.given(index)
        if name not in self._known:
            raise UnsupportedError(f"needs its input {index} to be constant")
        return self._known[name]

    def reshape(self, x: str, *shape: int, to: str | None = None) -> str:
        return self.add("Reshape", x, self.constant(shape, np.int64), to=to)

    def columns(self, x: str, start: int, stop: int, axis: int = 1) -> str:
        """The elements start .. stop - 1 along an axis."""
        return self.add("Slice", x, *(self.constant([k], np.int64) for k in (start, stop, axis)))

    def transpose(self, x: str, *order: int, to: str | None = None) -> str:
        return self.add("Transpose", x, to=to, perm=list(order))

    def linear(self, x: str, weight: AnyArray, bias: AnyArray) -> str:
        """x W^T + b."""
        return self.add("Gemm", x, self.constant(weight), self.constant(bias), transB=1)


def only(attributes: Mapping[str, Any], **allowed: Any) -> None:
    """UnsupportedError when an attribute is there and something else."""
    for name, value in allowed.items():
        if attributes.get(name, value) != value:
            raise UnsupportedError(f"has {name} = {attributes[name]!r}; only {value!r} is supported")
