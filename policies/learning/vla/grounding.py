"""Grounding: from words to the positions that they mean, by way of objects whose positions are known.

1. `Referents` says what a task's words refer to: objects, and the targets that a sentence means (positions, m).
2. Each question (which object; which offset from it) has attention over the words, and logits of what it gathers.
3. `Choices.resolve` makes hard choices of them, one-hot: the reference, which is kept for an episode.
4. Objects' positions are measured, or a `Localiser` regresses them from keypoints in pictures, once per chunk.
5. `Grounding.targets` is the object's position and the learned offset: an input of the clone like anything measured.
6. Words, then the localiser, learn before there is a clone (`policies.algorithms.vla.stages`), and it teaches neither.

A clone finds out what an expert does more easily than which object he was told to do it with, hence this bottleneck of
concepts (Koh et al. 2020). What the words of one question say is all that it knows: what was learned of colours and of
offsets is true of pairs of them that were never said. The loss is the likelihood of the targets under all choices.

Where words mean no positions, they mean one of the things that may be asked for: one question, `Meaning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from policies.learning.vla.localiser import Localiser
from sim import spec
from sim.tasks.abilities import HasWords, referents_of

NEAR = 0.02  # m: deviation of a target from where it is thought to be
AWAY = 0.05  # m: deviation of the offsets at first
SMALLEST = 1e-3  # m: deviation of a position


@dataclass(frozen=True)
class Referents:
    """What a task's words refer to, as a policy is made for it."""

    objects: int  # that words may refer to
    targets: int  # positions that a sentence means
    first: int | None  # of the measured numbers that are the objects' positions; none: pictures show them
    things: int = 0  # that may be asked for, where words mean no positions

    @classmethod
    def of(cls, task: HasWords, things: int) -> Referents:
        """Of a task that may be asked for so many things."""
        name, targets = referents_of(task)
        if not targets:
            return cls(0, 0, None, things)
        measured = spec.numbers(task.policy)
        objects = spec.size(tuple(s for s in (*measured, *task.privileged) if s.name == name)) // 3
        shown = spec.slices(measured).get(name)
        return cls(objects, len(targets), None if shown is None else shown.start)


class Choices(nn.Module):
    """From words to hard choices: each question has attention over the words."""

    def __init__(self, words: int, questions: int) -> None:
        """By words of so many numbers."""
        super().__init__()
        self.attention = nn.Linear(words, questions)  # logits over words

    def gathered(self, words: Tensor, there: Tensor) -> Tensor:
        """What the words that are there say to each question, and a 1 behind it (n, questions, words + 1)."""
        weight = self.attention(words).masked_fill(~there[..., None], -torch.inf).softmax(1)
        return F.pad(weight.transpose(1, 2) @ words, (0, 1), value=1.0)

    def likely(self, words: Tensor, there: Tensor) -> tuple[Tensor, ...]:
        """Log-probabilities (n, questions, answers) of questions of the same kind, by the words that are there."""
        raise NotImplementedError

    def resolve(self, words: Tensor, there: Tensor) -> Tensor:
        """The reference (n, kept) of words: 1 for the likeliest answer to each question, else 0."""
        likely = self.likely(words, there)
        first = [torch.arange(some.shape[-1], device=some.device) == some.argmax(-1, keepdim=True) for some in likely]
        return torch.cat([chosen.flatten(1) for chosen in first], 1).to(words)

    @property
    def kept(self) -> int:
        """Numbers of a reference."""
        raise NotImplementedError

    def normalise(self, truth: Tensor) -> None:
        """From now on what is true is like this."""

    def loss(self, words: Tensor, there: Tensor, truth: Tensor) -> Tensor:
        """Nats by which words do not say what is true (n, ...)."""
        raise NotImplementedError

    def label(self, truth: Tensor) -> Tensor:
        """The reference (n, kept) that words should have, where that is true."""
        raise NotImplementedError


class Meaning(Choices):
    """From words to the thing that is asked for. Whatever else they say is lost: that is what they are grounded for."""

    def __init__(self, words: int, things: int) -> None:
        """For words of so many numbers, and so many things."""
        super().__init__(words, 1)
        self.thing_weight = nn.Parameter(torch.zeros(words + 1, things))

    @property
    def kept(self) -> int:
        return self.thing_weight.shape[1]

    def likely(self, words: Tensor, there: Tensor) -> tuple[Tensor, ...]:
        return ((self.gathered(words, there) @ self.thing_weight).log_softmax(-1),)

    def loss(self, words: Tensor, there: Tensor, truth: Tensor) -> Tensor:
        """Of the things (n,) that are asked for, by their numbers."""
        return F.nll_loss(self.likely(words, there)[0][:, 0], truth)

    def label(self, truth: Tensor) -> Tensor:
        return F.one_hot(truth, self.kept).float()


