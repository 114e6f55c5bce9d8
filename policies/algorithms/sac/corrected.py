"""Residual learning on a controller that nobody learned: SAC corrects what it commands, by a bounded amount.

As in Johannink et al. 2019 and Silver et al. 2018 (arXiv 1812.06298). The controller (`sim.experts.gap`) is told to the
environment with the correction; actor, critics and replay know the correction alone, since what is corrected follows
from what they see. In the policy file both are one graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from policies.algorithms.sac.torch_path import TorchPath
from policies.models.networks import Array, Network
from policies.models.networks.feed_forward import Mlp
from sim.experts.gap import Gap
from sim.tasks import Task
from sim.tasks.abilities import gap_of

if TYPE_CHECKING:
    from policies.algorithms.sac import SacConfig
    from policies.models.graph import Graph


@dataclass
class Corrected:
    """What a controller of the first features makes of them, and `magnitude` times what an actor makes of all."""

    base: Gap
    actor: Mlp
    magnitude: float

    def __post_init__(self) -> None:
        if self.actor.outputs != 2 or self.actor.inputs < len(self.base.angles):
            raise ValueError(
                f"a correction of steering and speed has 2 outputs and sees {len(self.base.angles)} beams, "
                f"got {self.actor.outputs} and {self.actor.inputs}"
            )

    @property
    def inputs(self) -> int:
        return self.actor.inputs

    @property
    def outputs(self) -> int:
        return self.actor.outputs

    def initial_state(self, n: int) -> dict[str, Array]:
        return {}

    def forward(self, features: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        change, _ = self.actor.forward(features, {})
        return corrected(self.base, features, np.float32(self.magnitude) * change), {}

    def write(self, graph: Graph, x: str) -> str:
        change = graph.add("Mul", self.actor.write(graph, x), graph.constant(self.magnitude))
        moved = graph.add("Add", write_gap(graph, self.base, x), change)
        return graph.add("Clip", moved, graph.constant(-1.0), graph.constant(1.0))


def corrected(base: Gap, features: Array, change: Array) -> Array:
    """Commands in [-1, 1] (n, 2) of the controller for features (n, k), changed by so much (n, 2)."""
    made: Array = np.clip(base.act(features[:, : len(base.angles)]) + change, -1.0, 1.0)
    return made


def write_gap(graph: Graph, base: Gap, features: str) -> str:
    """`Gap.act` as ONNX nodes, from features whose first columns are its beams."""
    beams = graph.columns(features, 0, len(base.angles))
    said = graph.add("Mul", beams, graph.constant(base.sharpness))
    weight = graph.add("Softmax", graph.add("Add", said, graph.constant(base.liking[None])), axis=1)
    where = graph.linear(weight, base.angles[None], np.zeros(1, np.float32))
    free = np.stack([np.float32(base.centring) * base.aside, np.float32(base.free) * base.ahead])
    straight = graph.linear(beams, free, np.array([0.0, base.slowest], np.float32))
    turning = graph.add("Mul", where, graph.constant(base.turning))
    slower = graph.add("Mul", graph.add("Abs", where), graph.constant(-base.bend))
    made = graph.add("Add", straight, graph.join([turning, slower]))
    return graph.add("Clip", made, graph.constant(-1.0), graph.constant(1.0))


class CorrectedPath(TorchPath):
    """SAC's path through torch, whose actor corrects."""

    def __init__(self, task: Task, config: SacConfig, seed: int, device: str = "cpu") -> None:
        self.base = gap_of(task)
        super().__init__(task, config, seed, device)

    def _told(self, x: Tensor, action: Tensor) -> Tensor:
        change = np.float32(self.config.residual) * action.cpu().numpy()
        return torch.from_numpy(corrected(self.base, x.cpu().numpy(), change)).to(action.device)

    def _network(self, actor: Mlp) -> Network:
        return Corrected(self.base, actor, self.config.residual)
