"""Demonstrations of what was asked for in words, as a policy that speaks tokens learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.learning.demonstrations import Demonstrations
from policies.learning.vla import Hearing
from policies.learning.vla.localiser import Sights
from policies.models.networks import Array
from sim import spec
from sim.language.wordpiece import WordPiece
from sim.rollout import Episode
from sim.tasks.abilities import HasWords


@dataclass
class Sentences:
    """What may be said for the same thing: the words of each sentence, once."""

    words: Tensor  # (sentences, k, size)
    there: Tensor  # (sentences, k)
    first: Tensor  # (things + 1,): the sentences of a thing follow one another

    @classmethod
    def of(cls, encoder: Hearing, said: Sequence[Sequence[str]], most: int) -> Sentences:
        """Of the sentences for each thing."""
        states, there = encoder.states([sentence for some in said for sentence in some], most)
        return cls(states, there, torch.from_numpy(np.cumsum([0, *map(len, said)])))

    def draw(self, things: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One of the sentences for each of these things (n,): states (n, k, size), and which are there (n, k)."""
        return self.at(self.choose(things, generator))

    def heard(self, things: Tensor, unheard: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The same, of whose words that share is left out; never the first."""
        words, there = self.draw(things, generator)
        missed = torch.rand(there.shape, generator=generator) < unheard
        missed[:, 0] = False
        return words, there & ~missed

    def choose(self, things: Tensor, generator: torch.Generator) -> Tensor:
        """One of the sentences for each of these things (n,): its number (n,)."""
        first, count = self.first[things], self.first[things + 1] - self.first[things]
        return first + (torch.rand(len(things), generator=generator) * count).long()

    def at(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The sentences of these numbers (n,): states (n, k, size), and which are there (n, k)."""
        return self.words[numbers], self.there[numbers]


@dataclass
class Told:
    """Every step of demonstrations: what was measured and seen, which thing was asked for, and what is to be said."""

    numbers: Tensor  # (n, k)
    pictures: dict[str, Tensor]  # (n, height, width, 3) uint8
    asked: Tensor  # (n,) by its number
    wanted: Tensor  # (n, k): tokens, or the chunk itself
    truth: Tensor  # (n, ...) what words refer to: true positions of objects and targets, m, or the thing by its number
    positions: Tensor = field(default_factory=lambda: torch.zeros(0))  # (n, objects, 3 or 4) as localised, m
    sights: Sights | None = None  # from which the localiser learns, where there is one

    @classmethod
    def of(cls, shown: Demonstrations, asked: NDArray[np.int64], wanted: Tensor, truth: Tensor) -> Told:
        """Of demonstrations, what was asked for (n,), is to be said (n, k) and is true (n, ...), at all steps."""
        return cls(
            torch.from_numpy(shown.observation),
            {name: torch.from_numpy(pictures) for name, pictures in shown.pictures.items()},
            torch.from_numpy(asked),
            wanted,
            truth,
        )


def held(chunk: Array, horizon: int, parts: int) -> Array:
    """Chunks (n, horizon * k) as the mean action of each of their parts (n, parts * k)."""
    mean: Array = chunk.reshape(len(chunk), parts, horizon // parts, -1).mean(2).reshape(len(chunk), -1)
    return mean


def asked_of(episodes: Sequence[Episode], task: HasWords, words: WordPiece) -> tuple[list[int], list[tuple[str, ...]]]:
    """Which thing each episode was asked for, and what may be said for each thing.

    First come the task's own, for each of which any of its sentences may be said: what several are asked for by, the
    first of them. A sentence that is none of theirs, as in a dataset from elsewhere, stands for itself.
    """
    (told,) = spec.tokens(task.policy)
    said = [instructions.learned for instructions in task.instructions]
    known: dict[bytes, int] = {}
    for thing, instructions in enumerate(task.instructions):
        for some in (instructions.learned, instructions.held_out):
            for row in words.encode(some, told.shape[0])[0]:
                known.setdefault(row.tobytes(), thing)
    asked = []
    for episode in episodes:
        row = np.asarray(episode.signals[told.name][0], np.int64)
        if row.tobytes() not in known:
            known[row.tobytes()] = len(said)
            said.append((words.decode(row),))
        asked.append(known[row.tobytes()])
    return asked, said
