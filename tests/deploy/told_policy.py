"""A policy of an arm that is told in words, and needs no encoder: what its hand does is a table of the first word."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deploy.policy_file import PolicyFile
from deploy.teleop.instruction import KEY
from policies.models.chunking import carried_out, told_contract, write_carried_out
from policies.models.controller import physical
from policies.models.export import export
from sim import spec
from sim.spec import Group, Signal
from sim.tasks.arm.reach import ArmReach

VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "left", "right", "stop", "go", "please")
WORDS, ACTIONS = 6, 4
TOLD = Signal("instruction", (WORDS,), "1", "", 0.0, len(VOCABULARY) - 1.0, max_age=3600.0, dtype="int64")
SPEEDS = dict(zip(VOCABULARY[4:7], (0.5, -0.5, 0.0), strict=True))  # share of the most, to the left
PLAN = 5  # actions; it looks and listens when it begins one


def table() -> np.ndarray:
    """Chunks (words, PLAN * ACTIONS) in [-1, 1]."""
    made = np.zeros((len(VOCABULARY), PLAN, ACTIONS), np.float32)
    for word, speed in SPEEDS.items():
        made[VOCABULARY.index(word), :, 1] = speed
    return made.reshape(len(VOCABULARY), -1)


@dataclass
class Obedient:
    """The controller."""

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    settings: dict[str, Any]
    envelope: dict[str, float]
    chunks: np.ndarray = field(default_factory=table)

    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        return spec.limits(self.outputs)

    def plan(self) -> dict[str, int]:
        return {"horizon": PLAN, "replan": PLAN}

    def state(self) -> Group:
        return tuple(Signal(name, value.shape[1:]) for name, value in self.initial_state(1).items())

    def initial_state(self, n: int) -> dict[str, np.ndarray]:
        return {"chunk": np.zeros((n, PLAN * ACTIONS), np.float32), "left": np.zeros((n, 1), np.float32)}

    def act(self, signals: Any, state: Any) -> Any:
        fresh = state["left"] <= 0.0
        chunk = np.where(fresh, self.chunks[np.asarray(signals["instruction"], np.int64)[:, 1]], state["chunk"])
        action, rest = carried_out(chunk, state["left"], fresh, PLAN, ACTIONS)
        return physical(self.outputs, action), rest

    def write(self, graph: Any) -> str:
        graph.metadata[KEY] = {"kind": "wordpiece", "signal": "instruction", "vocabulary": [*VOCABULARY]}
        fresh = graph.add("LessOrEqual", "state.left", graph.constant(0.0))
        word = graph.rows(graph.columns("instruction", 1, 2))
        chunk = graph.add("Where", fresh, graph.add("Gather", graph.constant(self.chunks), word), "state.chunk")
        return write_carried_out(graph, chunk, fresh, PLAN, ACTIONS, PLAN * ACTIONS)


def obedient(path: Any) -> PolicyFile:
    """Its file."""
    task = ArmReach()
    about = told_contract(task)
    seen = tuple(s for s in task.policy if s.name in ("hand_position", "goal_position"))
    return export(Obedient(**{**about, "name": "obedient", "inputs": (*seen, TOLD)}), path)
