"""Which inputs of products w8a8 rounds to 8 bits, and which to 16.

Between hidden layers 8 are enough. A signal beside a larger one would be left with a few steps, and so would a command:
products that read signals or memory, and those that make commands or memory, keep 16. They are the small ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from deploy.codegen.onnx_graph import Graph, Node, Value
from deploy.codegen.operators import DENSE, layer
from deploy.codegen.rounded.tanh import BITS8, BITS16, LARGEST

ROUNDED = "rounded"  # the attribute of a product that says how: one of these, or the tanh that does it
SHORT, LONG = "8 bits", "16 bits"
# Inputs whose products' sum fits 32 bits. One of 8 bits is computed 256 times as large.
MOST_SHORT, MOST_LONG = 512, (2**31 - 1) // (127 * LARGEST[BITS16])


def planned(graph: Graph) -> Graph:
    """The same graph: products say how their inputs are rounded, and a tanh between two of them does it itself."""
    values = graph.values
    reads, writes = _near(graph)
    chosen = {}
    for node in graph.nodes:
        if _product(node, values):
            near = node.inputs[0] in reads or node.outputs[0] in writes
            chosen[node.outputs[0]] = LONG if near or values[node.inputs[0]].shape[-1] > MOST_SHORT else SHORT
    users: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(node)
    made = {}
    for node in graph.nodes:
        if node.operator != "Tanh" or not _alone(node.inputs[0], users, graph) or node.inputs[0] not in chosen:
            continue
        after = users.get(node.outputs[0], [])
        if node.outputs[0] in graph.outputs or not all(_reads_row(one, node.outputs[0], graph) for one in after):
            continue
        operator = BITS16 if all(chosen[one.outputs[0]] == LONG for one in after) else BITS8
        if values[node.outputs[0]].size <= MOST_LONG:
            made[node.outputs[0]] = operator
            chosen |= {one.outputs[0]: operator for one in after}
    return replace(graph, nodes=tuple(_marked(node, chosen, made) for node in graph.nodes))


def _marked(node: Node, chosen: Mapping[str, str], made: Mapping[str, str]) -> Node:
    name = node.outputs[0]
    if name in chosen:
        return replace(node, attributes={**node.attributes, ROUNDED: chosen[name]})
    return replace(node, operator=made[name]) if name in made else node


def _product(node: Node, values: Mapping[str, Value]) -> bool:
    """Of a stored matrix with vectors."""
    inputs = [values[name] if name else None for name in node.inputs]
    return node.operator in DENSE and node.operator != "Conv" and layer(node, inputs)


def _near(graph: Graph) -> tuple[set[str], set[str]]:
    """The values between the graph's inputs and products, and those between products and its outputs."""

    def reached(begin: Iterable[str], nodes: Iterable[Node], forwards: bool) -> set[str]:
        found = set(begin)
        for node in nodes:
            before, after = (node.inputs, node.outputs) if forwards else (node.outputs, node.inputs)
            if node.operator not in DENSE and found.intersection(before):
                found.update(after)
        return found

    return reached(graph.inputs, graph.nodes, True), reached(graph.outputs, reversed(graph.nodes), False)


def _alone(name: str, users: Mapping[str, list[Node]], graph: Graph) -> bool:
    """Whether nobody but one node sees a value."""
    return len(users.get(name, [])) == 1 and name not in graph.outputs


def _reads_row(node: Node, name: str, graph: Graph) -> bool:
    """Whether a node is a product with this value as its only vector."""
    if not _product(node, graph.values) or node.inputs[0] != name or name in node.inputs[1:]:
        return False
    return graph.values[name].size == graph.values[name].shape[-1]
