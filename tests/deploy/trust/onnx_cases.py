"""Every operator that a policy file may use, with inputs that it takes; and models of one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploy.trust.onnx_layers import OPERATORS

TYPES = {"f4": TensorProto.FLOAT, "i8": TensorProto.INT64, "b1": TensorProto.BOOL, "u1": TensorProto.UINT8}
TYPES["i1"] = TensorProto.INT8


def model_of(
    nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Sequence[str], constants: Mapping[str, Any]
) -> bytes:
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    given = [helper.make_tensor_value_info(n, TYPES[a.dtype.str[1:]], a.shape) for n, a in inputs.items()]
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", given, made, tensors)
    opset = helper.make_opsetid("", 20)  # the first with Gelu
    return helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()


X = np.linspace(0.1, 0.9, 24, dtype=np.float32).reshape(2, 3, 4)
PICTURE = np.linspace(0.0, 1.0, 4 * 81, dtype=np.float32).reshape(1, 4, 9, 9)
WHOLE = np.arange(24).reshape(2, 3, 4)
MIDDLE = np.array([0, 1])
BYTES = (200 * X).astype(np.uint8)
KERNELS = (PICTURE[:, :, :3, :2] * 200 - 90).astype(np.int8).repeat(2, 0)
SEEN = (200 * PICTURE).astype(np.uint8)
STEP, STEPS = np.float32(0.05), np.array([0.05, 0.1, 0.02], np.float32)
ZERO, TEN, PLACES = np.int8(0), np.uint8(10), np.array([3, -7, 0], np.int8)
# operator -> cases of (inputs; attributes; number of outputs)
_OWN = {
    "Cast": [([X], {"to": TensorProto.INT64}, 1)],
    "CastLike": [([X, WHOLE], {}, 1)],
    "Dropout": [([X], {}, 2)],
    "Clip": [([X, np.float32(0.2), np.float32(0.5)], {}, 1)],
    "Not": [([X > 0.5], {}, 1)],
    "Where": [([X[:1] > 0.5, X, X[:, :1]], {}, 1)],
    "Constant": [([], {"value_ints": [1, 2, 3]}, 1), ([], {"value": numpy_helper.from_array(X)}, 1)],
    "ConstantOfShape": [([np.array([2, 5])], {}, 1)],
    "Reshape": [([X, np.array([0, -1])], {}, 1), ([X, np.array([4, 6])], {}, 1)],
    "Flatten": [([X], {"axis": 2}, 1), ([X], {"axis": -1}, 1)],
    "Squeeze": [([X[:1], np.array([0])], {}, 1), ([X[:1]], {}, 1)],
    "Unsqueeze": [([X, np.array([0, -1])], {}, 1)],
    "Transpose": [([X], {"perm": [2, 0, 1]}, 1), ([X], {}, 1)],
    "Concat": [([X, X[:, :1]], {"axis": -2}, 1)],
    "Split": [([X, np.array([1, 3])], {"axis": -1}, 2), ([X], {"axis": 1, "num_outputs": 2}, 2)],
    "Slice": [
        ([X, np.array([3, 0]), np.array([-100, 2**62]), np.array([-1, 1]), np.array([-2, 2])], {}, 1),
        ([X, np.array([1]), np.array([-1]), np.array([2])], {}, 1),
    ],
    "Gather": [([X, np.array([[0, 2], [1, 1]])], {"axis": 1}, 1)],
    "GatherND": [([X, np.array([[[0], [1]], [[2], [0]]])], {"batch_dims": 1}, 1)],
    "GatherElements": [([X, WHOLE[:, :1] % 3], {"axis": 1}, 1)],
    "ScatterElements": [([X, WHOLE[:, :1] % 3, X[:, :1]], {"axis": 1}, 1)],
    "ScatterND": [([X, np.array([[0], [1]]), X], {}, 1)],
    "Expand": [([X[:, :1], np.array([5, 1, 3, 1])], {}, 1)],
    "Tile": [([X, np.array([2, 1, 3])], {}, 1)],
    "Pad": [([X, np.array([0, 1, 2, 0, -1, 3])], {}, 1), ([X, np.array([1, 1]), None, np.array([1])], {}, 1)],
    "Range": [
        ([np.array(7), np.array(-2), np.array(-2)], {}, 1),
        ([np.float32(0), np.float32(1), np.float32(0.3)], {}, 1),
    ],
    "OneHot": [([MIDDLE, np.array(5), np.array([0.0, 1.0], np.float32)], {"axis": 0}, 1)],
    "TopK": [([X, np.array([2])], {"axis": 1}, 2)],
    "ArgMax": [([X], {"axis": 1, "keepdims": 0}, 1)],
    "ArgMin": [([X], {"axis": -1}, 1)],
    "CumSum": [([X, np.array(1)], {}, 1)],
    "Gemm": [([X[0], X[1], X[0, 0, :3]], {"transB": 1}, 1)],
    "MatMul": [([X, X[0].T.copy()], {}, 1), ([X, X[0, 0]], {}, 1), ([X[0, :, 0].copy(), X], {}, 1)],
    "Einsum": [([X, X], {"equation": "abc,adc->bd"}, 1)],
    "Conv": [
        ([PICTURE, PICTURE[0, :, None, :3, :3].copy()], {"group": 4, "strides": [2, 1], "pads": [1, 0, 2, 1]}, 1),
        ([PICTURE, PICTURE[:, :, :3, :2].copy()], {"dilations": [2, 3]}, 1),
        ([PICTURE, PICTURE[:, :, :3, :2].copy()], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, 1),
    ],
    "ConvTranspose": [
        ([PICTURE, PICTURE[0, :, None, :3, :3].copy()], {"strides": [2, 3], "output_padding": [1, 2]}, 1)
    ],
    "MaxPool": [([PICTURE], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1}, 1)],
    "AveragePool": [([PICTURE], {"kernel_shape": [4, 4], "strides": [3, 3], "auto_pad": "VALID"}, 1)],
    "GlobalAveragePool": [([PICTURE], {}, 1)],
    "GlobalMaxPool": [([PICTURE], {}, 1)],
    "GRU": [([X, np.ones((1, 6, 4), np.float32), np.ones((1, 6, 2), np.float32)], {"hidden_size": 2}, 2)],
    "LSTM": [([X, np.ones((1, 8, 4), np.float32), np.ones((1, 8, 2), np.float32)], {"hidden_size": 2}, 3)],
    "RNN": [([X, np.ones((1, 2, 4), np.float32), np.ones((1, 2, 2), np.float32)], {"hidden_size": 2}, 2)],
    "LayerNormalization": [([X, X[0, 0]], {"axis": -1}, 1)],
    "BatchNormalization": [([X, *[X[0, :, 0].copy()] * 4], {}, 1)],
    "InstanceNormalization": [([X, *[X[0, :, 0].copy()] * 2], {}, 1)],
    "Resize": [
        ([PICTURE, None, np.array([1, 1, 1.5, 0.6], np.float32)], {"mode": "linear"}, 1),
        ([PICTURE, None, None, np.array([1, 4, 5, 20])], {"mode": "nearest"}, 1),
        ([PICTURE, None, np.array([2, 2.5], np.float32)], {"axes": [2, 3], "mode": "cubic"}, 1),
    ],
    "DepthToSpace": [([PICTURE], {"blocksize": 2}, 1)],
    "SpaceToDepth": [([PICTURE[:, :, :8, :6].copy()], {"blocksize": 2}, 1)],
    "Trilu": [([X], {}, 1)],
    "PRelu": [([X, X[:1, :1]], {}, 1)],
    "QuantizeLinear": [
        ([X, STEP, TEN], {}, 1),
        ([X, STEPS, PLACES], {"axis": -2}, 1),
        ([X, np.float32(0.003)], {}, 1),
    ],
    "DequantizeLinear": [([BYTES, STEP, TEN], {}, 1), ([BYTES.astype(np.int8), STEPS, PLACES], {"axis": 1}, 1)],
    "DynamicQuantizeLinear": [([X], {}, 3)],
    "MatMulInteger": [
        ([BYTES, BYTES[0].T.copy(), TEN, TEN], {}, 1),
        ([BYTES, BYTES[0].T.astype(np.int8), None, PLACES], {}, 1),
    ],
    "ConvInteger": [([SEEN, SEEN[:, :, :3, :2].copy(), TEN], {"strides": [2, 2], "pads": [1, 0, 1, 0]}, 1)],
    "QLinearMatMul": [
        ([BYTES, STEP, TEN, BYTES[0].T.copy(), STEP, TEN, np.float32(2.0), TEN], {}, 1),
        ([BYTES, STEP, TEN, BYTES[0].T.astype(np.int8), STEPS, PLACES * 0, np.float32(3.0), TEN], {}, 1),
    ],
    "QLinearConv": [
        (
            [SEEN, STEP, TEN, KERNELS, STEPS[:2], PLACES[:2] * 0, np.float32(9.0), TEN, np.array([5, -900], np.int32)],
            {"strides": [2, 2]},
            1,
        )
    ],
    "Mod": [([X, X[:1]], {"fmod": 1}, 1), ([WHOLE, np.array([7])], {}, 1)],
    "Div": [([X, X[:1]], {}, 1), ([WHOLE, np.array([7])], {}, 1)],
}
LOGICAL = ("And", "Or", "Xor")
TWO = (
    "Add",
    "Sub",
    "Mul",
    "Min",
    "Max",
    "Mean",
    "Sum",
    "Pow",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
)


def _cases(operator: str) -> list[tuple[list[Any], dict[str, Any], int]]:
    if operator in _OWN:
        return _OWN[operator]
    if operator in LOGICAL:
        return [([X > 0.5, X[0] > 0.2], {}, 1)]
    if operator in TWO:
        return [([X, X[:, :1, :1]], {}, 1)]
    if operator.startswith("Reduce"):
        return [([X, np.array([0, -1])], {"keepdims": 0}, 1), ([X], {}, 1), ([X], {"noop_with_empty_axes": 1}, 1)]
    return [([X], {}, 1)]


CASES = {operator: _cases(operator) for operator in OPERATORS}
