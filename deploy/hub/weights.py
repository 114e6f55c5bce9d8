"""A policy file's weights as safetensors, which other tools and scanners read, with its contract beside them."""

from __future__ import annotations

import json

from deploy.codegen.onnx_graph import constants_of
from deploy.policy_file import PolicyFile
from deploy.trust import safetensors

FILE = "weights.safetensors"
LEFT_OUT = ("vectors",)  # of the contract: they prove the graph, which is not here


def weights(policy: PolicyFile, content: bytes) -> bytes:
    """Every constant of the graph by its name there, bit by bit; the contract as JSON under "sim2metal"."""
    contract = {key: value for key, value in policy.metadata.items() if key not in LEFT_OUT}
    return safetensors.to_bytes(constants_of(content), {"format": "onnx", "sim2metal": json.dumps(contract)})
