"""The controller of a policy that is too large for a policy file: it acts where torch is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from policies.learning.vla import Hearing
from policies.learning.vla.pretrained import PretrainedVla
from policies.models.chunking import carried_out, told_contract
from policies.models.controller import Policy, physical
from policies.models.networks import Array
from sim import spec
from sim.env import make_env, stream
from sim.rollout import rollout
from sim.spec import Group, Signal
from sim.tasks import Task

if TYPE_CHECKING:
    from policies.models.graph import Graph

NOTHING = -1.0  # in the place of tokens: nothing has been said yet
GRADING = int.from_bytes(b"grading")  # mixed into the seed of the episodes
ROWS = 16  # scenes flown together


@dataclass
class TorchSpokenPolicy:
    """A chunk of `horizon` actions is said whole, and anew when the instruction changes.

    State: "words", the task's tokens that were told last (n, k); "chunk", what is left of the plan, next action first,
    in [-1, 1]; "left", how many of them are still to be executed (n, 1).
    """

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    hearing: Hearing
    policy: PretrainedVla
    horizon: int
    settings: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self._told,) = spec.tokens(self.inputs)
        self._numbers, self._pictures = spec.numbers(self.inputs), spec.pictures(self.inputs)
        self._hold, self._actions = self.horizon // self.policy.tokens.horizon, spec.size(self.outputs)

    @classmethod
    def from_task(cls, task: Task, hearing: Hearing, policy: PretrainedVla, horizon: int) -> TorchSpokenPolicy:
        """The controller of `task` with what was learned."""
        return cls(**told_contract(task), hearing=hearing, policy=policy, horizon=horizon)

    def plan(self) -> dict[str, int]:
        """For a policy file: "horizon", the actions in a plan; "replan", the control steps between two plans."""
        return {"horizon": self.horizon, "replan": self.horizon}

    def state(self) -> Group:
        """The state as signals."""
        return tuple(Signal(name, value.shape[1:]) for name, value in self.initial_state(1).items())

    def initial_state(self, n: int) -> dict[str, Array]:
        """Nothing told and nothing planned yet: name -> (n, k)."""
        return {
            "words": np.full((n, *self._told.shape), NOTHING, np.float32),
            "chunk": np.zeros((n, self.horizon * self._actions), np.float32),
            "left": np.zeros((n, 1), np.float32),
        }

    def limits(self) -> tuple[Array, Array]:
        """Low and high (actions,) of the commands."""
        return spec.limits(self.outputs)

    def act(self, signals: Mapping[str, Any], state: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Commands name -> (n, *shape) and the next state; who goes on with a plan is not asked about."""
        words = np.asarray(signals[self._told.name]).astype(np.float32)
        fresh = (words != state["words"]).any(1, keepdims=True) | (state["left"] <= 0.0)
        chunk, rows = state["chunk"].copy(), np.flatnonzero(fresh)
        if len(rows):
            chunk[rows] = self._said({name: np.asarray(value)[rows] for name, value in signals.items()})
        action, rest = carried_out(chunk, state["left"], fresh, self.horizon, self._actions)
        return physical(self.outputs, action), {"words": words, **rest}

    @torch.no_grad()
    def _said(self, signals: Mapping[str, Array]) -> Array:
        """The likeliest chunks (n, horizon * actions) in [-1, 1]."""
        told = signals[self._told.name].astype(np.int64)
        sentences = [self.hearing.words.decode(row) for row in told]
        heard = self.policy.tell(*self.hearing.states(sentences, *self._told.shape))
        shown = {s.name: torch.from_numpy(np.ascontiguousarray(signals[s.name])) for s in self._pictures}
        prefix = self.policy.encode(heard, torch.from_numpy(spec.pack(self._numbers, signals)), shown)
        chunk, _ = self.policy.detokenise(self.policy.generate(prefix, 0.0).tokens)
        parts: Array = chunk.reshape(len(told), -1, self._actions).repeat(self._hold, axis=1).reshape(len(told), -1)
        return parts

    def why_unwritten(self) -> str:
        """Its size, and where what it learned is."""
        size = sum(parameter.numel() for parameter in self.policy.parameters())
        return (
            f"the model out of {self.policy.config.folder} ({size / 1e6:.3g} million parameters) is not written to a "
            "policy file: its prompts are of its own tokenizer, and ONNX files end at 2 GB; what it learned is in the "
            "run's checkpoint, from which algorithm=vla_rl algorithm.start=RUN goes on"
        )

    def write(self, graph: Graph) -> str:
        raise ValueError(self.why_unwritten())


def graded(task: Task, controller: Policy, episodes: int, seed: int) -> float:
    """Its success (0..1) in so many episodes of the task."""
    rows = min(ROWS, episodes)
    state = fresh = controller.initial_state(rows)

    def act(signals: Mapping[str, Any], numbers: Any, begun: NDArray[np.bool_]) -> dict[str, Array]:
        nonlocal state
        state = {name: np.where(begun[:, None], fresh[name], value) for name, value in state.items()}
        commands, state = controller.act(signals, state)
        return commands

    with closing(make_env(task, rows, stream(seed, GRADING))) as env:
        return float(np.mean([episode.succeeded for episode in rollout(task, env, act, range(episodes))]))
