"""Bases that come out of policy files, to be steered and put into other files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deploy.base import FileBase
from deploy.policy_file import PolicyFile, PolicyFileError
from policies.chunked import tell
from policies.controller import Array
from policies.vision import Eye
from sim import spec
from sim.workcell import Manipulation

if TYPE_CHECKING:
    from policies.export import Graph


class Look(Eye):
    """What makes a base's observation of pictures and numbers, as it stands in the base's file."""

    def __init__(self, base: FileBase) -> None:
        self.inputs, self.base = base.policy.inputs, base
        self.pictures, self.numbers = spec.pictures(self.inputs), spec.numbers(self.inputs)

    @property
    def size(self) -> int:
        return self.base.observed

    def see(self, signals: Mapping[str, Any]) -> Array:
        return self.base.see(signals)

    def write(self, graph: Graph) -> str:
        assert self.base.look is not None
        return graph.inline(self.base.look, *(s.name for s in self.inputs))


class Stored(FileBase):
    """The base of a policy file, as a part of others."""

    def __init__(self, policy: PolicyFile) -> None:
        super().__init__(policy)
        self.eye = Look(self) if self.look else None

    @classmethod
    def load(cls, path: str, task: Manipulation, horizon: int) -> Stored:
        """From the file at `path`; PolicyFileError unless it is for this task, with chunks of so many actions."""
        policy = PolicyFile.load(path)
        for kind, ours, theirs in (("task", policy.task, task.name), ("robot", policy.robot, task.robot.name)):
            if ours != theirs:
                raise PolicyFileError(f"{path} is for the {kind} {ours!r}, not {theirs!r}")
        if policy.rate_hz != task.rate_hz:
            raise PolicyFileError(f"{path} runs at {policy.rate_hz:g} Hz, {task.name} at {task.rate_hz:g} Hz")
        for kind, own, wanted in (("signals", policy.inputs, task.policy), ("commands", policy.outputs, task.commands)):
            if own != wanted:
                names = sorted({s.name for s in {*own} ^ {*wanted}}) or ["their order"]
                raise PolicyFileError(f"{path} has other {kind} than {task.name} as it is set: {', '.join(names)}")
        made = cls(policy)
        if made.horizon != horizon:
            what = f"{path} plans {made.horizon} actions at a time, not {horizon}"
            raise PolicyFileError(f"{what}: set algorithm.base.horizon={made.horizon}")
        return made

    def write(self, graph: Graph, observation: str, noise: str) -> str:
        """`sample` as ONNX nodes: those of the file."""
        chunk = graph.inline(self.part, observation, noise)
        tell(graph, (observation, noise, chunk), self.mean, self.deviation)
        return chunk
