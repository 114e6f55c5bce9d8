"""Policies that are told in words and make their chunks out of noise, as one controller: whoever chooses that noise.

As in `SpokenPolicy` the sentence is encoded when it changes, and pictures are looked at when a chunk is planned, which
happens anew when the instruction changes. What is seen and told becomes one vector; noise is chosen for it, by an actor
or out of a table, and the base makes a chunk of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy.teleop.instruction import KEY as TOKENISER
from policies.learning.vla.hearing import described, heard, nothing_told, write_heard
from policies.models.chunking import (
    ExportableBase,
    NoiseTable,
    Planner,
    Steering,
    carried_out,
    told_contract,
    write_carried_out,
)
from policies.models.controller import physical
from policies.models.networks import Array
from sim import spec
from sim.spec import Group, Signal
from sim.tasks import Task

if TYPE_CHECKING:
    from policies.models.graph import Graph


class ToldEye(Protocol):
    """What makes the observation of a base that is told in words: what is measured, what was told, what is seen."""

    words: int  # numbers of the observation, after what is measured, that say what was told

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Of its tokeniser."""

    @property
    def kept(self) -> int:
        """Numbers that it keeps of an instruction."""

    @property
    def size(self) -> int:
        """Numbers in an observation."""

    def hear(self, tokens: NDArray[np.int64]) -> Array:
        """What it keeps (n, kept) of tokens (n, k)."""

    def look(self, signals: Mapping[str, Any], kept: Array) -> Array:
        """Observations (n, size) of signals, of whose instruction that is kept."""

    def write_hear(self, graph: Graph) -> str:
        """`hear` as ONNX nodes."""

    def write_look(self, graph: Graph, kept: str) -> str:
        """`look` as ONNX nodes."""


@dataclass
class ToldPolicy:
    """The controller. A chunk is carried out to its end, unless something else is told meanwhile.

    State: "words", the tokens that were told last (n, k); "told", what is kept of them; "chunk", what is left of the
    plan, next action first, in [-1, 1]; "left", how many of them are still to be executed (n, 1); with `NoiseTable`
    noise "draw", the row of the table (n, 1), -1 at first.
    """

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    base: ExportableBase
    eye: ToldEye
    chosen: Steering | NoiseTable
    planner: Planner | None = None  # none: the base alone
    settings: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec.limits(self.outputs)
        (self._told,) = spec.tokens(self.inputs)
        self._measured = spec.size(spec.numbers(self.inputs))
        if self.eye.size != self.base.observed or spec.size(self.outputs) != self.base.actions:
            raise ValueError(
                f"the base takes {self.base.observed} numbers and gives {self.base.actions}, its eye sees "
                f"{self.eye.size} and the commands are {spec.size(self.outputs)}"
            )

    @classmethod
    def from_task(
        cls,
        task: Task,
        base: ExportableBase,
        eye: ToldEye,
        chosen: Steering | NoiseTable,
        planner: Planner | None = None,
    ) -> ToldPolicy:
        """The controller of `task` with a trained base."""
        return cls(**told_contract(task), base=base, eye=eye, chosen=chosen, planner=planner)

    def plan(self) -> dict[str, int]:
        """For the policy file: "horizon", the actions in a plan; "replan", the control steps between two plans."""
        return {"horizon": self.base.horizon, "replan": self.base.horizon}

    def state(self) -> Group:
        """The state as signals."""
        return tuple(Signal(name, value.shape[1:]) for name, value in self.initial_state(1).items())

    def initial_state(self, n: int) -> dict[str, Array]:
        """Nothing told and nothing planned yet: name -> (n, k)."""
        state = nothing_told(n, self._told, self.eye.kept)
        state |= {"chunk": np.zeros((n, self.base.noise_size), np.float32), "left": np.zeros((n, 1), np.float32)}
        if isinstance(self.chosen, NoiseTable):
            state["draw"] = np.full((n, 1), -1.0, np.float32)
        return state

    def limits(self) -> tuple[Array, Array]:
        """Low and high (actions,) of the commands."""
        return spec.limits(self.outputs)

    def act(self, signals: Mapping[str, Any], state: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Commands name -> (n, *shape) and the next state, from signals and state name -> (n, *shape)."""
        new, told = heard(signals, self._told, state, self.eye.hear)
        fresh = new | (state["left"] <= 0.0)
        if fresh.any():
            observation = self.eye.look(signals, told["told"])
        else:
            observation = np.zeros((len(fresh), self.eye.size), np.float32)
        after: dict[str, Array] = {}
        if isinstance(self.chosen, Steering):
            noise = self.chosen.noise(observation)
        else:
            noise, after["draw"] = self.chosen.drawn(observation[:, : self._measured], state["draw"], fresh)
        chunk = np.where(fresh, self._planned(observation, noise), state["chunk"])
        action, rest = carried_out(chunk, state["left"], fresh, self.base.horizon, self.base.actions)
        return physical(self.outputs, action), told | rest | after

    def _planned(self, observation: Array, noise: Array) -> Array:
        """New chunks (n, horizon * actions)."""
        if self.planner is None:
            return self.base.sample(observation, noise)
        return self.planner.sample(self.base, observation, noise)

    def write(self, graph: Graph) -> str:
        """The whole as ONNX nodes, the next state included; the name of the action in [-1, 1]."""
        changed, made, kept = write_heard(graph, self._told, lambda: self.eye.write_hear(graph))
        fresh = graph.add("Or", changed, graph.add("LessOrEqual", "state.left", graph.constant(0.0)))
        nothing = graph.add("MatMul", "state.left", graph.constant(np.zeros((1, self.eye.size))))  # nobody asks for it
        observation = graph.when(graph.some(fresh), lambda: self.eye.write_look(graph, kept), nothing)
        if isinstance(self.chosen, Steering):
            noise = self.chosen.write(graph, observation)
        else:
            noise = self.chosen.write(graph, graph.columns(observation, 0, self._measured), fresh)
        chunk = graph.add("Where", fresh, self._write_planned(graph, observation, noise), "state.chunk")
        told = {"heard": made, "kept": kept, "numbers": self.eye.words}
        graph.metadata["base"] |= {"seen": observation, "told": told}
        graph.metadata[TOKENISER] = described(self._told, self.eye.vocabulary)
        return write_carried_out(graph, chunk, fresh, self.base.horizon, self.base.actions, self.base.noise_size)

    def _write_planned(self, graph: Graph, observation: str, noise: str) -> str:
        """The same as ONNX nodes."""
        if self.planner is None:
            return self.base.write(graph, observation, noise)
        return self.planner.write(graph, self.base, observation, noise)
