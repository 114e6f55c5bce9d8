"""The network in a policy file that was trained here, to go on learning from: its weights, as they are in the graph."""

from __future__ import annotations

import numpy as np

from deploy.policy_file import PolicyFile
from policies.models.controller import FeaturePolicy, Gru, Layer, Mlp, Network
from policies.models.export import closed_loop
from sim.tasks import Task


def network_of(policy: PolicyFile, task: Task) -> Network:
    """The perceptron or gated unit of a file for this task, without pictures.

    Raises ValueError when the file is for something else, holds another kind of controller, or does not command what
    this network does.
    """
    layers = _layers(policy)
    network: Network
    try:
        if [state.name for state in policy.state if state.name != "history"] == ["hidden"] and len(layers) == 4:
            first, inward, across, last = layers
            network = Gru(first, inward[0], across[0], inward[1], across[1], last)
        else:
            network = Mlp(layers, "tanh" if _operators(policy).count("Tanh") == len(layers) else "relu")
        made = FeaturePolicy.from_task(task, network)
        told = closed_loop(made, policy.vectors.inputs)["outputs"]
        ranges = {s.name: s.high - s.low for s in made.outputs}
        apart = max(float(np.abs(told[n] - policy.vectors.outputs[n]).max()) / ranges[n] for n in ranges)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{policy.path} does not hold a network for {task.name}: {error}") from None
    if not apart <= policy.vectors.tolerance:
        raise ValueError(f"{policy.path} does not hold a network for {task.name} alone: commands differ by {apart:.2g}")
    return network


def _layers(policy: PolicyFile) -> list[Layer]:
    """W (outputs, inputs) and b (outputs,) of all that is linear, in order."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(policy.content()).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    pairs = [node.input[1:3] for node in graph.node if node.op_type == "Gemm"]
    known = [pair for pair in pairs if all(name in constants for name in pair)]
    return [(numpy_helper.to_array(constants[w]), numpy_helper.to_array(constants[b])) for w, b in known]


def _operators(policy: PolicyFile) -> list[str]:
    import onnx

    return [node.op_type for node in onnx.load_from_string(policy.content()).graph.node]
