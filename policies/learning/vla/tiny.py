"""A vision-language-action policy that learns on two cores: some 200,000 parameters and a frozen sentence encoder.

Tokens attend to what is seen and told (`looking`). They are said one after the other, or all at once (`parallel`, as
OpenVLA-OFT): then each has its own distribution, and a chunk costs one turn.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policies.learning.vla import Judged, Spoken, saying
from policies.learning.vla.grounding import Referents
from policies.learning.vla.looking import FIRST, Block, Looking, Prefix, TinyConfig
from policies.models.tokens import ActionTokens
from sim.spec import Group


class TinyVla(Looking):
    """The policy: a `TokenPolicy`. It is made of the same numbers for the same seed."""

    agreement = 1e-4

    def __init__(
        self,
        tokens: ActionTokens,
        numbers: int,
        pictures: Group,
        words: int,
        config: TinyConfig,
        seed: int,
        referents: Referents | None = None,
    ) -> None:
        """For `numbers` measured numbers, these pictures, words of so many numbers each, and what they refer to."""
        width = config.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(numbers, pictures, words, config, seed, referents)
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
                likely = saying.likely(self._logits(prefix, None), temperature or 1.0, blur)
                return saying.ended(saying.drawn(likely, temperature, generator), likely, self.tokens)
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
            likely.append(saying.likely(self.head(self.last(x)), temperature or 1.0, turn)[:, 0])
            tokens.append(saying.drawn(likely[-1], temperature, generator))
        return saying.ended(torch.stack(tokens, 1), torch.stack(likely, 1), self.tokens)

    def evaluate(self, prefix: Prefix, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Judged:
        if temperature <= 0.0:
            raise ValueError(f"temperature is positive, got {temperature}")
        likely = self.likely(prefix, tokens, temperature, blur)
        return Judged(*saying.judged(tokens, likely, self.tokens), self.value(prefix))

    def value(self, prefix: Prefix) -> Tensor:
        """(n,) of what is seen."""
        worth: Tensor = self.worth(prefix.start)
        return worth.squeeze(-1)

    def likely(self, prefix: Prefix, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Tensor:
        """Log-probabilities of every token (n, length, vocabulary), given those before it."""
        return saying.likely(self._logits(prefix, tokens), temperature, blur)

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
        return saying.after(tokens, self.tokens)
