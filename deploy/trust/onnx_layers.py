"""The operators that work hardest (products, convolutions, recurrent cells, pools), and the table of all operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from deploy.trust import onnx_shapes as shapes
from deploy.trust.onnx_reader import DTYPES
from deploy.trust.onnx_shapes import Call, Rule, Shape, ShapeError, Value, axis_of, broadcast


def products(call: Call, count: int) -> None:
    """Float32 has fast kernels; the rest is taken to cost sixteen times as much."""
    call.products += count * (1 if call[0].dtype == shapes.FLOAT else 16)


def gemm(call: Call) -> list[Value]:
    a, b = call[0].shape, call[1].shape
    if len(a) != 2 or len(b) != 2:
        raise ShapeError(f"multiplies {a} and {b}")
    a, b = a[:: -1 if call.flag("transA") else 1], b[:: -1 if call.flag("transB") else 1]
    if a[1] != b[0] or (call.has(2) and broadcast(call[2].shape, (a[0], b[1])) != (a[0], b[1])):
        raise ShapeError(f"multiplies {a} and {b}")
    products(call, a[0] * a[1] * b[1])
    return [Value((a[0], b[1]), call[0].dtype)]


def matmul(call: Call) -> list[Value]:
    return [Value(multiplied(call, call[0].shape, call[1].shape), call[0].dtype)]


def multiplied(call: Call, a: Shape, b: Shape) -> Shape:
    """The shape of a product of matrices, or of vectors with them."""
    left, right = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
    if not a or not b or left[-1] != right[-2]:
        raise ShapeError(f"multiplies {a} and {b}")
    lead = broadcast(left[:-2], right[:-2])
    products(call, math.prod(lead) * left[-2] * left[-1] * right[-1])
    return (*lead, *left[-2 : -1 if len(a) > 1 else -2], *(right[-1:] if len(b) > 1 else ()))


def einsum(call: Call) -> list[Value]:
    equation = call.text("equation", "").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if not arrow or not (terms + result).replace(",", "a").isalpha() or len(operands) != len(call.inputs):
        raise ShapeError(f"has the equation {equation[:80]!r}; only letters, commas and one -> are read")
    sizes: dict[str, int] = {}
    for index, labels in enumerate(operands):
        if len(labels) != len(call[index].shape):
            raise ShapeError(f"has {labels!r} for the shape {call[index].shape}")
        for label, count in zip(labels, call[index].shape, strict=True):
            sizes[label] = max(count, sizes.get(label, 1))
    whole = math.prod(sizes.values())
    products(call, whole * len(operands))
    call.scratch = whole * len(operands)
    return [Value(tuple(sizes.get(label, 1) for label in result), call[0].dtype)]


class Window(NamedTuple):
    """What a convolution or a pool sees at once."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    pads: Shape
    auto: str

    @classmethod
    def of(cls, call: Call, kernel: Shape, rank: int) -> Window:
        """From the attributes."""
        ones = (1,) * rank
        strides, dilations = call.integers("strides") or ones, call.integers("dilations") or ones
        pads = call.integers("pads") or (0,) * 2 * rank
        auto = call.text("auto_pad", "NOTSET")
        if not (
            len(kernel) == len(strides) == len(dilations) == rank == len(pads) / 2 > 0
            and min(*kernel, *strides, *dilations) >= 1
            and all(0 <= p <= (k - 1) * d for p, k, d in zip(pads, kernel * 2, dilations * 2, strict=True))
            and auto in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
        ):
            raise ShapeError(f"has the kernel {kernel}, strides {strides}, dilations {dilations} and pads {pads}")
        return cls(kernel, strides, dilations, pads, auto)

    def slid(self, given: Shape, upwards: bool = False) -> Shape:
        """How often it fits, along each axis."""
        made, rank = [], len(given)
        for k, count in enumerate(given):
            reach = (self.kernel[k] - 1) * self.dilations[k] + 1
            if self.auto.startswith("SAME"):
                made.append(-(-count // self.strides[k]))
                continue
            room = count + (self.pads[k] + self.pads[k + rank] if self.auto == "NOTSET" else 0) - reach
            if room < 0:
                raise ShapeError(f"slides a window of {reach} over {count}")
            times = (-(-room // self.strides[k]) if upwards else room // self.strides[k]) + 1
            begins = (times - 1) * self.strides[k]
            late = upwards and begins >= count + (self.pads[k] if self.auto == "NOTSET" else 0)  # sees padding alone
            made.append(times - 1 if late else times)
        return tuple(made)


def conv(call: Call) -> list[Value]:
    return [Value(convolved(call, call[0].shape, call[1].shape), call[0].dtype)]


def convolved(call: Call, x: Shape, w: Shape) -> Shape:
    """The shape of what kernels make of pictures."""
    group = call.integer("group", 1)
    if len(x) < 3 or len(w) != len(x) or group < 1 or w[1] * group != x[1] or w[0] % group:
        raise ShapeError(f"takes {x} with kernels of {w} in {group} groups")
    window = Window.of(call, call.integers("kernel_shape") or w[2:], len(x) - 2)
    if window.kernel != w[2:]:
        raise ShapeError(f"says kernel_shape {window.kernel} of kernels of {w}")
    made = (x[0], w[0], *window.slid(x[2:]))
    seen = math.prod(made[2:]) * math.prod(w[1:])
    products(call, x[0] * seen * w[0] + 4000 * group * x[0])
    call.scratch = min(seen, 2**18) + math.prod(w)
    return made


def conv_transpose(call: Call) -> list[Value]:
    x, w, group = call[0].shape, call[1].shape, call.integer("group", 1)
    rank = len(x) - 2
    if (
        rank < 1
        or len(w) != len(x)
        or group < 1
        or w[0] != x[1]
        or w[0] % group
        or "output_shape" in call.node.attributes
    ):
        raise ShapeError(f"takes {x} with kernels of {w} in {group} groups")
    window = Window.of(call, call.integers("kernel_shape") or w[2:], rank)
    more = call.integers("output_padding") or (0,) * rank
    if window.auto != "NOTSET" or window.kernel != w[2:] or len(more) != rank or min(more) < 0 or max(more) > 64:
        raise ShapeError(f"has auto_pad {window.auto}, kernel_shape {window.kernel} and output_padding {more}")
    made = [
        (x[2 + k] - 1) * window.strides[k]
        + (window.kernel[k] - 1) * window.dilations[k]
        + 1
        + more[k]
        - window.pads[k]
        - window.pads[k + rank]
        for k in range(rank)
    ]
    if min(made) < 1:
        raise ShapeError(f"makes {tuple(made)} of {x}")
    call.scratch = math.prod(x[2:]) * math.prod(w[1:])
    products(call, math.prod(x) * math.prod(w[1:]) + 30 * x[0] * call.scratch + 4000 * group * x[0])
    return [Value((x[0], w[1] * group, *made), call[0].dtype)]


def pool(call: Call) -> list[Value]:
    x, kernel = call[0].shape, call.integers("kernel_shape")
    if len(x) < 3 or not kernel:
        raise ShapeError(f"takes {x} with the kernel {kernel}")
    window = Window.of(call, kernel, len(x) - 2)
    made = (*x[:2], *window.slid(x[2:], call.flag("ceil_mode")))
    call.products = math.prod(made) * math.prod(kernel) * 25.0
    return [Value(made, call[0].dtype), Value(made, shapes.INT64)]


def global_pool(call: Call) -> list[Value]:
    return [Value((*call[0].shape[:2], *(1 for _ in call[0].shape[2:])), call[0].dtype)]


def recurrent(call: Call) -> list[Value]:
    x, w, r = (call[k].shape for k in range(3))
    if len(x) != 3 or len(w) != 3 or len(r) != 3 or r[0] != w[0] or r[1] != w[1] or call.integer("layout", 0):
        raise ShapeError(f"takes {x} with weights of {w} and {r}, layout {call.integer('layout', 0)}")
    if w[2] != x[2] or call.integer("hidden_size", r[2]) != r[2] or r[1] % max(r[2], 1):
        raise ShapeError(f"takes {x} with weights of {w} and {r}")
    steps, n, directions, hidden = x[0], x[1], w[0], r[2]
    products(call, steps * n * directions * w[1] * (w[2] + hidden))
    call.scratch = 4 * steps * n * directions * w[1]
    last = Value((directions, n, hidden), call[0].dtype)
    return [Value((steps, directions, n, hidden), call[0].dtype), last, last][
        : 3 if call.node.operator == "LSTM" else 2
    ]


def normalised(call: Call) -> list[Value]:
    """LayerNormalization also offers means and deviations."""
    axis = axis_of(call.integer("axis", -1), len(call[0].shape))
    kept = tuple(s if k < axis else 1 for k, s in enumerate(call[0].shape))
    return [Value(call[0].shape, call[0].dtype), Value(kept), Value(kept)]


def resize(call: Call) -> list[Value]:
    given = call[0].shape
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    axes = shapes.axes_of(call.integers("axes") or range(len(given)), len(given))
    mode = call.text("coordinate_transformation_mode", "half_pixel")
    if policy != "stretch" or mode == "tf_crop_and_resize" or call.flag("antialias"):
        raise ShapeError(f"has {policy=} and {mode=}, or antialias, which are not read")
    if call.has(3) and call[3].shape != (0,):
        sizes = [int(k) for k in call.known(3, "sizes")]
    else:
        scales = [float(k) for k in call.known(2, "scales")]
        if len(scales) != len(axes) or not all(0.0 < k < 1e6 for k in scales):
            raise ShapeError(f"has the scales {scales[:8]} for {given}")
        sizes = [math.floor(given[axis] * k) for axis, k in zip(axes, scales, strict=True)]
    made = list(given)
    if len(sizes) != len(axes) or min(sizes, default=1) < 1:
        raise ShapeError(f"makes {sizes[:8]} of {given}")
    for axis, count in zip(axes, sizes, strict=True):
        made[axis] = count
    call.products = math.prod(made) * 4000.0
    call.scratch = 8 * sum(made)
    return [Value(tuple(made), call[0].dtype)]


def blocks(call: Call) -> list[Value]:
    x, block = call[0].shape, call.integer("blocksize", 0)
    if len(x) != 4 or not 1 <= block <= 1024:
        raise ShapeError(f"takes {x} in blocks of {block}")
    n, c, h, w = x
    deep = call.node.operator == "SpaceToDepth"
    if (h % block or w % block) if deep else c % block**2:
        raise ShapeError(f"takes {x} in blocks of {block}")
    made = (n, c * block**2, h // block, w // block) if deep else (n, c // block**2, h * block, w * block)
    return [Value(made, call[0].dtype)]


BYTE, SUM = DTYPES[2], DTYPES[6]


def scales(call: Call, places: Sequence[int], lengths: Sequence[int]) -> None:
    """That scales and zero points at these places are one number, or one for each of so many."""
    for k in places:
        if call.has(k) and call[k].size != 1 and call[k].shape not in [(n,) for n in lengths]:
            raise ShapeError(f"has {call[k].shape} scales or zero points")


def quantise(call: Call) -> list[Value]:
    scales(call, (1, 2), call[0].shape)
    kind = shapes.element_type(call, call.integer("output_dtype", 0) or 2)
    return [Value(call[0].shape, call[2].dtype if call.has(2) else kind)]


def dequantise(call: Call) -> list[Value]:
    scales(call, (1, 2), call[0].shape)
    return [Value(call[0].shape, call[1].dtype)]


def quantise_as_it_is(call: Call) -> list[Value]:
    return [Value(call[0].shape, BYTE), Value(()), Value((), BYTE)]


def multiply_bytes(call: Call) -> list[Value]:
    scales(call, (2, 3), call[0].shape[-2:] + call[1].shape[-1:])
    return [Value(multiplied(call, call[0].shape, call[1].shape), SUM)]


def convolve_bytes(call: Call) -> list[Value]:
    scales(call, (2, 3), call[1].shape[:1])
    return [Value(convolved(call, call[0].shape, call[1].shape), SUM)]


def multiply_to_bytes(call: Call) -> list[Value]:
    scales(call, (1, 2, 4, 5, 6, 7), call[0].shape[-2:] + call[3].shape[-1:])
    return [Value(multiplied(call, call[0].shape, call[3].shape), call[7].dtype)]


def convolve_to_bytes(call: Call) -> list[Value]:
    scales(call, (1, 2, 4, 5, 6, 7), call[3].shape[:1])
    if call.has(8) and call[8].shape != call[3].shape[:1]:
        raise ShapeError(f"has a bias of {call[8].shape} for kernels of {call[3].shape}")
    return [Value(convolved(call, call[0].shape, call[3].shape), call[7].dtype)]


class Operator(NamedTuple):
    """Its rule; and nanoseconds per element of its inputs and outputs, on a small computer."""

    rule: Rule
    cost: float


MOVED, ADDED, CURVED, STREWN = 8.0, 8.0, 30.0, 40.0  # ns: copied; added, compared; exp, tanh and the like; by index
PACKED = 4.0  # ns: read and packed, beside what is multiplied


def _table() -> dict[str, Operator]:
    rules: dict[Rule, tuple[float, str]] = {
        shapes.same: (ADDED, "Abs Neg Floor Ceil Sign Relu Clip Reciprocal Not LeakyRelu ThresholdedRelu Shrink"),
        shapes.test: (ADDED, "IsNaN IsInf"),
        shapes.identity: (MOVED, "Identity"),
        shapes.dropout: (MOVED, "Dropout"),
        shapes.elementwise: (ADDED, "Add Sub Mul Min Max Mean Sum PRelu"),
        shapes.divide: (ADDED, "Div"),
        shapes.compare: (ADDED, "Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor"),
        shapes.where: (ADDED, "Where"),
        shapes.cast: (ADDED, "Cast"),
        shapes.cast_like: (ADDED, "CastLike"),
        shapes.constant: (MOVED, "Constant"),
        shapes.constant_of_shape: (MOVED, "ConstantOfShape"),
        shapes.shape: (0.0, "Shape"),
        shapes.size: (0.0, "Size"),
        shapes.reshape: (MOVED, "Reshape"),
        shapes.flatten: (MOVED, "Flatten"),
        shapes.squeeze: (MOVED, "Squeeze"),
        shapes.unsqueeze: (MOVED, "Unsqueeze"),
        shapes.transpose: (MOVED, "Transpose"),
        shapes.concat: (MOVED, "Concat"),
        shapes.split: (MOVED, "Split"),
        shapes.sliced: (MOVED, "Slice"),
        shapes.gather: (STREWN, "Gather"),
        shapes.gather_nd: (STREWN, "GatherND"),
        shapes.gather_elements: (STREWN, "GatherElements"),
        shapes.expand: (MOVED, "Expand"),
        shapes.tile: (MOVED, "Tile"),
        shapes.pad: (MOVED, "Pad"),
        shapes.value_range: (MOVED, "Range"),
        shapes.one_hot: (STREWN, "OneHot"),
        shapes.reduce: (
            STREWN,
            "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare",
        ),
        shapes.arg: (STREWN, "ArgMax ArgMin"),
        shapes.top_k: (ADDED, "TopK"),
        gemm: (PACKED, "Gemm"),
        matmul: (PACKED, "MatMul"),
        einsum: (ADDED, "Einsum"),
        conv: (ADDED, "Conv"),
        conv_transpose: (ADDED, "ConvTranspose"),
        pool: (ADDED, "MaxPool AveragePool"),
        global_pool: (ADDED, "GlobalAveragePool GlobalMaxPool"),
        recurrent: (CURVED, "GRU LSTM RNN"),
        normalised: (ADDED, "LayerNormalization"),
        resize: (MOVED, "Resize"),
        blocks: (STREWN, "DepthToSpace SpaceToDepth"),
        quantise: (CURVED, "QuantizeLinear"),
        dequantise: (ADDED, "DequantizeLinear"),
        quantise_as_it_is: (CURVED, "DynamicQuantizeLinear"),
        multiply_bytes: (PACKED, "MatMulInteger"),
        convolve_bytes: (ADDED, "ConvInteger"),
        multiply_to_bytes: (CURVED, "QLinearMatMul"),
        convolve_to_bytes: (CURVED, "QLinearConv"),
    }
    table = {name: Operator(rule, cost) for rule, (cost, names) in rules.items() for name in names.split()}
    curved = "Sqrt Exp Log Erf Tanh Sigmoid Sin Cos Asin Acos Atan Round Softsign Elu Selu Celu HardSigmoid HardSwish"
    curved += " Gelu Softmax LogSoftmax"
    table |= {name: Operator(shapes.same, CURVED) for name in curved.split()}
    steep = "Tan Sinh Cosh Asinh Acosh Atanh Softplus Mish"
    table |= {name: Operator(shapes.same, 3 * CURVED) for name in steep.split()}
    moved = "CumSum Trilu BatchNormalization InstanceNormalization"
    table |= {name: Operator(shapes.same, MOVED) for name in moved.split()}
    table |= {name: Operator(shapes.same, STREWN) for name in ("ScatterElements", "ScatterND", "LpNormalization")}
    table |= {"Pow": Operator(shapes.elementwise, CURVED), "Mod": Operator(shapes.divide, CURVED)}
    table |= {name: Operator(shapes.reduce, CURVED) for name in ("ReduceLogSum", "ReduceLogSumExp")}
    return table


OPERATORS = _table()
# They must not meet an empty tensor: some of onnxruntime's kernels end the process then (Einsum, GRU, LSTM: measured).
NEVER_EMPTY = {"Einsum", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "GRU"}
NEVER_EMPTY |= {"LSTM", "RNN", "LayerNormalization", "BatchNormalization", "InstanceNormalization", "Resize", "TopK"}
NEVER_EMPTY |= {name for name in OPERATORS if name.startswith("Reduce")}
NEVER_EMPTY |= {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}
NEVER_EMPTY |= {"QLinearMatMul", "QLinearConv"}
NEVER_EMPTY |= {"DepthToSpace", "SpaceToDepth", "ArgMax", "ArgMin", "CumSum"}
