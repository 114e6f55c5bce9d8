"""Convolutions and pools in C: what slides over an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.codegen.onnx_graph import GraphError, Node


@dataclass(frozen=True)
class Window:
    """What slides over an image (channels, rows, columns); a signal (channels, length) is an image of one row."""

    shape: tuple[int, int, int]
    result: tuple[int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    lead: tuple[int, int]  # padding: rows above, columns left of the image
    trail: tuple[int, int]  # rows below, columns right of it

    def loops(self, x: str) -> tuple[list[str], str, str]:
        """Loops over what the kernel sees at (channel, row, column), whether that is outside, and its element."""
        (_, height, width), (rows, columns) = self.shape, self.kernel
        down, right = (f"* {s} - {lead}" for s, lead in zip(self.stride, self.lead, strict=True))
        (a, b) = (f"++{name}" if d == 1 else f"{name} += {d}" for name, d in zip("ij", self.dilation, strict=True))
        lines = [
            f"for (int i = row {down}, k = 0; k < {rows}; {a}, ++k)",
            f"    for (int j = column {right}, l = 0; l < {columns}; {b}, ++l)",
        ]
        outside = f"i < 0 || i >= {height} || j < 0 || j >= {width}"
        return lines, outside, f"{x}[(channel * {height} + i) * {width} + j]"

    def padded(self) -> str:
        """Whether (i, j) is in the image or its padding: a last window that is only partly there reaches further."""
        bottom, right = (size + pad for size, pad in zip(self.shape[1:], self.trail, strict=True))
        return f"i < {bottom} && j < {right}"


def window(node: Node, source: tuple[int, ...], result: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """How a convolution or a pool slides over (1, C, H, W) or (1, C, L)."""
    attributes = node.attributes
    if len(source) not in (3, 4):
        raise GraphError(f"{node} slides over {len(source) - 2} dimensions; one or two are supported")
    rank = len(kernel)
    flat = (1,) * (4 - len(source))
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    lead, trail = pads[:rank], pads[rank:]
    auto = attributes.get("auto_pad", b"NOTSET")
    if auto == b"VALID":
        lead = trail = [0] * rank
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):  # as many as are missing, the odd one behind or in front
        reach = [(k - 1) * int(d) + 1 for k, d in zip(kernel, dilations, strict=True)]
        steps = zip(result[2:], strides, reach, source[2:], strict=True)
        missing = [max(0, (made - 1) * int(stride) + seen - given) for made, stride, seen, given in steps]
        lead = [(m + (auto == b"SAME_LOWER")) // 2 for m in missing]
        trail = [m - first for m, first in zip(missing, lead, strict=True)]
    none = (0,) * len(flat)
    rows, columns = (*flat, *source[2:])
    made = (*flat, *result[2:])
    return Window(
        (source[1], rows, columns),
        (result[1], made[0], made[1]),
        _pair(flat, kernel),
        _pair(flat, strides),
        _pair(flat, dilations),
        _pair(none, lead),
        _pair(none, trail),
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
    edges = bool(node.attributes.get("count_include_pad", 0))
    cut = bool(node.attributes.get("ceil_mode", 0))  # the last windows may reach beyond the padding
    whole = edges and not cut
    count = f"{view.kernel[0] * view.kernel[1]}.0f" if whole else "count"
    first = "-3.40282347e38f" if most else "0.0f" if whole else "0.0f, count = 0.0f"
    update = f"value = {element} > value ? {element} : value;" if most else f"value += {element};"
    inner = [f"if (!({outside})) {update}"]
    if not most and not whole:
        inner = [f"if (!({outside})) {update[:-1]}, count += 1.0f;"]
    if not most and edges and cut:
        inner = [
            "{",
            *(f"    {line}" for line in (f"if (!({outside})) {update}", f"if ({view.padded()}) count += 1.0f;")),
        ]
        inner.append("}")
    channels, rows, columns = view.result
    return [
        f"for (int channel = 0; channel < {channels}; ++channel)",
        f"    for (int row = 0; row < {rows}; ++row)",
        f"        for (int column = 0; column < {columns}; ++column) {{",
        f"            float value = {first};",
        *(f"            {line}" for line in loops),
        *(f"                    {line}" for line in inner),
        f"            {y}[(channel * {rows} + row) * {columns} + column] = value{'' if most else f' / {count}'};",
        "        }",
    ]
