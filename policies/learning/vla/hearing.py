"""What a controller keeps of its instruction: it is encoded when it changes, not at every control step.

State: "words", the tokens that were told last (n, k); "told", what is kept of them (n, m).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policies.language.minilm import SentenceEncoder
from policies.learning.vla.looking import Looking
from policies.models.networks import Array
from sim.spec import Signal

if TYPE_CHECKING:
    from policies.models.graph import Graph

NOTHING = -1.0  # in the place of tokens: nothing has been said yet

Hear = Callable[[NDArray[np.int64]], Array]  # tokens (n, k) -> what is kept of them (n, m)


class Listener(nn.Module):
    """What is kept of an instruction: from its tokens (n, words), 0 where there are none, to numbers (n, k)."""

    def __init__(self, encoder: SentenceEncoder, policy: Looking) -> None:
        super().__init__()
        self.encoder, self.policy = encoder, policy

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != 0
        return self.policy.tell(self.encoder(tokens, there), there).packed()

    @torch.no_grad()
    def hear(self, tokens: NDArray[np.int64]) -> Array:
        """The same of numpy's."""
        made: Array = self(torch.from_numpy(tokens)).numpy()
        return made


def nothing_told(n: int, signal: Signal, kept: int) -> dict[str, Array]:
    """The state before the first instruction, of which `kept` numbers are kept."""
    return {
        "words": np.full((n, *signal.shape), NOTHING, np.float32),
        "told": np.zeros((n, kept), np.float32),
    }


def heard(
    signals: Mapping[str, Any], signal: Signal, state: Mapping[str, Array], hear: Hear
) -> tuple[NDArray[np.bool_], dict[str, Array]]:
    """Which rows are told something new (n, 1), and the next state."""
    tokens = np.ascontiguousarray(signals[signal.name], np.int64)
    words = tokens.astype(np.float32)
    new = (words != state["words"]).any(1, keepdims=True)
    told = state["told"]
    if new.any():
        told = np.where(new, hear(tokens), told)
    return new, {"words": words, "told": told}


def write_heard(graph: Graph, signal: Signal, hear: Callable[[], str]) -> tuple[str, str, str]:
    """The same as ONNX nodes: which rows are new, what was made of their words just now, and what is kept of all."""
    words = graph.add("Identity", graph.real(signal.name), to="next_state.words")
    differs = graph.real(graph.add("Not", graph.add("Equal", words, "state.words")))
    most = graph.add("ReduceMax", differs, graph.constant([1], np.int64), keepdims=1)
    changed = graph.add("Greater", most, graph.constant(0.0))
    made = graph.when(graph.some(changed), hear, "state.told")
    return changed, made, graph.add("Where", changed, made, "state.told", to="next_state.told")


def described(signal: Signal, vocabulary: tuple[str, ...]) -> dict[str, Any]:
    """Of a tokeniser, for the file's metadata (`deploy.teleop.instruction`)."""
    return {"kind": "wordpiece", "signal": signal.name, "vocabulary": [*vocabulary]}
