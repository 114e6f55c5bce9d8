"""Real-time chunking (Black et al. 2025, arXiv 2506.07339): a new plan begins with what is already committed.

While a plan is worked out, the robot executes `delay` more actions of the old one. The new plan takes them over as they
are, and the base is told them, so that what follows fits. The base has learned to go on from the first actions of a
chunk, a random number of them, as in the training-time variant (arXiv 2512.05964). What differs: there they stand in
the noisy chunk with a time of their own; here the perceptron sees them beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.models.chunking import ChunkPolicy, Denoiser, NoiseTable, Steering, contract
from policies.models.networks import Array
from sim.tasks import Task

if TYPE_CHECKING:
    from policies.models.graph import Graph


def check(horizon: int, replan: int, delay: int) -> None:
    """ValueError unless plans of so many actions can be made every `replan` steps, each taking `delay` steps."""
    if not (0 <= delay <= replan <= horizon - delay and replan >= 1):
        raise ValueError(
            f"a plan of {horizon} actions needs 0 <= delay <= replan <= {horizon} - delay and replan >= 1, "
            f"got delay {delay} and replan {replan}"
        )


@dataclass
class RealTime(ChunkPolicy):
    """The controller whose plans count from their action `delay` on; an episode's first one counts at once.

    What it commands for `delay` steps from a re-planning on does not depend on what that sees, so a plan may take as
    long. The state is that of `ChunkPolicy`, with "left" -1 before the first plan. The base is told, after the
    observation, the committed actions (n, delay * actions) and whether there are any (n, 1).
    """

    delay: int = 0  # actions of a new plan that are the old one's

    def __post_init__(self) -> None:
        check(self.base.horizon, self.replan, self.delay)
        super().__post_init__()

    @property
    def told(self) -> int:
        return super().told + self.delay * self.base.actions + 1

    def plan(self) -> dict[str, int]:
        return super().plan() | {"delay": self.delay}

    def initial_state(self, n: int) -> dict[str, Array]:
        return super().initial_state(n) | {"left": np.full((n, 1), -1.0, np.float32)}

    def _planned(self, observation: Array, noise: Array, state: Mapping[str, Array]) -> Array:
        kept = self.delay * self.base.actions
        old, begun = state["chunk"][:, :kept], state["left"] >= 0.0
        new = super()._planned(np.concatenate([observation, old, begun], axis=1, dtype=np.float32), noise, state)
        return np.concatenate([np.where(begun, old, new[:, :kept]), new[:, kept:]], axis=1)

    def _write_planned(self, graph: Graph, observation: str, noise: str) -> str:
        kept, size = self.delay * self.base.actions, self.base.horizon * self.base.actions
        old, zero, one = graph.columns("state.chunk", 0, kept), graph.constant(0.0), graph.constant(1.0)
        begun = graph.add("GreaterOrEqual", "state.left", zero)
        told = graph.join([observation, old, graph.add("Where", begun, one, zero)])
        new = super()._write_planned(graph, told, noise)
        first = graph.add("Where", begun, old, graph.columns(new, 0, kept))
        return graph.join([first, graph.columns(new, kept, size)])


def planned(task: Task, base: Denoiser, chosen: Steering | NoiseTable, replan: int, delay: int) -> ChunkPolicy:
    """The controller of `task`, whose plans take `delay` control steps."""
    if delay == 0:
        return ChunkPolicy.from_task(task, base, chosen, replan)
    return RealTime(**contract(task), base=base, chosen=chosen, replan=replan, delay=delay)
