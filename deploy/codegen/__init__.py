"""From an ONNX graph to C."""
