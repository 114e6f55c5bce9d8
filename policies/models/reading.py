"""The network in a policy file that was trained here, to go on learning from: its weights, as they are in the graph."""

from __future__ import annotations

import numpy as np

from deploy.policy_file import PolicyFile
from policies.models.controller import FeaturePolicy
from policies.models.export import closed_loop
from policies.models.networks import Layer, Network
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from sim.tasks import Task


def network_of(policy: PolicyFile, task: Task, content: bytes = b"") -> Network:
    """The perceptron or gated unit of a file for this task, without pictures; `content`: its bytes, where it is none.

    Raises ValueError when the file is for something else, holds another kind of controller, or does not command what
    this network does.
    """
    content = content or policy.content()
    layers = _layers(content)
    network: Network
    try:
        if [state.name for state in policy.state if state.name != "history"] == ["hidden"] and len(layers) == 4:
            first, inward, across, last = layers
            network = Gru(first, inward[0], across[0], inward[1], across[1], last)
        else:
            network = Mlp(layers, "tanh" if _operators(content).count("Tanh") == len(layers) else "relu")
        made = FeaturePolicy.from_task(task, network)
        told = closed_loop(made, policy.vectors.inputs)["outputs"]
        ranges = {s.name: s.high - s.low for s in made.outputs}
        apart = max(float(np.abs(told[n] - policy.vectors.outputs[n]).max()) / ranges[n] for n in ranges)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{policy.path} does not hold a network for {task.name}: {error}") from None
    if not apart <= policy.vectors.tolerance:
        raise ValueError(f"{policy.path} does not hold a network for {task.name} alone: commands differ by {apart:.2g}")
    return network


def _layers(content: bytes) -> list[Layer]:
    """W (outputs, inputs) and b (outputs,) of all that is linear, in order."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(content).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:  # of float16
        if node.op_type == "Cast" and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]].astype(np.float32)
    pairs = [node.input[1:3] for node in graph.node if node.op_type == "Gemm"]
    return [(constants[w], constants[b]) for w, b in pairs if w in constants and b in constants]


def _operators(content: bytes) -> list[str]:
    import onnx

    return [node.op_type for node in onnx.load_from_string(content).graph.node]
