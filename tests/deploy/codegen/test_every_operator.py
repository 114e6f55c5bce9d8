"""Every operator that a policy file may use, as C: against onnxruntime, or a refusal that names it."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from deploy.trust.onnx_layers import OPERATORS
from tests.deploy.codegen.graph_policy import policy_of
from tests.deploy.codegen.native import Native
from tests.deploy.trust.onnx_cases import CASES, model_of

F = np.float32
# Their shape or their random numbers are the point; these graphs take them from what is constant, before C.
BEFORE = {"Constant", "ConstantOfShape", "Range", "Shape", "Size"}


def graph(operator, inputs, attributes, outputs, first=("Sigmoid",)):
    """Arguments of `policy_of`: the operator, its first input computed from a signal, its outputs as commands.

    The operator's first axis is not that of the robots: it computes with the first robot's signal, for all of them.
    """
    x = np.asarray(inputs[0])
    constants = {f"c{k}": np.asarray(v) for k, v in enumerate(inputs) if v is not None and k}
    constants |= {"shape": np.array(x.shape, np.int64), "flat": np.array([1, -1]), "scale": F(max(1, x.max(initial=1)))}
    constants |= {"half": F(0.5), "zero": F(0.0), "0": np.array([0]), "1": np.array([1])}
    nodes = [helper.make_node("Slice", ["x", "0", "1", "0"], ["one"])]
    nodes += [helper.make_node(name, [nodes[-1].output[0]], [name]) for name in first[:1]]
    nodes += [helper.make_node(name, [first[0]], [name]) for name in first[1:]]
    nodes.append(helper.make_node("Mul", [first[-1], "scale"], ["scaled"]))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    cast = helper.make_node("Cast", ["scaled"], ["typed"], to=kind)
    if x.dtype == bool:
        cast = helper.make_node("Greater", ["scaled", "half"], ["typed"])
    elif x.dtype.itemsize == 1:
        constants |= {"step": F(1.0), "byte": np.zeros((), x.dtype)}
        cast = helper.make_node("QuantizeLinear", ["scaled", "step", "byte"], ["typed"])
    nodes.append(cast)
    nodes.append(helper.make_node("Reshape", ["typed", "shape"], ["shaped"]))
    given = ["shaped", *("" if v is None else f"c{k}" for k, v in enumerate(inputs) if k)]
    named = [f"made_{k}" for k in range(outputs)]
    nodes.append(helper.make_node(operator, given, named, name="the_node", **attributes))
    nodes.append(helper.make_node("ReduceSum", ["x", "1"], ["sum"], keepdims=1))
    nodes.append(helper.make_node("Mul", ["sum", "zero"], ["rows"]))
    for k, each in enumerate(named):
        nodes.append(helper.make_node("Cast", [each], [f"cast_{k}"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Reshape", [f"cast_{k}", "flat"], [f"row_{k}"]))
        nodes.append(helper.make_node("Add", [f"row_{k}", "rows"], [f"y{k}"]))
    example = {"x": np.zeros((1, x.size), F)}
    model = model_of(nodes, example, [f"y{k}" for k in range(outputs)], constants)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    shapes = {f"y{k}": value.shape[1:] for k, value in enumerate(session.run(None, example))}
    return {"nodes": nodes, "inputs": {"x": (x.size,)}, "outputs": shapes, "constants": constants, "opset": 20}


TRIED = [(operator, k) for operator in OPERATORS if operator not in BEFORE for k in range(len(CASES[operator]))]


@pytest.mark.parametrize(("operator", "case"), TRIED)
def test_what_a_policy_file_may_use_has_c(tmp_path, operator, case):
    inputs, attributes, outputs = CASES[operator][case]
    outputs = 1 if operator == "Dropout" else outputs
    first = ("Sigmoid", "Reciprocal") if operator == "Acosh" else ("Sigmoid",)
    options = graph(operator, inputs, attributes, outputs, first)
    assert Native(policy_of(tmp_path / "p.onnx", **options)).selftest < 1.0
