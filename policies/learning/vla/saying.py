"""Drawing tokens, and judging them, from logits: the same for every policy that speaks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from policies.learning.vla import Spoken
from policies.models.tokens import ActionTokens

NEVER = 1e-20  # probability of what blurring leaves no chance


def likely(logits: Tensor, temperature: float, blur: Tensor | None) -> Tensor:
    """Log-probabilities of logits (n, k, vocabulary), each place blurred by its own (k, vocabulary, vocabulary)."""
    if blur is None:
        return (logits / temperature).log_softmax(-1)
    spread = torch.einsum("nkv,kvw->nkw", (logits / temperature).softmax(-1), blur)
    return spread.clamp_min(NEVER).log()


def drawn(likely: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Tokens (...) of log-probabilities (..., vocabulary); the likeliest at temperature 0."""
    if temperature == 0.0:
        return likely.argmax(-1)
    rows = likely.exp().flatten(0, -2)
    return torch.multinomial(rows, 1, generator=generator).view(likely.shape[:-1])


def after(said: Tensor, tokens: ActionTokens) -> Tensor:
    """Which tokens (n, length) come after the end, and count no more."""
    if tokens.end is None:
        return torch.zeros_like(said, dtype=torch.bool)
    ends = (said == tokens.end).cumsum(1)
    return F.pad(ends[:, :-1], (1, 0)) > 0


def judged(said: Tensor, likely: Tensor, tokens: ActionTokens) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each (n, length), of log-probabilities (n, length, vocabulary)."""
    late = after(said, tokens)
    entropy = -(likely.exp() * likely).sum(-1)
    return likely.gather(-1, said[..., None])[..., 0].masked_fill(late, 0.0), entropy.masked_fill(late, 0.0)


def ended(said: Tensor, likely: Tensor, tokens: ActionTokens) -> Spoken:
    """What was said, with nothing but ends after the end."""
    found = judged(said, likely, tokens)
    return Spoken(said if tokens.end is None else said.masked_fill(after(said, tokens), tokens.end), *found)
