"""A token for each number of a chunk: the interval of [-1, 1] that it lies in (RT-2, OpenVLA)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 4096  # numbers of a chunk, values of a token: files of strangers say how many


def stopping(stop: tuple[float, ...], horizon: int, actions: int) -> NDArray[np.float32]:
    """The chunk (horizon * actions,) that repeats the action `stop`; no `stop` is zero. ValueError if it is none."""
    if min(horizon, actions) < 1 or horizon * actions > MOST:
        raise ValueError(f"a chunk has 1 to {MOST} numbers, got {horizon} actions of {actions}")
    action = np.asarray(stop or (0.0,) * actions, np.float32)
    if action.shape != (actions,) or not (np.abs(action) <= 1.0).all():
        raise ValueError(f"stop is an action of {actions} numbers in [-1, 1], got {stop}")
    return np.tile(action, horizon)


def chunked(chunks: NDArray[np.floating], size: int) -> NDArray[np.float64]:
    """Chunks (n, size) cut off at +-1; ValueError for another shape or a number that is not finite."""
    found = np.asarray(chunks, np.float64)
    if found.ndim != 2 or found.shape[1] != size:
        raise ValueError(f"chunks are (n, {size}), got {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("chunks have a number that is not finite")
    return found.clip(-1.0, 1.0)


@dataclass(frozen=True)
class BinTokens:
    """`bins` intervals of equal width; a token is read as its interval's middle, at most 1 / bins away."""

    horizon: int
    actions: int
    bins: int = 256
    stop: tuple[float, ...] = ()  # the action that stops, in [-1, 1]; none: zero

    def __post_init__(self) -> None:
        if not 2 <= self.bins <= MOST:
            raise ValueError(f"bins are 2 to {MOST}, got {self.bins}")
        stopping(self.stop, self.horizon, self.actions)

    @property
    def vocabulary(self) -> int:
        return self.bins

    @property
    def length(self) -> int:
        return self.horizon * self.actions

    @property
    def end(self) -> int | None:
        return None

    @property
    def values(self) -> NDArray[np.float32]:
        """What each token is read as (bins,)."""
        return ((2.0 * np.arange(self.bins) + 1.0) / self.bins - 1.0).astype(np.float32)

    def encode(self, chunks: NDArray[np.floating]) -> NDArray[np.int64]:
        place = np.floor((chunked(chunks, self.length) + 1.0) * (self.bins / 2.0))
        return place.clip(0, self.bins - 1).astype(np.int64)

    def decode(self, tokens: NDArray[np.integer]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        n, found = tokens.shape
        stop = stopping(self.stop, self.horizon, self.actions)
        if found != self.length:
            return np.tile(stop, (n, 1)), np.zeros(n, bool)
        readable: NDArray[np.bool_] = np.asarray(((tokens >= 0) & (tokens < self.bins)).all(axis=1))
        chunks = self.values[tokens.clip(0, self.bins - 1)]
        return np.where(readable[:, None], chunks, stop), readable

    def described(self) -> dict[str, Any]:
        return {
            "kind": "bins",
            "horizon": self.horizon,
            "actions": self.actions,
            "bins": self.bins,
            "stop": [*self.stop],
        }

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> BinTokens:
        """What `described()` gave."""
        horizon, actions, bins = (int(description[key]) for key in ("horizon", "actions", "bins"))
        return cls(horizon, actions, bins, tuple(map(float, description["stop"])))
