"""Which products w8a8 makes the fast way, and which tanh between two of them rounds by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deploy.codegen.onnx_graph import Graph, Node, Value
from deploy.codegen.operators import DENSE, layer, matrix
from deploy.codegen.rounded.halves import limit
from deploy.codegen.rounded.steps import MOST, bytes_limit
from deploy.codegen.rounded.tanh import LARGEST, ONE, TANH

# Attributes of products: the largest of their inputs as whole numbers; whether four of them take three instructions.
LIMIT, FAST = "limit", "fast"
FEW = 4  # outputs, of which a block of eight would be half empty: commands as a rule, and their inputs keep 16 bits


def planned(graph: Graph) -> Graph:
    """The same graph. Products have those attributes, and what stands for 1 if a tanh before them rounds."""
    users: dict[str, list[Node]] = {}
    more: dict[str, dict[str, Any]] = {}  # attributes, by what a node writes
    for node in graph.nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(node)
        if _product(node, graph.values):
            weight = matrix(node, [graph.values.get(name) for name in node.inputs])[0]
            most = limit(weight)
            fast = most >= MOST and len(weight) > FEW  # with 8 bits at least
            more[node.outputs[0]] = {LIMIT: most if fast else bytes_limit(weight.shape[1]), FAST: fast}
    for node in graph.nodes:
        source, made = (*node.inputs, "")[0], node.outputs[0]
        if node.operator != "Tanh" or source not in more or made in graph.outputs:
            continue
        after = users.get(made, [])
        seen_once = len(users[source]) == 1 and source not in graph.outputs
        if seen_once and all(one.outputs[0] in more and _reads_row(one, graph.values[made]) for one in after):
            largest = {ONE: min(LARGEST, *(more[one.outputs[0]][LIMIT] for one in after))}
            more |= {one.outputs[0]: more[one.outputs[0]] | largest for one in after} | {made: largest}
    return replace(graph, nodes=tuple(_marked(node, more) for node in graph.nodes))


def _marked(node: Node, more: Mapping[str, Mapping[str, Any]]) -> Node:
    attributes = more.get(node.outputs[0], {})
    operator = TANH if attributes and node.operator == "Tanh" else node.operator
    return replace(node, operator=operator, attributes={**node.attributes, **attributes})


def _product(node: Node, values: Mapping[str, Value]) -> bool:
    """Of a stored matrix with vectors."""
    inputs = [values[name] if name else None for name in node.inputs]
    return node.operator in DENSE and node.operator != "Conv" and layer(node, inputs)


def _reads_row(node: Node, value: Value) -> bool:
    """Whether a product has this value as its only vector."""
    return node.inputs[0] == value.name not in node.inputs[1:] and value.size == value.shape[-1]
