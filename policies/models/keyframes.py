"""A controller that was told what keyframes say, and that finds it out by itself: the clock and the table are inside.

The same as `sim.tasks.legs.motions.Script`, of what a sensor says of gravity: which motion fits how the robot lies, how
far it is, and whether it stands when that is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.models.controller import Policy
from policies.models.networks import Array
from sim.spec import Group, Signal
from sim.tasks import Task
from sim.tasks.abilities import timetable_of
from sim.tasks.legs.motions import LYING, REFERENCE, STANDS, Timetable

if TYPE_CHECKING:
    from policies.models.graph import Graph

GRAVITY = "projected_gravity"
LEANS = np.float32(-np.cos(STANDS))  # gravity along the body's z axis above which it does not stand
BEFORE = -1.0  # control steps since a motion began: none has


def whole(controller: Policy, task: Task) -> Policy:
    """The controller as it is written into a policy file: with the keyframes that it is told in training."""
    table = timetable_of(task)
    return controller if table is None else KeyframePolicy(controller, table)


@dataclass
class KeyframePolicy:
    """`inner`, which takes the signal `reference`, and where that comes from."""

    inner: Policy
    timetable: Timetable
    name: str = field(init=False)
    task: str = field(init=False)
    robot: str = field(init=False)
    rate_hz: float = field(init=False)
    inputs: Group = field(init=False)
    outputs: Group = field(init=False)
    settings: dict[str, Any] = field(init=False)
    envelope: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("name", "task", "robot", "rate_hz", "outputs", "settings", "envelope"):
            setattr(self, name, getattr(self.inner, name))
        self.inputs = tuple(s for s in self.inner.inputs if s.name != REFERENCE)
        if missing := {REFERENCE, GRAVITY} - {s.name for s in self.inner.inputs}:
            raise ValueError(f"a controller that follows keyframes takes {', '.join(sorted(missing))}")
        self._table = np.asarray(self.timetable.offsets, np.float32)
        self._ends = np.asarray(self.timetable.ends, np.float32)

    def state(self) -> Group:
        return (*self.inner.state(), Signal("motion", (1,)), Signal("since", (1,)))

    def limits(self) -> tuple[Array, Array]:
        return self.inner.limits()

    def initial_state(self, n: int) -> dict[str, Array]:
        clock = {"motion": np.zeros((n, 1), np.float32), "since": np.full((n, 1), BEFORE, np.float32)}
        return self.inner.initial_state(n) | clock

    def act(
        self, signals: Mapping[str, Array], state: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        gravity, motion, since = np.asarray(signals[GRAVITY], np.float32), state["motion"], state["since"]
        ends = self._ends[motion.astype(np.int64)]
        later = np.minimum(since + np.float32(1.0), ends)
        starts = (since < 0.0) | ((later >= ends) & (gravity[:, 2:] > LEANS))
        motion = np.where(starts, self.timetable.nearest(gravity)[:, None], motion).astype(np.float32)
        since = np.where(starts, np.float32(0.0), later)
        at = np.minimum(since, np.float32(self._table.shape[1] - 1)).astype(np.int64)
        told = self._table[motion[:, 0].astype(np.int64), at[:, 0]]
        commands, after = self.inner.act({**signals, REFERENCE: told}, state)
        return commands, after | {"motion": motion, "since": since}

    def write(self, graph: Graph) -> str:
        count, steps, servos = self._table.shape
        ahead, aside, down = (graph.columns(GRAVITY, k, k + 1) for k in range(3))
        zero, motion, since = graph.constant(0.0), "state.motion", "state.since"
        right = graph.real(graph.add("Less", aside, zero))
        front = graph.real(graph.add("Greater", ahead, zero))
        nearest = graph.add("Add", front, graph.add("Mul", right, graph.constant(float(len(LYING)))))
        ends = graph.add("Gather", graph.constant(self._ends), graph.whole(motion))
        later = graph.add("Min", graph.add("Add", since, graph.constant(1.0)), ends)
        fallen = graph.add("Greater", down, graph.constant(LEANS))
        again = graph.add("And", graph.add("GreaterOrEqual", later, ends), fallen)
        starts = graph.add("Or", graph.add("Less", since, zero), again)
        motion = graph.add("Where", starts, nearest, motion, to="next_state.motion")
        since = graph.add("Where", starts, zero, later, to="next_state.since")
        first = graph.add("Mul", motion, graph.constant(float(steps)))
        row = graph.add("Add", first, graph.add("Min", since, graph.constant(float(steps - 1))))
        table = graph.weight(self._table.reshape(count * steps, servos))
        told = graph.add("Gather", table, graph.whole(row))
        graph.add("Reshape", told, graph.constant([-1, servos], np.int64), to=REFERENCE)
        return self.inner.write(graph)
