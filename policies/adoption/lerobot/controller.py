"""A policy of LeRobot with everything around it: raw named signals in, commands out; see `policies.models.controller`.

A plan is made where none is left, of what is seen then, and carried out action by action: LeRobot's queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from policies.adoption.contract import Contract, Piece, pieces_of, response_of
from policies.adoption.fields import DescriptionError
from policies.adoption.lerobot.description import PlanDescription, shown, told
from policies.adoption.lerobot.folder import Folder
from policies.adoption.lerobot.readings import readings
from policies.adoption.readings import Reading
from policies.adoption.terms import affine, clipped, picked, value, within, write_value
from policies.models.chunking import carried_out, write_carried_out
from policies.models.controller import physical
from policies.models.graph import Graph
from policies.models.networks import Array
from sim import spec
from sim.spec import Group, Signal


class Planner(Protocol):
    """Numbers (n, k) as the policy takes them and pictures (n, h, w, 3) in, chunks of its actions out."""

    horizon: int  # actions in a chunk
    replan: int  # of these are carried out

    def initial_state(self, n: int) -> dict[str, Array]:
        """What it remembers beside the plan, by name (n, k)."""

    def plan(
        self, numbers: Array, pictures: list[Any], state: Mapping[str, Array], left: Array
    ) -> tuple[Array | None, dict[str, Array]]:
        """Chunks (n, horizon * actions), None where no row of `left` (n, 1) asks for one; and the next state."""

    def write(self, graph: Graph, numbers: str, pictures: tuple[Signal, ...], nothing: str) -> str:
        """The same as ONNX nodes, `next_state.NAME` included; `nothing`: a chunk for when nobody asks for one."""


class LeRobotPolicy:
    """As `policies.models.export` takes it.

    State: "chunk", what is left of the plan, next action first (n, horizon * actions), parts of the commands' ranges;
    "left", how many of them are still to be carried out (n, 1); and what the planner remembers.
    """

    def __init__(self, description: PlanDescription, contract: Contract, folder: Folder, planner: Planner) -> None:
        """DescriptionError where terms, pictures or commands do not fit the policy, naming the field."""
        self.description, self.contract, self.folder, self.planner = description, contract, folder, planner
        self.name, self.task, self.robot = description.name, contract.task, contract.robot
        self.rate_hz, self.outputs = contract.rate_hz, contract.outputs
        self.settings, self.envelope = contract.settings, contract.envelope
        spec.limits(self.outputs)
        self.actions = spec.size(self.outputs)
        if folder.actions != self.actions:
            parts = ", ".join(f"{s.name} {s.size}" for s in self.outputs)
            raise DescriptionError(f"action: the policy returns {folder.actions} numbers, the commands take {parts}")
        self.response = response_of(description.actions, contract)
        numbers = tuple(s for s in contract.inputs if s.dtype == "float32")
        self.pieces: list[Piece] = pieces_of(description, replace(contract, inputs=numbers), self.actions)
        self._check_size()
        self.pictures = shown(description, folder, contract)
        used = {name for p in self.pieces for name in (*p.term.signals, p.term.minus)}
        used |= {s.name for s in self.pictures}
        self.inputs: Group = tuple(s for s in contract.inputs if s.name in used)
        self._numbers = tuple(s for s in numbers if s.name in used)
        if not self._numbers:
            raise DescriptionError("observation: no term reads a signal: the policy would not feel its robot")

    def _check_size(self) -> None:
        """DescriptionError with what each term adds, unless they fill the policy's inputs."""
        total, wanted = sum(p.size for p in self.pieces), sum(self.folder.numbers.values())
        if total != wanted:
            parts = ", ".join(f"{p.term.label} {p.size}" for p in self.pieces)
            raise DescriptionError(
                f"observation: the terms make {total} numbers ({parts}), the policy takes {told(self.folder)}: "
                f"{abs(total - wanted)} {'too many' if total > wanted else 'are missing'}"
            )

    def plan(self) -> dict[str, int]:
        """For the policy file: "horizon", the actions in a plan; "replan", the control steps between two plans."""
        return {"horizon": self.planner.horizon, "replan": self.planner.replan}

    def readings(self) -> Iterator[Reading]:
        """What else its description could mean."""
        return readings(self.description, self.contract)

    def otherwise(self, description: Any) -> LeRobotPolicy:
        """The same policy, read otherwise; DescriptionError where that does not fit."""
        return LeRobotPolicy(description, self.contract, self.folder, self.planner)

    def state(self) -> Group:
        return tuple(Signal(name, value.shape[1:]) for name, value in self.initial_state(1).items())

    def limits(self) -> tuple[Array, Array]:
        return spec.limits(self.outputs)

    def initial_state(self, n: int) -> dict[str, Array]:
        """Nothing planned yet."""
        made = {"chunk": np.zeros((n, self.planner.horizon * self.actions), np.float32)}
        return made | {"left": np.zeros((n, 1), np.float32)} | self.planner.initial_state(n)

    def see(self, signals: Mapping[str, Any]) -> Array:
        """The numbers (n, k) that the policy is fed, before its own normalisation."""
        rows = len(np.asarray(signals[self.inputs[0].name]))
        return np.concatenate([value(p, signals, None, rows) for p in self.pieces], axis=-1)

    def act(self, signals: Mapping[str, Any], state: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        shown = [np.asarray(signals[s.name], np.uint8) for s in self.pictures]
        made, after = self.planner.plan(self.see(signals), shown, state, state["left"])
        fresh = state["left"] <= 0.0
        chunk = state["chunk"] if made is None else np.where(fresh, self._commanded(made), state["chunk"])
        action, rest = carried_out(chunk, state["left"], fresh, self.planner.replan, self.actions)
        return physical(self.outputs, action), rest | after

    def _commanded(self, made: Array) -> Array:
        """Of chunks (n, horizon * actions) as the policy makes them, the parts of the commands' ranges."""
        y, parts, begin = made.reshape(len(made), self.planner.horizon, self.actions), [], 0
        for action, size in self._sizes():
            part = y[..., begin : begin + size]
            parts.append(within(np.tanh(part) if action.squash == "tanh" else part, action.clip))
            begin += size
        y = np.concatenate(parts, axis=-1)[..., self.response.order] * self.response.gain + self.response.bias
        return np.asarray(y, np.float32).reshape(len(made), -1)

    def _sizes(self) -> list[tuple[Any, int]]:
        sizes = {s.name: s.size for s in self.outputs}
        return [(action, sizes[action.command]) for action in self.description.actions]

    def write(self, graph: Graph) -> str:
        numbers = graph.join([write_value(graph, p, self._numbers, "") for p in self.pieces])
        size = self.planner.horizon * self.actions
        nothing = graph.add("MatMul", "state.left", graph.constant(np.zeros((1, size))))
        made = self.planner.write(graph, numbers, self.pictures, nothing)
        commanded = graph.rows(self._write_commanded(graph, graph.rows(made, self.actions)), size)
        fresh = graph.add("LessOrEqual", "state.left", graph.constant(0.0))
        chunk = graph.add("Where", fresh, commanded, "state.chunk")
        return write_carried_out(graph, chunk, fresh, self.planner.replan, self.actions, size)

    def _write_commanded(self, graph: Graph, y: str) -> str:
        """`_commanded` of rows of one action each."""
        sizes = self._sizes()
        parts = graph.split(y, [size for _, size in sizes]) if len(sizes) > 1 else [y]
        for k, (action, _) in enumerate(sizes):
            parts[k] = graph.add("Tanh", parts[k]) if action.squash == "tanh" else parts[k]
            parts[k] = clipped(graph, parts[k], action.clip)
        y = graph.join(parts)
        if self.response.order != list(range(self.actions)):
            y = picked(graph, y, self.response.order)
        return affine(graph, y, self.response.gain, self.response.bias)
