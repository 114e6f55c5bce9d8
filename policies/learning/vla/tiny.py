"""A vision-language-action policy that learns on two cores: some 200,000 parameters and a frozen sentence encoder.

Tokens attend to what is seen and told (`looking`). They are said one after the other, or all at once (`parallel`, as
OpenVLA-OFT): then each has its own distribution, and a chunk costs one turn.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from policies.learning.vla import Judged, Spoken
from policies.learning.vla.looking import FIRST, Block, Looking, Prefix, TinyConfig
from policies.models.tokens import ActionTokens
from sim.spec import Group

NEVER = 1e-20  # probability of what blurring leaves no chance


class TinyVla(Looking):
    """The policy: a `TokenPolicy`. It is made of the same numbers for the same seed."""

    def __init__(
        self, tokens: ActionTokens, numbers: int, pictures: Group, words: int, config: TinyConfig, seed: int
    ) -> None:
        """For `numbers` measured numbers, these pictures, and words of so many numbers each."""
        width = config.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(numbers, pictures, words, config, seed)
            self.turn = nn.Parameter(FIRST * torch.randn(tokens.length, width))
            self.said = None if config.parallel else nn.Embedding(tokens.vocabulary, width)
            self.blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.layers))
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, tokens.vocabulary)
            self.worth = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.tokens = tokens
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def generate(
        self, prefix: Prefix, temperature: float, generator: torch.Generator | None = None, blur: Tensor | None = None
    ) -> Spoken:
        if temperature < 0.0:
            raise ValueError(f"temperature is zero or positive, got {temperature}")
        with torch.no_grad():
            if self.said is None:
                likely = _likely(self._logits(prefix, None), temperature or 1.0, blur)
                return self._ended(_drawn(likely, temperature, generator), likely)
            return self._said_in_turn(prefix, temperature, generator, blur)

    def _said_in_turn(
        self, prefix: Prefix, temperature: float, generator: torch.Generator | None, blur: Tensor | None
    ) -> Spoken:
        """Token after token: each turn works out its own keys and values, and finds those before it."""
        assert self.said is not None
        past: list[tuple[Tensor, Tensor] | None] = [None] * len(self.blocks)
        tokens: list[Tensor] = []
        likely: list[Tensor] = []
        for k in range(self.tokens.length):
            x = prefix.start + self.turn[k]
            x = (x + self.said(tokens[-1]) if tokens else x)[:, None]
            for layer, block in enumerate(self.blocks):
                x, past[layer] = block(x, prefix.attended[layer], prefix.there, True, past[layer])
            turn = None if blur is None else blur[k : k + 1]
            likely.append(_likely(self.head(self.last(x)), temperature or 1.0, turn)[:, 0])
            tokens.append(_drawn(likely[-1], temperature, generator))
        return self._ended(torch.stack(tokens, 1), torch.stack(likely, 1))

    def evaluate(self, prefix: Prefix, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Judged:
        if temperature <= 0.0:
            raise ValueError(f"temperature is positive, got {temperature}")
        likely = self.likely(prefix, tokens, temperature, blur)
        return Judged(*self._judged(tokens, likely), self.value(prefix))

    def value(self, prefix: Prefix) -> Tensor:
        """(n,) of what is seen."""
        worth: Tensor = self.worth(prefix.start)
        return worth.squeeze(-1)

    def likely(self, prefix: Prefix, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Tensor:
        """Log-probabilities of every token (n, length, vocabulary), given those before it."""
        return _likely(self._logits(prefix, tokens), temperature, blur)

    def detokenise(self, tokens: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return self.tokens.decode(tokens.cpu().numpy())

    def _logits(self, prefix: Prefix, tokens: Tensor | None) -> Tensor:
        """Of every token (n, length, vocabulary), given those before it if they are said in turn."""
        x = prefix.start[:, None] + self.turn
        if self.said is not None and tokens is not None:
            x = torch.cat([x[:, :1], x[:, 1:] + self.said(tokens[:, :-1])], 1)
        for block, attended in zip(self.blocks, prefix.attended, strict=True):
            x, _ = block(x, attended, prefix.there, self.said is not None)
        logits: Tensor = self.head(self.last(x))
        return logits

    def after(self, tokens: Tensor) -> Tensor:
        """Which tokens (n, length) come after the end, and count no more."""
        if self.tokens.end is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        ends = (tokens == self.tokens.end).cumsum(1)
        return F.pad(ends[:, :-1], (1, 0)) > 0

    def _judged(self, tokens: Tensor, likely: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each (n, length), of log-probabilities (n, length, vocabulary)."""
        after = self.after(tokens)
        entropy = -(likely.exp() * likely).sum(-1)
        return likely.gather(-1, tokens[..., None])[..., 0].masked_fill(after, 0.0), entropy.masked_fill(after, 0.0)

    def _ended(self, tokens: Tensor, likely: Tensor) -> Spoken:
        """With nothing but ends after the end."""
        judged = self._judged(tokens, likely)
        return Spoken(
            tokens if self.tokens.end is None else tokens.masked_fill(self.after(tokens), self.tokens.end), *judged
        )


def _likely(logits: Tensor, temperature: float, blur: Tensor | None) -> Tensor:
    """Log-probabilities of logits (n, k, vocabulary), each place blurred by its own (k, vocabulary, vocabulary)."""
    if blur is None:
        return (logits / temperature).log_softmax(-1)
    spread = torch.einsum("nkv,kvw->nkw", (logits / temperature).softmax(-1), blur)
    return spread.clamp_min(NEVER).log()


def _drawn(likely: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Tokens (...) of log-probabilities (..., vocabulary); the likeliest at temperature 0."""
    if temperature == 0.0:
        return likely.argmax(-1)
    rows = likely.exp().flatten(0, -2)
    return torch.multinomial(rows, 1, generator=generator).view(likely.shape[:-1])
