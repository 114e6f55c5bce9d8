"""A policy whose plans say for which step each command is meant, and a robot that counts its steps in real time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deploy.drivers import Connecting, Reading
from deploy.policy_file import PolicyFile
from policies.models.chunking import carried_out, write_carried_out
from policies.models.controller import physical
from policies.models.export import export
from sim import spec
from sim.spec import Group, Signal

TICK = 1e-3  # of the signal "clock" and the command "due", per control step
HZ, HORIZON, REPLAN = 20.0, 32, 8
CLOCK = (Signal("clock", (1,), "1"),)
COMMANDS = (Signal("due", (1,), "1", "", 0.0, 1.0), Signal("asked", (1,), "1", "", 0.0, 1.0))


@dataclass
class Timetable:
    """Each plan: "due" is the clock of the step that the command is for, "asked" that of the plan's beginning."""

    name: str = "timetable"
    task: str = "none"
    robot: str = "bench"
    rate_hz: float = HZ
    inputs: Group = CLOCK
    outputs: Group = COMMANDS
    settings: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, float] = field(default_factory=dict)

    def limits(self) -> Any:
        return spec.limits(self.outputs)

    def plan(self) -> dict[str, int]:
        return {"horizon": HORIZON, "replan": REPLAN}

    def state(self) -> Group:
        return tuple(Signal(name, value.shape[1:]) for name, value in self.initial_state(1).items())

    def initial_state(self, n: int) -> dict[str, Any]:
        return {"chunk": np.zeros((n, 2 * HORIZON), np.float32), "left": np.zeros((n, 1), np.float32)}

    @property
    def layer(self) -> Any:
        later = np.stack([TICK * np.arange(HORIZON), np.zeros(HORIZON)], axis=1).reshape(-1)
        return np.full((2 * HORIZON, 1), 2.0, np.float32), np.float32(2.0 * later - 1.0)

    def act(self, signals: Any, state: Any) -> Any:
        weight, bias = self.layer
        fresh = state["left"] <= 0.0
        chunk = np.where(fresh, signals["clock"] @ weight.T + bias, state["chunk"])
        action, rest = carried_out(chunk, state["left"], fresh, REPLAN, 2)
        return physical(self.outputs, action), rest

    def write(self, graph: Any) -> str:
        fresh = graph.add("LessOrEqual", "state.left", graph.constant(0.0))
        chunk = graph.add("Where", fresh, graph.linear("clock", *self.layer), "state.chunk")
        return write_carried_out(graph, chunk, fresh, REPLAN, 2, 2 * HORIZON)


def timetable(path: Any) -> PolicyFile:
    """Its file."""
    clock = {"clock": TICK * np.arange(16, dtype=np.float32)[:, None]}
    return export(Timetable(), path, vectors_from=clock)


class Counting(Connecting):
    """The robot: its clock is how many commands it has got."""

    Config = dataclass(type("Config", (), {}))
    signals, commands, robot, rate_hz, num, real_time, done = CLOCK, COMMANDS, "bench", HZ, 1, True, False

    def __init__(self, steps: int) -> None:
        self.on_step: Callable[[int], object] = lambda step: None
        self.steps, self.sent, self.times = steps, list[tuple[float, float]](), list[float]()

    def read(self) -> Reading:
        return Reading({"clock": np.full((1, 1), TICK * len(self.sent), np.float32)}, {"clock": 0.0})

    def write(self, commands: Any) -> None:
        self.on_step(len(self.sent))
        self.times.append(time.perf_counter())
        self.sent.append((float(commands["due"][0, 0]) / TICK, float(commands["asked"][0, 0]) / TICK))

    def report(self) -> list[str]:
        return []
