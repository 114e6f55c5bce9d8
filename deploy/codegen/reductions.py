"""Operators along axes in C: sums, extrema and where they are, softmax, running sums, the largest few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deploy.codegen.onnx_graph import GraphError, Node

# How a total begins, what element {0} makes of it, and what it becomes in the end. {1}: the number of elements.
TOTALS = {
    "ReduceL1": ("0.0f", "total + ({0} < 0.0f ? -{0} : {0})", "total"),
    "ReduceL2": ("0.0f", "total + {0} * {0}", "policy_sqrt(total)"),
    "ReduceMax": ("{0}", "({0} > total || {0} != {0} ? {0} : total)", "total"),
    "ReduceMean": ("0.0f", "total + {0}", "total / {1}.0f"),
    "ReduceMin": ("{0}", "({0} < total || {0} != {0} ? {0} : total)", "total"),
    "ReduceProd": ("1.0f", "total * {0}", "total"),
    "ReduceSum": ("0.0f", "total + {0}", "total"),
    "ReduceSumSquare": ("0.0f", "total + {0} * {0}", "total"),
    "ReduceLogSum": ("0.0f", "total + {0}", "policy_log(total)"),
}
TOTALS["ReduceLogSumExp"] = ("0.0f", "", "")  # written by hand: less the largest
TOTALS |= {"GlobalAveragePool": TOTALS["ReduceMean"], "GlobalMaxPool": TOTALS["ReduceMax"]}
WHOLE = {"ReduceL1", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"}
ALONG = {"ArgMax", "ArgMin", "CumSum", "LogSoftmax", "Softmax", "TopK"}  # one axis


@dataclass(frozen=True)
class Line:
    """`count` lines of `length` elements, each `stride` from the last; between whole blocks of lines lie `block`s."""

    count: int
    length: int
    stride: int

    @classmethod
    def of(cls, node: Node, shape: tuple[int, ...], axes: Sequence[int]) -> Line:
        """Along neighbouring axes of an array in memory."""
        chosen = sorted(int(axis) % len(shape) for axis in axes)
        if not chosen or chosen != list(range(chosen[0], chosen[-1] + 1)):
            raise GraphError(f"{node} works along the axes {chosen} of {len(shape)}, which are no neighbours")
        stride = int(np.prod(shape[chosen[-1] + 1 :], dtype=np.int64))
        return cls(
            int(np.prod(shape[: chosen[0]], dtype=np.int64)) * stride,
            int(np.prod(shape[chosen[0] : chosen[-1] + 1], dtype=np.int64)),
            stride,
        )

    def at(self, array: str, k: str, length: int | None = None) -> str:
        """Element k of line i; `length` of an array whose lines are shorter."""
        length = self.length if length is None else length
        if self.stride == 1:
            return f"{array}[i * {length} + {k}]"
        return f"{array}[i / {self.stride} * {length * self.stride} + i % {self.stride} + ({k}) * {self.stride}]"

    def each(self, body: Sequence[str]) -> list[str]:
        """A loop over the lines."""
        return [f"for (int i = 0; i < {self.count}; ++i) {{", *(f"    {line}" for line in body), "}"]


def reduction(node: Node, x: str, y: str, line: Line, whole: bool) -> list[str]:
    """One number per line; `whole`: of whole numbers, which a mean is, too."""
    if node.operator == "ReduceLogSumExp":
        body = [*_largest(line, x), f"for (int k = 0; k < {line.length}; ++k)"]
        body += [f"    total += policy_exp({line.at(x, 'k')} - most);", f"{y}[i] = most + policy_log(total);"]
        return line.each(body)
    begin, step, end = TOTALS[node.operator]
    first = "1" if "{0}" in begin else "0"
    if whole and node.operator not in WHOLE:
        raise GraphError(f"{node} computes with whole numbers; cast to float32 first")
    end = f"policy_towards_zero({end})" if whole and node.operator == "ReduceMean" else end
    body = [
        f"float total = {begin.format(line.at(x, '0'))};",
        f"for (int k = {first}; k < {line.length}; ++k) {{",
        f"    const float value = {line.at(x, 'k')};",
        f"    total = {step.format('value')};",
        "}",
        f"{y}[i] = {end.format('', line.length)};",
    ]
    return line.each(body)


def _largest(line: Line, x: str) -> list[str]:
    element = line.at(x, "k")
    return [
        f"float most = {line.at(x, '0')}, total = 0.0f;",
        f"for (int k = 1; k < {line.length}; ++k) most = {element} > most ? {element} : most;",
    ]


def along(node: Node, line: Line, x: str, results: Sequence[str], size: int) -> list[str]:
    """As long as before, a few of them, or where one is. `results`: C arrays, `size`: of the first."""
    y = results[0]
    if node.operator in ("Softmax", "LogSoftmax"):
        return _softmax(node, line, x, y)
    if node.operator == "CumSum":
        return _running(node, line, x, y)
    if node.operator == "TopK":
        return _top(node, line, x, results, size)
    sign = ">" if node.operator == "ArgMax" else "<"
    sign += "=" if node.attributes.get("select_last_index", 0) else ""
    element = line.at(x, "k")
    body = [
        "int best = 0;",
        f"for (int k = 1; k < {line.length}; ++k) best = {element} {sign} {line.at(x, 'best')} ? k : best;",
        f"{y}[i] = (float)best;",
    ]
    return line.each(body)


def _softmax(node: Node, line: Line, x: str, y: str) -> list[str]:
    each, element, made = f"for (int k = 0; k < {line.length}; ++k)", line.at(x, "k"), line.at(y, "k")
    body = [*_largest(line, x)]
    if node.operator == "LogSoftmax":
        body += [f"{each} total += policy_exp({element} - most);", "total = policy_log(total);"]
        return line.each([*body, f"{each} {made} = {element} - most - total;"])  # their difference first: exact
    body += [each, f"    total += {made} = policy_exp({element} - most);", f"{each} {made} /= total;"]
    return line.each(body)


def _running(node: Node, line: Line, x: str, y: str) -> list[str]:
    k = f"{line.length - 1} - k" if node.attributes.get("reverse", 0) else "k"
    add, keep = f"total += {line.at(x, k)};", f"{line.at(y, k)} = total;"
    body = (keep, add) if node.attributes.get("exclusive", 0) else (add, keep)
    return line.each(["float total = 0.0f;", f"for (int k = 0; k < {line.length}; ++k) {{ {' '.join(body)} }}"])


def _top(node: Node, line: Line, x: str, results: Sequence[str], size: int) -> list[str]:
    """Sorted by insertion; of equal ones the first comes first."""
    wanted = size // max(line.count, 1)
    sign = ">" if node.attributes.get("largest", 1) else "<"
    values, places = results
    body = [
        f"for (int k = 0; k < {line.length}; ++k) {{",
        f"    const float value = {line.at(x, 'k')};",
        f"    int to = k < {wanted} ? k : {wanted};",
        f"    for (; to > 0 && value {sign} {line.at(values, 'to - 1', wanted)}; --to)",
        f"        if (to < {wanted}) {{",
        f"            {line.at(values, 'to', wanted)} = {line.at(values, 'to - 1', wanted)};",
        f"            {line.at(places, 'to', wanted)} = {line.at(places, 'to - 1', wanted)};",
        "        }",
        f"    if (to < {wanted}) {line.at(values, 'to', wanted)} = value, {line.at(places, 'to', wanted)} = (float)k;",
        "}",
    ]
    return line.each(body)
