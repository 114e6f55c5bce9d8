"""ONNX operators as C statements.

Three kinds: elementwise operators become one loop for as many as follow each other; moves (Reshape, Split, ...) become
other names for the same memory, or copies; the rest is matrix-vector products and a few loops of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.decompose import MADE_OF_OTHERS
from deploy.codegen.onnx_graph import GraphError, Node, Value

Floats = NDArray[np.float32]

# {0}, {1} ... are the inputs; attributes by name, with the standard's defaults in DEFAULTS.
ELEMENTWISE = {
    "Abs": "({0} < 0.0f ? -{0} : {0})",
    "Add": "{0} + {1}",
    "Cast": "{0}",
    "Div": "{0} / {1}",
    "Elu": "({0} > 0.0f ? {0} : {alpha} * (policy_exp({0}) - 1.0f))",
    "Erf": "policy_erf({0})",
    "Exp": "policy_exp({0})",
    "Greater": "({0} > {1} ? 1.0f : 0.0f)",
    "GreaterOrEqual": "({0} >= {1} ? 1.0f : 0.0f)",
    "HardSigmoid": "policy_clip({alpha} * {0} + {beta}, 0.0f, 1.0f)",
    "HardSwish": "{0} * policy_clip({0} / 6.0f + 0.5f, 0.0f, 1.0f)",
    "LeakyRelu": "({0} > 0.0f ? {0} : {alpha} * {0})",
    "Less": "({0} < {1} ? 1.0f : 0.0f)",
    "LessOrEqual": "({0} <= {1} ? 1.0f : 0.0f)",
    "Max": "({0} > {1} ? {0} : {1})",
    "Min": "({0} < {1} ? {0} : {1})",
    "Mish": "policy_mish({0})",
    "Mul": "{0} * {1}",
    "Neg": "-{0}",
    "PRelu": "({0} < 0.0f ? {1} * {0} : {0})",
    "Reciprocal": "1.0f / {0}",
    "Relu": "({0} < 0.0f ? 0.0f : {0})",
    "Selu": "{gamma} * ({0} > 0.0f ? {0} : {alpha} * (policy_exp({0}) - 1.0f))",
    "Sigmoid": "policy_sigmoid({0})",
    "Sqrt": "policy_sqrt({0})",
    "Sub": "{0} - {1}",
    "Tanh": "policy_tanh({0})",
    "Where": "({0} != 0.0f ? {1} : {2})",
}
DEFAULTS = {
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
}
INPUTS = {"Max": 2, "Min": 2}  # those that the standard allows to have any number
SPECIAL = {"Clip", "Pow"}  # elementwise, but what is written depends on what is constant
MOVES = {
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
}
REDUCTIONS = {"GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean", "ReduceSum", "Softmax"}
POOLS = {"AveragePool", "MaxPool"}
DENSE = {"Conv", "Gemm", "MatMul"}
SUPPORTED = ELEMENTWISE.keys() | SPECIAL | MOVES | REDUCTIONS | POOLS | DENSE | MADE_OF_OTHERS.keys()


def number(value: float | np.floating[Any] | int) -> str:
    """A float32 as a C constant that reads back as the same number."""
    single = np.float32(value)
    if not np.isfinite(single):
        raise GraphError(f"a constant of the graph is {value}")
    text = str(single)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def expression(node: Node, inputs: Sequence[str], values: Sequence[Value | None]) -> str:
    """The C expression of an elementwise operator; `inputs` are the C expressions of its inputs' elements."""
    if node.operator == "Clip":
        return _clip(node, inputs, values)
    if node.operator == "Pow":
        return _power(node, inputs, values)
    if node.operator == "Cast" and node.attributes["to"] != 1:
        raise GraphError(f"{node} casts to something other than float32")
    if len(inputs) != INPUTS.get(node.operator, len(inputs)):
        raise GraphError(f"{node} has {len(inputs)} inputs, only {INPUTS[node.operator]} are supported")
    attributes = {**DEFAULTS.get(node.operator, {}), **node.attributes}
    numbers = {name: number(value) for name, value in attributes.items() if isinstance(value, float)}
    return ELEMENTWISE[node.operator].format(*inputs, **numbers)


