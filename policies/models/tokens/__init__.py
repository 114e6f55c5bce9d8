"""Actions as tokens: what a policy that speaks decodes, and how a chunk of actions becomes such a sequence.

`BinTokens` gives each number of a chunk a token of its own; `FastTokens` compresses a chunk in frequency and merges
what often stands side by side. Both are plain data: `described()` goes into a policy file, `tokens_of` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.models.tokens.bins import BinTokens
from policies.models.tokens.fast import FastTokens

KINDS: dict[str, type[BinTokens | FastTokens]] = {"bins": BinTokens, "fast": FastTokens}


class ActionTokens(Protocol):
    """Chunks of actions in [-1, 1], action by action, to tokens and back."""

    @property
    def horizon(self) -> int:
        """Actions of a chunk."""

    @property
    def actions(self) -> int:
        """Numbers of an action."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are: 0 .. vocabulary - 1."""

    @property
    def length(self) -> int:
        """The most tokens that a chunk takes."""

    @property
    def end(self) -> int | None:
        """The token after a chunk's last; none: all chunks take `length`."""

    def encode(self, chunks: NDArray[np.floating]) -> NDArray[np.int64]:
        """Tokens (n, length) of chunks (n, horizon * actions); what is beyond [-1, 1] is cut off."""

    def decode(self, tokens: NDArray[np.integer]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Chunks (n, horizon * actions) of tokens (n, k), and whether each could be read (n,).

        One that cannot be read (a wrong length, an unknown token) becomes a stop for the whole chunk.
        """

    def described(self) -> dict[str, Any]:
        """All of it as JSON data."""


def tokens_of(description: Mapping[str, Any]) -> ActionTokens:
    """The tokens that `described()` gave; ValueError where it is no such description."""
    kind = description.get("kind")
    if kind not in KINDS:
        raise ValueError(f"action tokens are of kind {' or '.join(KINDS)}, got {kind!r}")
    return KINDS[kind].read(description)
