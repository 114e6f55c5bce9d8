"""Reading action tokens in a graph: what `decode` of them does, as a torch module that can be exported."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from policies.models.tokens import ActionTokens
from policies.models.tokens.bins import BinTokens, stopping
from policies.models.tokens.fast import FastTokens


class BinReader(nn.Module):
    """Tokens (n, length) of a vocabulary -> chunks (n, horizon * actions); all can be read."""

    values: Tensor

    def __init__(self, tokens: BinTokens) -> None:
        super().__init__()
        self.register_buffer("values", torch.from_numpy(tokens.values), persistent=False)

    def forward(self, said: Tensor) -> Tensor:
        return self.values[said]


class FastReader(nn.Module):
    """Tokens (n, length) of a vocabulary -> chunks (n, horizon * actions), a stop where they cannot be read.

    After an end there are only ends. A token fills as many coefficients as it stands for, from where those before it
    ended: so every coefficient finds its token, and the place in it, at once.
    """

    count: Tensor
    meaning: Tensor
    before: Tensor
    places: Tensor
    cosines: Tensor
    stop: Tensor

    def __init__(self, tokens: FastTokens) -> None:
        super().__init__()
        self.size, self.horizon, self.longest = tokens.size, tokens.horizon, max(map(len, tokens.meaning))
        meaning = np.zeros((tokens.vocabulary, self.longest), np.float32)
        for token, values in enumerate(tokens.meaning):
            meaning[token, : len(values)] = values
        constants = {
            "count": np.array([len(values) for values in tokens.meaning], np.float32),
            "meaning": meaning.ravel(),
            "before": np.tri(tokens.length, dtype=np.float32).T,  # of tokens in turn, those up to each
            "places": np.arange(tokens.size, dtype=np.float32),
            "cosines": (tokens.cosines.T / tokens.scale).astype(np.float32),
            "stop": stopping(tokens.stop, tokens.horizon, tokens.actions),
        }
        for name, value in constants.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(value)), persistent=False)

    def forward(self, said: Tensor) -> Tensor:
        count = self.count[said]
        ended = count @ self.before  # (n, length) coefficients up to each token
        inside = self.places - (ended - count)[..., None]  # (n, length, size) of a token's coefficients
        covers = (inside >= 0.0) & (inside < count[..., None])
        which = said[..., None] * self.longest + inside.clamp(0.0, self.longest - 1.0).long()
        rounded = (self.meaning[which] * covers).sum(1)
        moves = self.cosines @ rounded.unflatten(1, (self.horizon, -1))
        return torch.where(ended[:, -1:] == self.size, moves.flatten(1).clamp(-1.0, 1.0), self.stop)


def reader(tokens: ActionTokens) -> nn.Module:
    """What reads them; ValueError for tokens of an unknown kind."""
    if isinstance(tokens, FastTokens):
        return FastReader(tokens)
    if isinstance(tokens, BinTokens):
        return BinReader(tokens)
    raise ValueError(f"{type(tokens).__name__} cannot be read in a graph")
