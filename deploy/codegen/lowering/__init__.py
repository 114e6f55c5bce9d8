"""ONNX operators that are made of others, so that the writer of C has to know only those."""