def _clip(node: Node, inputs: Sequence[str], values: Sequence[Value | None]) -> str:
    """NaN stays NaN: every comparison with it is false."""
    text = inputs[0]
    for index, sign in ((1, "<"), (2, ">")):
        value = values[index] if index < len(values) else None
        if value is None:
            continue
        if value.data is None or value.size != 1:
            raise GraphError(f"{node} has a limit that is not one constant")
        limit = float(value.data.reshape(()))
        if np.isfinite(limit):
            text = f"({text} {sign} {number(limit)} ? {number(limit)} : {text})"
    return text


def _power(node: Node, inputs: Sequence[str], values: Sequence[Value | None]) -> str:
    exponent = values[1]
    known = {2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", 0.5: "policy_sqrt({0})", 1.0: "{0}"}
    data = None if exponent is None or exponent.data is None else np.unique(exponent.data)
    if data is None or data.size != 1 or float(data[0]) not in known:
        raise GraphError(f"{node} has an exponent that is not one of the constants {', '.join(map(str, known))}")
    return known[float(data[0])].format(inputs[0])


def constant_input(node: Node, values: Sequence[Value | None], index: int) -> Floats | None:
    """An input that must be constant; None when it was left out."""
    value = values[index] if index < len(values) else None
    if value is None:
        return None
    if value.data is None:
        raise GraphError(f"{node} needs its input {index} to be constant")
    return np.asarray(value.data, np.float32)


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


@dataclass(frozen=True)
class Window:
    """What slides over an image (channels, rows, columns); a signal (channels, length) is an image of one row."""

    shape: tuple[int, int, int]
    result: tuple[int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    lead: tuple[int, int]  # rows above, columns left of the image

    def loops(self, x: str) -> tuple[list[str], str, str]:
        """Loops over what the kernel sees at (channel, row, column), whether that is outside, and its element."""
        (_, height, width), (rows, columns) = self.shape, self.kernel
        down, right = (f"* {s} - {lead}" for s, lead in zip(self.stride, self.lead, strict=True))
        lines = [
            f"for (int i = row {down}, k = 0; k < {rows}; ++i, ++k)",
            f"    for (int j = column {right}, l = 0; l < {columns}; ++j, ++l)",
        ]
        outside = f"i < 0 || i >= {height} || j < 0 || j >= {width}"
        return lines, outside, f"{x}[(channel * {height} + i) * {width} + j]"


def window(node: Node, source: tuple[int, ...], result: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """How a convolution or a pool slides over (1, C, H, W) or (1, C, L)."""
    attributes = node.attributes
    plain = (
        len(source) in (3, 4)
        and set(attributes.get("dilations", [1])) == {1}
        and not attributes.get("ceil_mode", 0)
        and attributes.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    )
    if not plain:
        raise GraphError(f"{node} does not slide plainly over a signal or an image (no dilation, ceil_mode or SAME)")
    flat = (1,) * (4 - len(source))
    strides = attributes.get("strides", [1] * len(kernel))
    pads = attributes.get("pads", [0] * 2 * len(kernel))[: len(kernel)]
    rows, columns = (*flat, *source[2:])
    made = (*flat, *result[2:])
    return Window(
        (source[1], rows, columns),
        (result[1], made[0], made[1]),
        _pair(flat, kernel),
        _pair(flat, strides),
        _pair((0,) * len(flat), pads),
    )


def _pair(first: tuple[int, ...], rest: Sequence[int]) -> tuple[int, int]:
    rows, columns = (int(value) for value in (*first, *rest))  # numbers, whatever the file calls them: they are written
    return rows, columns


def convolution(view: Window, x: str, y: str, product: str) -> list[str]:
    """Per pixel of the result: gather what the kernel sees into `patch`, then `product` makes `pixel` of it."""
    loops, outside, element = view.loops(x)
    outputs, rows, columns = view.result
    return [
        f"for (int row = 0; row < {rows}; ++row)",
        f"    for (int column = 0; column < {columns}; ++column) {{",
        "        float *seen = patch;",
        f"        for (int channel = 0; channel < {view.shape[0]}; ++channel)",
        *(f"            {line}" for line in loops),
        f"                    *seen++ = {outside} ? 0.0f : {element};",
        f"        {product}",
        f"        for (int k = 0; k < {outputs}; ++k) {y}[(k * {rows} + row) * {columns} + column] = pixel[k];",
        "    }",
    ]


def pool(node: Node, view: Window, x: str, y: str) -> list[str]:
    """The largest, or the mean, of what the kernel sees; beyond the edge there is nothing, or zeros that count."""
    loops, outside, element = view.loops(x)
    most = node.operator == "MaxPool"
    count = f"{view.kernel[0] * view.kernel[1]}.0f" if node.attributes.get("count_include_pad", 0) else "count"
    first = "-3.40282347e38f" if most else "0.0f, count = 0.0f" if count == "count" else "0.0f"
    more = ", count += 1.0f" if count == "count" else ""
    update = f"value = {element} > value ? {element} : value;" if most else f"value += {element}{more};"
    channels, rows, columns = view.result
    return [
        f"for (int channel = 0; channel < {channels}; ++channel)",
        f"    for (int row = 0; row < {rows}; ++row)",
        f"        for (int column = 0; column < {columns}; ++column) {{",
        f"            float value = {first};",
        *(f"            {line}" for line in loops),
        f"                    if (!({outside})) {update}",
        f"            {y}[(channel * {rows} + row) * {columns} + column] = value{'' if most else f' / {count}'};",
        "        }",
    ]


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


def _sum(x: str, y: str, count: int, inner: int, factor: str) -> list[str]:
    lines = ["float total = 0.0f;", f"for (int k = 0; k < {inner}; ++k) total += {x}[i * {inner} + k];"]
    return [*lines, f"{y}[i] = total{factor};"]


def _max(x: str, y: str, count: int, inner: int) -> list[str]:
    return [
        f"float most = {x}[i * {inner}];",
        f"for (int k = 1; k < {inner}; ++k) most = {x}[i * {inner} + k] > most ? {x}[i * {inner} + k] : most;",
        f"{y}[i] = most;",
    ]


def _softmax(x: str, y: str, count: int, inner: int) -> list[str]:
    return [
        f"float most = {x}[i * {inner}], total = 0.0f;",
        f"for (int k = 1; k < {inner}; ++k) most = {x}[i * {inner} + k] > most ? {x}[i * {inner} + k] : most;",
        f"for (int k = 0; k < {inner}; ++k)",
        f"    total += {y}[i * {inner} + k] = policy_exp({x}[i * {inner} + k] - most);",
        f"for (int k = 0; k < {inner}; ++k) {y}[i * {inner} + k] /= total;",
    ]


def reduction(node: Node, x: str, y: str, shape: tuple[int, ...], axes: Sequence[int]) -> list[str]:
    """A loop over what remains of (shape) when its last axes are reduced."""
    chosen = sorted(axis % len(shape) for axis in axes)
    if not chosen or chosen != list(range(len(shape) - len(chosen), len(shape))):
        raise GraphError(f"{node} reduces the axes {chosen} of {len(shape)}; only the last ones are supported")
    inner = int(np.prod(shape[chosen[0] :]))
    count = int(np.prod(shape[: chosen[0]]))
    write: Callable[..., list[str]] = {"GlobalMaxPool": _max, "ReduceMax": _max, "Softmax": _softmax}.get(
        node.operator, _sum
    )
    factor = [] if write is not _sum else [f" / {inner}.0f" if node.operator != "ReduceSum" else ""]
    body = write(x, y, count, inner, *factor)
    return [f"for (int i = 0; i < {count}; ++i) {{", *(f"    {line}" for line in body), "}"]
