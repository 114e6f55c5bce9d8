"""Policies that are told in words and speak actions as tokens, as one controller: a sentence encoder, eyes, a decoder.

The whole is in the file: tokens of the instruction in, commands out. The sentence is encoded when it changes, pictures
are looked at when a chunk is planned, and the likeliest tokens are said, in as many turns as a chunk takes tokens at
most: what comes after the end is not read, and what cannot be read is a stop. The tokeniser and what the action tokens
mean are in the file's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from deploy.teleop.instruction import KEY as TOKENISER
from policies.language.minilm import SentenceEncoder
from policies.learning.vla.hearing import Listener, described, heard, nothing_told, write_heard
from policies.learning.vla.reading import reader
from policies.learning.vla.tiny import TinyVla
from policies.models.chunking import carried_out, told_contract, write_carried_out
from policies.models.controller import physical
from policies.models.graph import spliced
from policies.models.networks import Array
from sim import spec
from sim.spec import Group, Signal
from sim.tasks import Task

if TYPE_CHECKING:
    from policies.models.graph import Graph


class Speaker(nn.Module):
    """What is said: of what was told, numbers (n, k), and pictures. (n, horizon * actions + 2).

    The chunk in [-1, 1]; the entropy of what was said, nats per token; the value of what is seen.
    """

    def __init__(self, policy: TinyVla, hold: int, actions: int) -> None:
        super().__init__()
        self.policy, self.hold, self.actions = policy, hold, actions
        self.reader = reader(policy.tokens)

    def forward(self, tokens: Tensor, told: Tensor, numbers: Tensor, pictures: tuple[Tensor, ...] = ()) -> Tensor:
        seen = {s.name: shown for s, shown in zip(self.policy.pictures, pictures, strict=True)}
        prefix = self.policy.encode(self.policy.recalled(told, tokens != 0), numbers, seen)
        said = self.policy.generate(prefix, 0.0)
        chunk = self.reader(said.tokens).unflatten(1, (-1, self.actions)).repeat_interleave(self.hold, 1)
        counted = (~self.policy.after(said.tokens)).sum(1)
        thoughts = (said.entropy.sum(1) / counted, self.policy.value(prefix))
        return torch.cat([chunk.flatten(1), torch.stack(thoughts, 1)], 1)


@dataclass
class SpokenPolicy:
    """The controller. A chunk of `horizon` actions is said whole, and anew when the instruction changes.

    State: "words", the tokens that were told last (n, k); "told", what is kept of them; "chunk", what is left of the
    plan, next action first, in [-1, 1]; "left", how many of them are still to be executed (n, 1). Nothing depends on
    the last two, which are to be looked at: "entropy" of what was said last, nats per token, and, of who `values` what
    is seen, its "value" then.
    """

    name: str
    task: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    encoder: SentenceEncoder
    policy: TinyVla
    horizon: int
    settings: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, float] = field(default_factory=dict)
    values: bool = False  # whether it has learned what a state is worth; a clone has not

    def __post_init__(self) -> None:
        spec.limits(self.outputs)
        (self._told,) = spec.tokens(self.inputs)
        self._numbers, self._pictures = spec.numbers(self.inputs), spec.pictures(self.inputs)
        self.actions = spec.size(self.outputs)
        tokens = self.policy.tokens
        if tokens.actions != self.actions or self.horizon % tokens.horizon:
            raise ValueError(
                f"a chunk of {self.horizon} actions of {self.actions} numbers is said by its equal parts, "
                f"got tokens of {tokens.horizon} actions of {tokens.actions}"
            )
        self._listener = Listener(self.encoder, self.policy).eval()
        self._speaker = Speaker(self.policy, self.horizon // tokens.horizon, self.actions).eval()
        self._size = self.horizon * self.actions  # of a chunk
        self._thoughts = ("entropy", "value") if self.values else ("entropy",)

    @classmethod
    def from_task(
        cls, task: Task, encoder: SentenceEncoder, policy: TinyVla, horizon: int, values: bool = False
    ) -> SpokenPolicy:
        """The controller of `task` with a trained policy."""
        return cls(**told_contract(task), encoder=encoder, policy=policy, horizon=horizon, values=values)

    def plan(self) -> dict[str, int]:
        """For the policy file: "horizon", the actions in a plan; "replan", the control steps between two plans."""
        return {"horizon": self.horizon, "replan": self.horizon}

    def state(self) -> Group:
        """The state as signals."""
        return tuple(Signal(name, value.shape[1:]) for name, value in self.initial_state(1).items())

    def initial_state(self, n: int) -> dict[str, Array]:
        """Nothing told and nothing planned yet: name -> (n, k)."""
        kept = self.policy.kept(self._told.shape[0])
        return {
            **nothing_told(n, self._told, kept),
            "chunk": np.zeros((n, self._size), np.float32),
            "left": np.zeros((n, 1), np.float32),
            **{name: np.zeros((n, 1), np.float32) for name in self._thoughts},
        }

    def limits(self) -> tuple[Array, Array]:
        """Low and high (actions,) of the commands."""
        return spec.limits(self.outputs)

    @torch.no_grad()
    def act(self, signals: Mapping[str, Any], state: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Commands name -> (n, *shape) and the next state, from signals and state name -> (n, *shape)."""
        new, told = heard(signals, self._told, state, self._listener.hear)
        plan = np.concatenate([state[name] for name in ("chunk", *self._thoughts)], axis=1)
        fresh = new | (state["left"] <= 0.0)
        if fresh.any():
            numbers = torch.from_numpy(spec.pack(self._numbers, signals))
            shown = tuple(torch.from_numpy(np.ascontiguousarray(signals[s.name])) for s in self._pictures)
            tokens = torch.from_numpy(np.ascontiguousarray(signals[self._told.name], np.int64))
            said = self._speaker(tokens, torch.from_numpy(told["told"]), numbers, shown).numpy()
            plan = np.where(fresh, said[:, : plan.shape[1]], plan)
        chunk, *thoughts = np.split(plan, [self._size + k for k in range(len(self._thoughts))], axis=1)
        action, rest = carried_out(chunk, state["left"], fresh, self.horizon, self.actions)
        return physical(self.outputs, action), told | rest | dict(zip(self._thoughts, thoughts, strict=True))

    def write(self, graph: Graph) -> str:
        """The whole as ONNX nodes, the next state included; the name of the action in [-1, 1]."""
        words_of = torch.ones(2, *self._told.shape, dtype=torch.int64)

        def listen() -> str:
            return spliced(graph, self._listener, (words_of,), (self._told.name,))

        changed, _, told = write_heard(graph, self._told, listen)
        fresh = graph.add("Or", changed, graph.add("LessOrEqual", "state.left", graph.constant(0.0)))
        numbers = graph.join([s.name for s in self._numbers])
        shown = tuple(s.name for s in self._pictures)

        def speak() -> str:
            pictures = tuple(torch.zeros(2, *s.shape, dtype=torch.uint8) for s in self._pictures)
            rows = (torch.zeros(2, self.initial_state(1)["told"].shape[1]), torch.zeros(2, spec.size(self._numbers)))
            given = (self._told.name, told, numbers, *shown)
            seen = (pictures,) if pictures else ()  # torch exports no empty tuple
            said = spliced(graph, self._speaker, (words_of, *rows, *seen), given)
            return graph.columns(said, 0, self._size + len(self._thoughts))

        before = graph.join(["state.chunk", *(f"state.{name}" for name in self._thoughts)])
        plan = graph.add("Where", fresh, graph.when(graph.some(fresh), speak, before), before)
        chunk = graph.columns(plan, 0, self._size)
        for place, name in enumerate(self._thoughts, self._size):
            graph.columns(plan, place, place + 1, to=f"next_state.{name}")
        graph.metadata[TOKENISER] = described(self._told, self.encoder.words.vocabulary)
        graph.metadata["action_tokens"] = self.policy.tokens.described()
        return write_carried_out(graph, chunk, fresh, self.horizon, self.actions, self._size)
