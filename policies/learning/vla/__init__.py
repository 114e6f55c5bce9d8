"""Policies that look, are told in words, and speak actions as tokens: all that a learner needs to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.models.tokens import ActionTokens
from sim.language.wordpiece import WordPiece


@dataclass
class Spoken:
    """What a policy said."""

    tokens: Tensor  # (n, length)
    log_probability: Tensor  # (n, length) of each, given those before it; 0 after the end
    entropy: Tensor  # (n, length), nats, of what each was drawn from; 0 after the end


@dataclass
class Judged:
    """What a policy thinks of tokens."""

    log_probability: Tensor  # (n, length) of each, given those before it; 0 after the end
    entropy: Tensor  # (n, length), nats; 0 after the end
    value: Tensor  # (n,) of what is seen, in whatever unit the learner gives it


class Hearing(Protocol):
    """What makes words of sentences, in the form that a policy is told."""

    @property
    def words(self) -> WordPiece:
        """Of the task's instructions."""

    def states(self, sentences: list[str], most: int) -> tuple[Tensor, Tensor]:
        """Words (n, k, size) of sentences of at most `most` pieces, and which are there (n, k)."""


class TokenPolicy(Protocol):
    """A policy whose actions are tokens; only action tokens can be said.

    `Told` and `Prefix` are its own: what it keeps of an instruction, once per episode, and of what is seen, once per
    chunk. Temperatures divide the logits, and `blur` (length, vocabulary, vocabulary) gives what a place would say, row
    by row, to other tokens: log-probabilities are those of the distribution that was drawn from.
    """

    tokens: ActionTokens
    agreement: float  # nats per chunk by which what it generates and how it judges that may differ
    deviation: Tensor  # (k,) of the numbers that it learned from

    def normalise(self, numbers: Tensor) -> None:
        """From now on numbers (n, k) like these are usual."""

    def tell(self, words: Tensor, there: Tensor) -> Any:
        """What it keeps of instructions, which `at(rows)` gives of some: words (n, k, size), and which are there.

        Of `Hearing`: the token states of a sentence encoder, or what else it reads.
        """

    def encode(self, told: Any, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Any:
        """What it keeps of numbers (n, k) and pictures name -> (n, height, width, 3) uint8."""

    def generate(
        self, prefix: Any, temperature: float, generator: torch.Generator | None = None, blur: Tensor | None = None
    ) -> Spoken:
        """Tokens drawn at a temperature; at 0 the likeliest, without a generator, with probabilities at 1."""

    def evaluate(self, prefix: Any, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Judged:
        """Of tokens (n, length), with gradients; the temperature is positive."""

    def likely(self, prefix: Any, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Tensor:
        """Log-probabilities of every token in each place (n, length, vocabulary), with gradients."""

    def detokenise(self, tokens: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Chunks (n, horizon * actions) in [-1, 1], and which could be read; the others are a stop."""
