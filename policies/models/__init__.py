"""What an algorithm hands to export: networks, policies around them, and their ONNX graphs."""
