"""Bases that were not made here: out of policy files, to be put into other files; and on servers, which stay there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.remote.client import Client, ServerError
from deploy.remote.subgraph import FileBase
from deploy.teleop.instruction import tokeniser_of
from policies.algorithms import LostBaseError
from policies.models.chunking import ChunkPolicy, NoiseTable, Planner, Steering, contract, tell
from policies.models.controller import normalised
from policies.models.networks import Array
from policies.models.vision import ObservationEncoder
from sim import spec
from sim.spec import Signal
from sim.tasks import Task, sensed

if TYPE_CHECKING:
    from policies.models.graph import Graph


def fit(where: str, task: Task, contract: Mapping[str, Any]) -> None:
    """PolicyFileError unless what is known of a policy's contract is that of the task."""
    for kind, wanted in (("task", task.name), ("robot", task.robot.name)):
        if (found := contract.get(kind, wanted)) != wanted:
            raise PolicyFileError(f"{where} is for the {kind} {found!r}, not {wanted!r}")
    if (rate := contract.get("rate_hz", task.rate_hz)) != task.rate_hz:
        raise PolicyFileError(f"{where} runs at {rate:g} Hz, {task.name} at {task.rate_hz:g} Hz")
    for kind, key, group in (("signals", "inputs", sensed(task)), ("commands", "outputs", task.commands)):
        own = spec.from_json(contract[key]) if key in contract else group
        if own != group:
            names = sorted({s.name for s in {*own} ^ {*group}}) or ["their order"]
            raise PolicyFileError(f"{where} has other {kind} than {task.name} as it is set: {', '.join(names)}")


class Look(ObservationEncoder):
    """What makes a base's observation of pictures and numbers, as it stands in the base's file.

    Of one that is told in words it is a `policies.learning.vla.steered.ToldEye`.
    """

    def __init__(self, base: FileBase) -> None:
        self.inputs, self.base = base.policy.inputs, base
        self.pictures, self.numbers = spec.pictures(self.inputs), spec.numbers(self.inputs)
        self.words = base.words

    @property
    def size(self) -> int:
        return self.base.observed

    @property
    def kept(self) -> int:
        """Numbers that are kept of an instruction."""
        return self.base.kept

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Of the tokeniser of instructions."""
        return tokeniser_of(self.base.policy)[1].vocabulary

    def see(self, signals: Mapping[str, Any]) -> Array:
        return self.base.see(signals)

    def hear(self, tokens: NDArray[np.int64]) -> Array:
        """What is kept (n, kept) of tokens (n, k)."""
        return self.base.remembered(tokens)

    def look(self, signals: Mapping[str, Any], kept: Array) -> Array:
        """Observations (n, size) of signals, of whose instruction that is kept."""
        assert self.base.look is not None
        return self.base.look.run(kept, *(np.asarray(signals[s.name], s.dtype) for s in self.inputs))

    def write(self, graph: Graph) -> str:
        assert self.base.look is not None
        return graph.inline(self.base.look, *(s.name for s in self.inputs))

    def write_hear(self, graph: Graph) -> str:
        """`hear` as ONNX nodes."""
        assert self.base.hear is not None
        return graph.inline(self.base.hear, self.base.told.name)

    def write_look(self, graph: Graph, kept: str) -> str:
        """`look` as ONNX nodes."""
        assert self.base.look is not None
        return graph.inline(self.base.look, kept, *(s.name for s in self.inputs))


class Stored(FileBase):
    """The base of a policy file, as a part of others."""

    def __init__(self, policy: PolicyFile) -> None:
        super().__init__(policy)
        self.eye = Look(self) if self.look else None

    @classmethod
    def load(cls, path: str, task: Task, horizon: int) -> Stored:
        """From the file at `path`; PolicyFileError unless it is for this task, with chunks of so many actions."""
        policy = PolicyFile.load(path)
        fit(path, task, policy.metadata)
        made = cls(policy)
        if made.horizon != horizon:
            what = f"{path} plans {made.horizon} actions at a time, not {horizon}"
            raise PolicyFileError(f"{what}: set algorithm.base.horizon={made.horizon}")
        if made.eye is None and made.observed != (told := spec.size(task.policy)):
            raise PolicyFileError(f"the base of {path} is told {made.observed} numbers, not {told}: see task.history")
        return made

    def write(self, graph: Graph, observation: str, noise: str) -> str:
        """`sample` as ONNX nodes: those of the file."""
        chunk = graph.inline(self.part, observation, noise)
        tell(graph, (observation, noise, chunk), self.mean, self.deviation)
        return chunk


class ServerBase:
    """A base on a policy server."""

    eye = None

    def __init__(self, client: Client, task: Task, horizon: int, noise: tuple[int, int]) -> None:
        """`noise`: rows and columns that the server takes for a chunk, of which `horizon` actions are carried out."""
        self.client, self.task, self.horizon, self.noise = client, task, horizon, noise
        self.noise_size = noise[0] * noise[1]

    def sample(self, observation: Array, noise: Array) -> Array:
        """Chunks (n, horizon * actions) in [-1, 1]; LostBaseError when the server fails."""
        commands = self.task.commands
        signals = spec.unpack(self.task.policy, np.asarray(observation, np.float32))
        rows = noise.reshape(-1, *self.noise)
        try:
            actions = self.client.actions(signals, rows, self.horizon, spec.size(commands))
        except ServerError as error:
            raise LostBaseError(str(error)) from None
        chunk = normalised(commands, spec.unpack(commands, actions)).reshape(len(rows), -1)
        clipped: Array = np.clip(chunk, np.float32(-1.0), np.float32(1.0))
        return clipped


@dataclass
class NoiseOnly:
    """What stands for a base that runs elsewhere: it gives its noise back, in parts of `bound`."""

    noise_size: int
    observed: int
    bound: float
    about: Mapping[str, Any]  # the metadata "served": see `deploy.remote.split_policy`
    eye: ObservationEncoder | None = None
    horizon: int = 1

    @property
    def actions(self) -> int:
        return self.noise_size

    def sample(self, observation: Array, noise: Array) -> Array:
        """The noise (n, noise_size), in [-1, 1]."""
        given: Array = np.clip(noise * np.float32(1.0 / self.bound), -1.0, 1.0)
        return given

    def write(self, graph: Graph, observation: str, noise: str) -> str:
        """The same as ONNX nodes."""
        graph.metadata["served"] = dict(self.about)
        part = graph.add("Mul", noise, graph.constant(1.0 / self.bound))
        return graph.add("Clip", part, graph.constant(-1.0), graph.constant(1.0))


def front(task: Task, remote: ServerBase, chosen: Steering | NoiseTable, planner: Planner | None) -> ChunkPolicy:
    """The controller that only chooses the noise, once per plan; `split_policy` asks the server with it."""
    rows, width = remote.noise
    about = {
        "commands": spec.to_json(task.commands),
        "rate_hz": task.rate_hz,
        "horizon": remote.horizon,
        "noise": [rows, width],
        "sha256": remote.client.metadata.get("sha256"),
    }
    bound = chosen.magnitude if isinstance(chosen, Steering) else max(1.0, float(np.abs(chosen.table).max()))
    terms = contract(task)
    terms |= {"outputs": (Signal("noise", (rows * width,), low=-bound, high=bound),)}
    terms["rate_hz"] = task.rate_hz / remote.horizon
    echo = NoiseOnly(remote.noise_size, spec.size(task.policy), bound, about)
    return ChunkPolicy(**terms, base=echo, chosen=chosen, replan=1, planner=planner)
