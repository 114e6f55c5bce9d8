"""Networks that onnxruntime's own tool has quantised to int8, as C: against onnxruntime."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from deploy.policy_file import PolicyFile
from tests.deploy.codegen.graph_policy import policy_of
from tests.deploy.codegen.native import Native

SHAPES = {"perceptron": (12,), "convolutions": (3, 12, 10)}
OUTPUTS = 4


class Seen(CalibrationDataReader):
    def __init__(self, shape):
        rng = np.random.default_rng(2)
        self.left = [{"x": rng.normal(size=(1, *shape)).astype(np.float32)} for _ in range(20)]

    def get_next(self):
        return self.left.pop() if self.left else None


def network(path, kind):
    """In float32."""
    rng, constants = np.random.default_rng(1), {}

    def weight(name, *shape):
        constants[name] = (rng.normal(size=shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)
        return name

    if kind == "perceptron":
        nodes = [
            helper.make_node("Gemm", ["x", weight("w1", 24, 12), weight("b1", 24)], ["h1"], transB=1),
            helper.make_node("Relu", ["h1"], ["h2"]),
            helper.make_node("Gemm", ["h2", weight("w2", 24, 24), weight("b2", 24)], ["h3"], transB=1),
            helper.make_node("Tanh", ["h3"], ["flat"]),
        ]
        width = 24
    else:
        nodes = [
            helper.make_node("Conv", ["x", weight("w1", 8, 3, 3, 3), weight("b1", 8)], ["h1"], strides=[2, 2]),
            helper.make_node("Relu", ["h1"], ["h2"]),
            helper.make_node("Conv", ["h2", weight("w2", 4, 8, 3, 3), weight("b2", 4)], ["h3"], pads=[1, 1, 1, 1]),
            helper.make_node("MaxPool", ["h3"], ["h4"], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Flatten", ["h4"], ["flat"]),
        ]
        width = 16
    nodes.append(
        helper.make_node("Gemm", ["flat", weight("w3", OUTPUTS, width), weight("b3", OUTPUTS)], ["y"], transB=1)
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *SHAPES[kind]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", OUTPUTS])
    tensors = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)


def quantised(folder, kind, **options):
    """The policy file of a quantised network."""
    before, after = str(folder / "before.onnx"), str(folder / "after.onnx")
    network(before, kind)
    logging.disable(logging.WARNING)  # the tool advises to simplify the graph first
    if options:
        quantize_static(before, after, Seen(SHAPES[kind]), **options)
    else:
        quantize_dynamic(before, after)
    logging.disable(logging.NOTSET)
    model = onnx.load(after)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = list(model.graph.node)
    return policy_of(folder / "p.onnx", nodes, {"x": SHAPES[kind]}, {"y": (OUTPUTS,)}, constants)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("kind", [*SHAPES])
def test_a_quantised_network_in_c_is_what_onnxruntime_computes(tmp_path, kind, signed):
    kinds = {"activation_type": QuantType.QInt8 if signed else QuantType.QUInt8, "weight_type": QuantType.QInt8}
    path = quantised(tmp_path, kind, quant_format=QuantFormat.QDQ, per_channel=signed, **kinds)
    assert "QuantizeLinear" in {n.op_type for n in onnx.load(path).graph.node}
    native, policy, rng = Native(path), PolicyFile.load(path), np.random.default_rng(3)
    assert native.selftest < 1.0
    for _ in range(20):
        now = {"x": rng.normal(size=SHAPES[kind]).astype(np.float32)}
        np.testing.assert_allclose(native.step(now)["y"], policy.step(now)["y"], atol=1e-5)


def test_a_network_that_is_quantised_as_it_goes(tmp_path):
    native = Native(quantised(tmp_path, "convolutions"))
    assert native.selftest < 1.0
