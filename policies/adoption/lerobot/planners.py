"""LeRobot's networks as planners of `policies.adoption.lerobot.controller`: in torch, and as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from policies.adoption.lerobot.act import Act
from policies.adoption.lerobot.diffusion import Denoised, Seen
from policies.adoption.terms import BEGUN, write_begun
from policies.models.chunking import NoiseTable
from policies.models.graph import Graph, spliced
from policies.models.networks import Array
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
        examples = (torch.zeros(2, sum(self.network.model.sizes)), *zeros(pictures))
        given = (numbers, *(s.name for s in pictures))
        return graph.when(graph.some(fresh), lambda: spliced(graph, self.network, examples, given), nothing)


class DiffusionPlanner:
    """A new plan of what was seen in the last steps, and of noise out of a table (`NoiseTable`).

    State: "seen", what was made of the steps before, newest last (n, (looks - 1) * size), all the first one at first;
    "begun" (n, 1); "draw", the row of the table (n, 1), -1 at first. Pictures are looked at where a plan will need it.
    """

    def __init__(self, see: Seen, network: Denoised, looks: int, horizon: int, replan: int) -> None:
        self.see, self.network, self.looks = see, network, looks
        self.horizon, self.replan, self.size = horizon, replan, see.model.size
        self.noise = NoiseTable.normal((horizon + looks - 1) * network.actions)

    def initial_state(self, n: int) -> dict[str, Array]:
        made = {"draw": np.full((n, 1), -1.0, np.float32)}
        if self.looks > 1:
            made["seen"] = np.zeros((n, (self.looks - 1) * self.size), np.float32)
            made[BEGUN] = np.zeros((n, 1), np.float32)
        return made

    def plan(
        self, numbers: Array, pictures: list[Any], state: Mapping[str, Array], left: Array
    ) -> tuple[Array | None, dict[str, Array]]:
        fresh, needed = left <= 0.0, left < self.looks
        noise, draw = self.noise.drawn(numbers, state["draw"], fresh)
        seen, after = np.zeros((len(left), self.size), np.float32), {"draw": draw}
        with torch.no_grad():
            if needed.any():
                looked = self.see(torch.from_numpy(numbers), tuple(map(torch.from_numpy, pictures))).numpy()
                seen = np.where(needed, looked, seen)
            if self.looks > 1:
                before = np.where(state[BEGUN] > 0.0, state["seen"], np.tile(seen, (1, self.looks - 1)))
                seen = np.concatenate([before, seen], axis=1)
                after |= {"seen": seen[:, self.size :], BEGUN: np.ones_like(left)}
            if not fresh.any():
                return None, after
            made: Array = self.network(torch.from_numpy(seen), torch.from_numpy(noise)).numpy()
        return made, after

    def write(self, graph: Graph, numbers: str, pictures: tuple[Signal, ...], nothing: str) -> str:
        fresh = graph.add("LessOrEqual", "state.left", graph.constant(0.0))
        needed = graph.add("Less", "state.left", graph.constant(float(self.looks)))
        noise = self.noise.write(graph, numbers, fresh)
        given = (numbers, *(s.name for s in pictures))
        examples = (torch.zeros(2, sum(self.see.sizes)), *zeros(pictures))
        blind = graph.add("MatMul", "state.left", graph.constant(np.zeros((1, self.size))))
        looked = graph.when(graph.some(needed), lambda: spliced(graph, self.see, examples, given), blind)
        seen = graph.add("Where", needed, looked, blind)
        if self.looks > 1:
            begun = graph.add("Greater", f"state.{BEGUN}", graph.constant(0.0))
            before = graph.add("Where", begun, "state.seen", graph.join([seen] * (self.looks - 1)))
            seen = graph.join([before, seen])
            graph.columns(seen, self.size, self.looks * self.size, to="next_state.seen")
            write_begun(graph)
        rows = (torch.zeros(2, self.looks * self.size), torch.zeros(2, self.noise.table.shape[1]))
        return graph.when(graph.some(fresh), lambda: spliced(graph, self.network, rows, (seen, noise)), nothing)


def zeros(pictures: tuple[Signal, ...]) -> tuple[Any, ...]:
    """Two rows of each picture, all black, as one argument; none of no pictures."""
    made = tuple(torch.zeros(2, *s.shape, dtype=torch.uint8) for s in pictures)
    return (made,) if made else ()
