"""Words that point: at one of the things whose places are known, and at a place at it or beside it.

A clone finds out what an expert does more easily than which thing he was told to do it with. So words learn by
themselves, before there is a clone, and what they point at is an input of the clone like anything measured (a concept
bottleneck, Koh et al. 2020). Each question (which thing; where beside it) attends to words of its own, and what they
say is all that it knows: what was learned of colours and of places is true of pairs of them that were never said.
Choices are hard: a thing, not a mean of two. They are learned by the likelihood of the true place under all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from policies.learning.vla.finding import Finder
from sim import spec
from sim.tasks.abilities import HasWords, meaning_of

NEAR = 0.02  # m: deviation of a true place from what is pointed at
AWAY = 0.05  # m: deviation of the places beside a thing, at first
SMALLEST = 1e-3  # m: deviation of a place


@dataclass(frozen=True)
class Pointed:
    """What a task's words mean, as a policy is made for it. Everything is a place (3,) in m."""

    things: int  # that words may mean
    meant: int  # places that a sentence means
    first: int | None  # of the measured numbers that say where the things are; none: pictures show it

    @classmethod
    def of(cls, task: HasWords) -> Pointed | None:
        """Of a task; none where there is nothing to find out."""
        things, meant = meaning_of(task)
        if not meant:
            return None
        measured = spec.numbers(task.policy)
        count = spec.size(tuple(s for s in (*measured, *task.privileged) if s.name == things)) // 3
        shown = spec.slices(measured).get(things)
        return cls(count, len(meant), None if shown is None else shown.start)


class Pointing(nn.Module):
    """From words to places."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, words: int, pointed: Pointed, beside: int, find: Finder | None = None) -> None:
        """For words of so many numbers, and `beside` places at a thing; `find` finds things that nobody measures."""
        super().__init__()
        self.pointed, self.beside = pointed, beside
        self.ask = nn.Linear(words, 2 * pointed.meant)  # which words say it: of each thing meant, and of where beside
        # What they say then: a weight for each of their numbers, and one more.
        self.which = nn.Parameter(torch.zeros(pointed.meant, words + 1, pointed.things))
        self.where = nn.Parameter(torch.zeros(pointed.meant, words + 1, beside))
        self.away = nn.Parameter(AWAY * torch.randn(pointed.meant, beside, 3))
        if pointed.first is None and find is None:
            raise ValueError("nobody measures where things are, and nobody looks for them")
        self.find = find if pointed.first is None else None
        self.register_buffer("mean", torch.zeros(pointed.things + pointed.meant, 3))
        self.register_buffer("deviation", torch.ones(pointed.things + pointed.meant, 3))

    @property
    def size(self) -> int:
        """Numbers that say what is meant."""
        return 3 * self.pointed.meant

    @property
    def kept(self) -> int:
        """Numbers that say what words point at."""
        return self.pointed.meant * (self.pointed.things + self.beside)

    def normalise(self, truth: Tensor) -> None:
        """From now on things, and what is meant, are at places (n, things + meant, 3) like these."""
        self.mean.copy_(truth.mean(0))
        self.deviation.copy_(truth.std(0, unbiased=False).clamp_min(SMALLEST))

    def likely(self, words: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (n, meant, things) of things and (n, meant, beside) of where, by the words there."""
        weight = self.ask(words).masked_fill(~there[..., None], -torch.inf).softmax(1)
        said = F.pad(weight.transpose(1, 2) @ words, (0, 1), value=1.0)[:, :, None]
        which, where = said.split(self.pointed.meant, 1)
        return (which @ self.which)[:, :, 0].log_softmax(-1), (where @ self.where)[:, :, 0].log_softmax(-1)

    def choose(self, words: Tensor, there: Tensor) -> Tensor:
        """What they point at: 1 for the likeliest thing and the likeliest place at it (n, kept), else 0."""
        likely = self.likely(words, there)
        first = [torch.arange(some.shape[-1], device=some.device) == some.argmax(-1, keepdim=True) for some in likely]
        return torch.cat([chosen.flatten(1) for chosen in first], 1).to(words)

    def _off(self, truth: Tensor) -> Tensor:
        """Squared distances (n, meant, things, beside) of what is meant from all that can be pointed at."""
        things, meant = truth[:, : self.pointed.things], truth[:, self.pointed.things :]
        return (things[:, None, :, None] + self.away[:, None] - meant[:, :, None, None]).square().sum(-1)

    def loss(self, words: Tensor, there: Tensor, truth: Tensor) -> Tensor:
        """Nats by which words do not say where things, and what is meant, are (n, things + meant, 3)."""
        which, where = self.likely(words, there)
        likely = which[..., None] + where[:, :, None] - self._off(truth) / (2.0 * NEAR**2)
        return -likely.flatten(2).logsumexp(-1).sum(1).mean()

    @torch.no_grad()
    def true(self, truth: Tensor) -> Tensor:
        """What words should have pointed at (n, kept), where that (n, things + meant, 3) is so."""
        nearest = self._off(truth).flatten(2).argmin(-1)
        which = torch.eye(self.pointed.things)[nearest // self.beside]
        where = torch.eye(self.beside)[nearest % self.beside]
        return torch.cat([which.flatten(1), where.flatten(1)], 1)

    @torch.no_grad()
    def places(self, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Tensor:
        """Where the things are (n, things, 3): measured (n, k), or found in pictures."""
        some, first = self.pointed.things, self.pointed.first or 0
        if self.find is None:
            measured: Tensor = numbers[:, first : first + 3 * some].unflatten(1, (some, 3))
            return measured
        found: Tensor = self.find(pictures)
        return found * self.deviation[:some] + self.mean[:some]

    def missed(self, pictures: Mapping[str, Tensor], truth: Tensor) -> Tensor:
        """Squared errors (n, things, 3), in variances, of where things are found that are so (n, things + meant, 3)."""
        assert self.find is not None
        some = self.pointed.things
        found: Tensor = self.find(pictures)
        return (found - (truth[:, :some] - self.mean[:some]) / self.deviation[:some]).square()

    def read(self, chosen: Tensor, places: Tensor) -> Tensor:
        """What is meant (n, size), with mean 0 and deviation 1, by who points there (n, kept)."""
        some = self.pointed.meant * self.pointed.things
        which = chosen[:, :some].unflatten(1, (self.pointed.meant, -1))
        where = chosen[:, some:].unflatten(1, (self.pointed.meant, -1))
        meant = which @ places + (where[..., None] * self.away.detach()).sum(2)
        usual: Tensor = (meant - self.mean[self.pointed.things :]) / self.deviation[self.pointed.things :]
        return usual.flatten(1)
