"""The graph of a policy file in float64: what float32 implementations are compared with."""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator


def exact(path):
    """(signals (*shape), states (1, *shape)) by name -> outputs (*shape) by name."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float64), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    names = [value.name for value in model.graph.output]
    evaluator = ReferenceEvaluator(model)

    def run(signals, states):
        feeds = {name: value[None].astype(np.float64) for name, value in signals.items()}
        feeds |= {f"state.{name}": value.astype(np.float64) for name, value in states.items()}
        return {name: value[0] for name, value in zip(names, evaluator.run(None, feeds), strict=True)}

    return run
