"""FAST action tokens (Pertsch et al. 2025): cosine transform over time, rounding, byte-pair merges. Our own code.

A smooth chunk has few large coefficients, and zeros that stand side by side merge: so it takes few tokens, and a model
that predicts them one by one is not rewarded for repeating the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.models.tokens.bins import MOST, chunked, stopping

END = 0  # the token after a chunk's last, and all after it
BREAK = -1  # between two sequences of a stream


@dataclass(frozen=True)
class FastTokens:
    """Tokens: `END`, one per value that a rounded coefficient can take, one per merge.

    Any chunk can be encoded: a coefficient of numbers in [-1, 1] is at most sqrt(horizon). Read back it is at most
    0.5 / scale * sqrt(horizon) away, and 0.5 / scale in the root of the mean square over time.
    """

    horizon: int
    actions: int
    scale: float = 10.0  # coefficients are rounded to 1 / scale; theirs
    merges: tuple[tuple[int, int], ...] = ()  # the two tokens that the next new one stands for
    stop: tuple[float, ...] = ()  # the action that stops, in [-1, 1]; none: zero
    most: int = 0  # tokens of a chunk; 0: as many as it has numbers

    def __post_init__(self) -> None:
        stopping(self.stop, self.horizon, self.actions)
        if not 0 <= self.most <= self.horizon * self.actions:
            raise ValueError(f"a chunk takes 1 to {self.horizon * self.actions} tokens, got {self.most}")
        if not 0.0 < self.scale * math.sqrt(self.horizon) <= MOST:
            raise ValueError(f"scale is positive, and at most {MOST} over the root of the horizon, got {self.scale}")
        long = [1] * (2 + 2 * self.largest)  # how many coefficients a token stands for
        for new, (first, second) in enumerate(self.merges, len(long)):
            if not (END < first < new and END < second < new):
                raise ValueError(f"token {new} merges {first, second}, of which one is not yet known")
            long.append(long[first] + long[second])
            if long[-1] > self.size:  # merges that double one another would fill any memory
                raise ValueError(f"token {new} stands for {long[-1]} numbers, and a chunk has {self.size}")

    @classmethod
    def fit(
        cls,
        chunks: NDArray[np.floating],
        horizon: int,
        scale: float = 10.0,
        vocabulary: int = 1024,
        stop: tuple[float, ...] = (),
    ) -> FastTokens:
        """Merges learned on chunks (n, horizon * actions): the most frequent pair first, of equals the lower tokens.

        It ends at `vocabulary` tokens, or where no pair is seen twice. ValueError where the vocabulary is too small
        for the coefficients alone.
        """
        plain = cls(horizon, chunks.shape[1] // horizon, scale, stop=stop)
        if vocabulary < plain.vocabulary:
            raise ValueError(f"vocabulary is at least {plain.vocabulary} at this scale and horizon, got {vocabulary}")
        stream, merges = plain._stream(chunks), []
        for new in range(plain.vocabulary, vocabulary):
            left, right = stream[:-1], stream[1:]
            inside = (left != BREAK) & (right != BREAK)
            counts = np.bincount(left[inside] * vocabulary + right[inside])
            if not counts.size or counts.max() < 2:
                break
            first, second = divmod(int(counts.argmax()), vocabulary)
            merges.append((first, second))
            stream = merged(stream, (first, second), new)
        return cls(horizon, plain.actions, scale, tuple(merges), stop)

    @property
    def largest(self) -> int:
        """The largest rounded coefficient."""
        return math.ceil(self.scale * math.sqrt(self.horizon))

    @property
    def vocabulary(self) -> int:
        return 2 + 2 * self.largest + len(self.merges)

    @property
    def size(self) -> int:
        """How many numbers a chunk has."""
        return self.horizon * self.actions

    @property
    def length(self) -> int:
        return self.most or self.size

    @property
    def end(self) -> int | None:
        return END

    def shortened(self, chunks: NDArray[np.floating]) -> FastTokens:
        """The same, with as many tokens as the longest of these chunks takes and one more, which ends it."""
        longest = int((self.encode(chunks) != END).sum(axis=1).max())
        return replace(self, most=min(longest + 1, self.size))

    def encode(self, chunks: NDArray[np.floating]) -> NDArray[np.int64]:
        """As in `ActionTokens`; ValueError for a chunk that takes more than `most`."""
        stream = self._stream(chunks)
        for new, pair in enumerate(self.merges, 2 + 2 * self.largest):
            stream = merged(stream, pair, new)
        ends = stream == BREAK
        row = np.cumsum(ends) - ends
        place = np.arange(len(stream)) - np.concatenate([[0], np.flatnonzero(ends) + 1])[row]
        longest = int(place[~ends].max(initial=0)) + 1
        if longest > self.length:
            raise ValueError(f"a chunk takes {longest} tokens, and {self.length} are the most")
        tokens = np.full((len(chunks), self.length), END, np.int64)
        tokens[row[~ends], place[~ends]] = stream[~ends]
        return tokens

    def decode(self, tokens: NDArray[np.integer]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        chunks = np.tile(stopping(self.stop, self.horizon, self.actions), (len(tokens), 1))
        readable = np.zeros(len(tokens), bool)
        for row, sequence in enumerate(tokens.tolist()):
            ended = sequence[: sequence.index(END)] if END in sequence else sequence
            if not all(END < token < self.vocabulary for token in ended):
                continue
            values = [value for token in ended for value in self.meaning[token]]
            if len(values) == self.size:
                rounded = np.reshape(values, (self.horizon, self.actions))
                chunks[row] = (self.cosines.T @ rounded / self.scale).clip(-1.0, 1.0).ravel()
                readable[row] = True
        return chunks, readable

    def described(self) -> dict[str, Any]:
        return {
            "kind": "fast",
            "horizon": self.horizon,
            "actions": self.actions,
            "scale": self.scale,
            "merges": [[*pair] for pair in self.merges],
            "stop": [*self.stop],
            "most": self.most,
        }

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> FastTokens:
        """What `described()` gave."""
        merges = tuple((int(first), int(second)) for first, second in description["merges"])
        horizon, actions = int(description["horizon"]), int(description["actions"])
        stop, most = tuple(map(float, description["stop"])), int(description.get("most", 0))
        return cls(horizon, actions, float(description["scale"]), merges, stop, most)

    @cached_property
    def cosines(self) -> NDArray[np.float64]:
        """The orthonormal cosine transform (frequency, time), type II."""
        k, t = np.arange(self.horizon)[:, None], np.arange(self.horizon)[None]
        basis: NDArray[np.float64] = np.sqrt(2.0 / self.horizon) * np.cos(np.pi * k * (2 * t + 1) / (2 * self.horizon))
        basis[0] /= math.sqrt(2.0)
        return basis

    @cached_property
    def meaning(self) -> list[tuple[int, ...]]:
        """The rounded coefficients of each token."""
        found: list[tuple[int, ...]] = [(), *((value,) for value in range(-self.largest, self.largest + 1))]
        for first, second in self.merges:
            found.append(found[first] + found[second])
        return found

    def _stream(self, chunks: NDArray[np.floating]) -> NDArray[np.int64]:
        """Unmerged tokens of all chunks, one after the other, lowest frequency first, `BREAK` after each chunk."""
        moves = chunked(chunks, self.size).reshape(-1, self.horizon, self.actions)
        rounded = np.rint(self.scale * (self.cosines @ moves)).astype(np.int64) + (1 + self.largest)
        rows = rounded.reshape(-1, self.size)
        return np.pad(rows, ((0, 0), (0, 1)), constant_values=BREAK).ravel()


def merged(stream: NDArray[np.int64], pair: tuple[int, int], new: int) -> NDArray[np.int64]:
    """The stream with `new` in place of each `pair`, from the left where they overlap."""
    hits = np.flatnonzero((stream[:-1] == pair[0]) & (stream[1:] == pair[1]))
    if not len(hits):
        return stream
    begins = np.diff(hits, prepend=-2) > 1  # of a run of overlapping pairs, every second counts
    run = hits[begins][np.cumsum(begins) - 1]
    hits = hits[(hits - run) % 2 == 0]
    after = stream.copy()
    after[hits] = new
    return np.delete(after, hits + 1)
