"""LeRobot's networks as planners of `policies.adoption.lerobot.controller`: in torch, and as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from policies.adoption.lerobot.act import Act
from policies.models.controller import Array
from policies.models.graph import Graph, spliced
from sim.spec import Signal


class ActPlanner:
    """A new plan of what is seen where none is left. It remembers nothing beside."""

    def __init__(self, network: Act, horizon: int, replan: int) -> None:
        self.network, self.horizon, self.replan = network, horizon, replan

    def initial_state(self, n: int) -> dict[str, Array]:
        return {}

    def plan(
        self, numbers: Array, pictures: list[Any], state: Mapping[str, Array], left: Array
    ) -> tuple[Array | None, dict[str, Array]]:
        if not (left <= 0.0).any():
            return None, {}
        with torch.no_grad():
            made: Array = self.network(torch.from_numpy(numbers), tuple(map(torch.from_numpy, pictures))).numpy()
        return made, {}

    def write(self, graph: Graph, numbers: str, pictures: tuple[Signal, ...], nothing: str) -> str:
        fresh = graph.add("LessOrEqual", "state.left", graph.constant(0.0))
        examples = (torch.zeros(2, sum(self.network.model.sizes)), zeros(pictures))
        given = (numbers, *(s.name for s in pictures))
        return graph.when(graph.some(fresh), lambda: spliced(graph, self.network, examples, given), nothing)


def zeros(pictures: tuple[Signal, ...]) -> tuple[torch.Tensor, ...]:
    """Two rows of each picture, all black."""
    return tuple(torch.zeros(2, *s.shape, dtype=torch.uint8) for s in pictures)