class Grounding(Choices):
    """From words to targets."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, words: int, referents: Referents, offsets: int, localiser: Localiser | None = None) -> None:
        """For words of so many numbers, and so many offsets; the localiser is for objects that nobody measures."""
        targets = referents.targets
        super().__init__(words, 2 * targets)  # for the object of each target, its offset
        self.referents, self.offsets = referents, offsets
        # What these words say: a weight for each of their numbers, and one more.
        self.object_weight = nn.Parameter(torch.zeros(targets, words + 1, referents.objects))
        self.offset_weight = nn.Parameter(torch.zeros(targets, words + 1, offsets))
        self.offset = nn.Parameter(AWAY * torch.randn(targets, offsets, 3))
        if referents.first is None and localiser is None:
            raise ValueError("nobody measures where objects are, and there is no localiser for them")
        self.localiser = localiser if referents.first is None else None
        self.register_buffer("mean", torch.zeros(referents.objects + targets, 3))
        self.register_buffer("deviation", torch.ones(referents.objects + targets, 3))

    @property
    def size(self) -> int:
        """Numbers of the targets: 3 each, and one more where it is known how uncertain they are."""
        return (3 + self.uncertain) * self.referents.targets

    @property
    def uncertain(self) -> int:
        """1 where the localiser has an uncertainty, else 0."""
        return int(self.localiser is not None and self.localiser.uncertainty is not None)

    @property
    def kept(self) -> int:
        return self.referents.targets * (self.referents.objects + self.offsets)

    def normalise(self, truth: Tensor) -> None:
        """From now on objects and targets are at positions (n, objects + targets, 3) like these."""
        self.mean.copy_(truth.mean(0))
        self.deviation.copy_(truth.std(0, unbiased=False).clamp_min(SMALLEST))

    def likely(self, words: Tensor, there: Tensor) -> tuple[Tensor, ...]:
        """Log-probabilities (n, targets, objects) and (n, targets, offsets), by the words that are there."""
        of_object, of_offset = self.gathered(words, there)[:, :, None].split(self.referents.targets, 1)
        objects, offsets = (of_object @ self.object_weight)[:, :, 0], (of_offset @ self.offset_weight)[:, :, 0]
        return objects.log_softmax(-1), offsets.log_softmax(-1)

    def _errors(self, truth: Tensor) -> Tensor:
        """Squared distances (n, targets, objects, offsets) of the targets from all that can be referred to."""
        objects, targets = truth[:, : self.referents.objects], truth[:, self.referents.objects :]
        return (objects[:, None, :, None] + self.offset[:, None] - targets[:, :, None, None]).square().sum(-1)

    def loss(self, words: Tensor, there: Tensor, truth: Tensor) -> Tensor:
        """Nats by which words do not say where the targets of (n, objects + targets, 3) are."""
        objects, offsets = self.likely(words, there)
        likely = objects[..., None] + offsets[:, :, None] - self._errors(truth) / (2.0 * NEAR**2)
        return -likely.flatten(2).logsumexp(-1).sum(1).mean()

    @torch.no_grad()
    def label(self, truth: Tensor) -> Tensor:
        """The reference (n, kept) that words should have, where objects and targets (n, objects + targets, 3) are."""
        nearest = self._errors(truth).flatten(2).argmin(-1)
        which = torch.eye(self.referents.objects)[nearest // self.offsets]
        offset = torch.eye(self.offsets)[nearest % self.offsets]
        return torch.cat([which.flatten(1), offset.flatten(1)], 1)

    @torch.no_grad()
    def positions(self, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Tensor:
        """Of the objects (n, objects, 3), m: measured (n, k), or localised in pictures; (.., 4) if `uncertain`."""
        count, first = self.referents.objects, self.referents.first or 0
        if self.localiser is None:
            measured: Tensor = numbers[:, first : first + 3 * count].unflatten(1, (count, 3))
            return measured
        localised: Tensor = self.localiser(pictures)
        if not self.uncertain:
            return localised * self.deviation[:count] + self.mean[:count]
        return torch.cat([localised[..., :3] * self.deviation[:count] + self.mean[:count], localised[..., 3:]], 2)

    def localisation_errors(self, pictures: Mapping[str, Tensor], truth: Tensor) -> tuple[Tensor, Tensor]:
        """Squared errors (n, objects, 3), in variances, of positions in pictures; truth (n, objects or more, 3), m.

        And nats by which an uncertainty does not expect them, () 0 without one.
        """
        assert self.localiser is not None
        count = self.referents.objects
        localised: Tensor = self.localiser(pictures)
        errors = (localised[..., :3] - (truth[:, :count] - self.mean[:count]) / self.deviation[:count]).square()
        if not self.uncertain:
            return errors, errors.new_zeros(())
        expected = localised[..., 3]
        return errors, 0.5 * (errors.detach().mean(-1) * (-expected).exp() + expected).mean()

    def targets(self, reference: Tensor, positions: Tensor) -> Tensor:
        """Targets (n, size), with mean 0 and deviation 1, of a reference (n, kept) to objects (n, objects, 3 or 4).

        Behind them how uncertain each one's object is: the log of the error to be expected, in deviations.
        """
        count = self.referents.targets * self.referents.objects
        which = reference[:, :count].unflatten(1, (self.referents.targets, -1))
        offset = reference[:, count:].unflatten(1, (self.referents.targets, -1))
        told = which @ positions
        meant = told[..., :3] + (offset[..., None] * self.offset.detach()).sum(2)
        objects = self.referents.objects
        usual: Tensor = (meant - self.mean[objects:]) / self.deviation[objects:]
        if not self.uncertain:
            return usual.flatten(1)
        return torch.cat([usual.flatten(1), 0.5 * told[..., 3]], 1)
