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

Where words mean no positions, they mean one of the things that may be asked for: one question, `Meaning`. What it
takes to do it may be localised then, too: each thing has a scene of its own, and all its objects are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from policies.learning.vla.localiser import Localiser, Sights
from sim import spec
from sim.tasks.abilities import HasWords, referents_of

NEAR = 0.02  # m: deviation of a target from where it is thought to be
AWAY = 0.05  # m: deviation of the offsets at first
SMALLEST = 1e-3  # m: deviation of a position


@dataclass(frozen=True)
class Referents:
    """What a task's words refer to, as a policy is made for it."""

    objects: int  # that words may refer to, or, where these mean no positions, that pictures show
    targets: int  # positions that a sentence means
    first: int | None  # of the measured numbers that are the objects' positions; none: pictures show them
    things: int = 0  # that may be asked for, where words mean no positions

    @classmethod
    def of(cls, task: HasWords, things: int) -> Referents:
        """Of a task that may be asked for so many things."""
        names, targets = referents_of(task)
        if not names:
            return cls(0, 0, None, things)
        measured = spec.numbers(task.policy)
        objects = spec.size(tuple(s for s in (*measured, *task.privileged) if s.name in names)) // 3
        at = [place for name, place in spec.slices(measured).items() if name in names]
        apart = bool(targets) and any(one.stop != other.start for one, other in pairwise(at))
        if at and (len(at) < len(names) or apart):
            raise ValueError(f"{task.name}: {', '.join(names)} are measured next to each other, or all in pictures")
        return cls(objects, len(targets), at[0].start if at else None, 0 if targets else things)

    @property
    def scenes(self) -> int:
        """In which objects are localised: of each thing, where words mean no positions."""
        return max(1, self.things)


class Choices(nn.Module):
    """From words to hard choices: each question has attention over the words. And where objects are, for them."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, words: int, questions: int, referents: Referents, localiser: Localiser | None) -> None:
        """By words of so many numbers; the localiser is for objects that nobody measures."""
        super().__init__()
        self.attention = nn.Linear(words, questions)  # logits over words
        self.referents, self.localiser = referents, localiser
        places = referents.objects + referents.targets
        self.register_buffer("mean", torch.zeros(places, 3))
        self.register_buffer("deviation", torch.ones(places, 3))

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

    @property
    def size(self) -> int:
        """Numbers of `targets`."""
        raise NotImplementedError

    @property
    def uncertain(self) -> int:
        """1 where the localiser has an uncertainty, else 0."""
        return int(self.localiser is not None and self.localiser.uncertainty is not None)

    def normalise(self, truth: Tensor, sights: Sights | None = None) -> None:
        """From now on objects and targets are at positions (n, objects + targets, 3) like these, m; and as is seen."""
        self.mean.copy_(truth.mean(0))
        self.deviation.copy_(truth.std(0, unbiased=False).clamp_min(SMALLEST))
        if self.localiser and sights:
            self.localiser.normalise(self._usual(sights.truth), sights.scene)

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

    def localisation_errors(self, sights: Sights) -> tuple[Tensor, Tensor]:
        """Squared errors (n, objects, 3), m^2, of positions in pictures; and what is to be learned from them, ()."""
        assert self.localiser is not None
        usual = self._usual(sights.truth)
        errors, unexpected = self.localiser.errors(sights.pictures, usual, sights.scene, sights.pixels)
        apart = self.localiser.deviation[sights.scene] * self.deviation[: self.referents.objects]
        return (errors * apart.square()).detach(), errors.mean() + unexpected

    def _usual(self, positions: Tensor) -> Tensor:
        """Of the objects, with mean 0 and deviation 1."""
        count = self.referents.objects
        return (positions[:, :count] - self.mean[:count]) / self.deviation[:count]

    def targets(self, reference: Tensor, positions: Tensor) -> Tensor:
        """What the clone is told (n, size), with mean 0 and deviation 1, of a reference (n, kept) to objects.

        These are at positions (n, objects, 3 or 4). Behind it how uncertain that is: the log of the error to be
        expected, in deviations.
        """
        raise NotImplementedError

    def loss(self, words: Tensor, there: Tensor, truth: Tensor) -> Tensor:
        """Nats by which words do not say what is true (n, ...)."""
        raise NotImplementedError

    def label(self, truth: Tensor) -> Tensor:
        """The reference (n, kept) that words should have, where that is true."""
        raise NotImplementedError


class Meaning(Choices):
    """From words to the thing that is asked for. Whatever else they say is lost: that is what they are grounded for."""

    def __init__(self, words: int, referents: Referents, localiser: Localiser | None = None) -> None:
        """For words of so many numbers."""
        super().__init__(words, 1, referents, localiser)
        self.thing_weight = nn.Parameter(torch.zeros(words + 1, referents.things))

    def normalise(self, truth: Tensor, sights: Sights | None = None) -> None:
        """What is true are things: from now on objects are as is seen."""
        if sights:
            super().normalise(sights.truth, sights)

    @property
    def size(self) -> int:
        """Numbers of all objects, if they are localised."""
        return (3 + self.uncertain) * self.localiser.objects if self.localiser else 0

    def targets(self, reference: Tensor, positions: Tensor) -> Tensor:
        """All objects, whatever is referred to."""
        usual = self._usual(positions[..., :3]).flatten(1)
        return torch.cat([usual, 0.5 * positions[..., 3]], 1) if self.uncertain else usual

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

    def __init__(self, words: int, referents: Referents, offsets: int, localiser: Localiser | None = None) -> None:
        """For words of so many numbers, and so many offsets; the localiser is for objects that nobody measures."""
        targets = referents.targets
        if referents.first is None and localiser is None:
            raise ValueError("nobody measures where objects are, and there is no localiser for them")
        # Questions are for the object of each target, and its offset.
        super().__init__(words, 2 * targets, referents, localiser if referents.first is None else None)
        self.offsets = offsets
        # What these words say: a weight for each of their numbers, and one more.
        self.object_weight = nn.Parameter(torch.zeros(targets, words + 1, referents.objects))
        self.offset_weight = nn.Parameter(torch.zeros(targets, words + 1, offsets))
        self.offset = nn.Parameter(AWAY * torch.randn(targets, offsets, 3))

    @property
    def size(self) -> int:
        """Numbers of the targets: 3 each, and one more where it is known how uncertain they are."""
        return (3 + self.uncertain) * self.referents.targets

    @property
    def kept(self) -> int:
        return self.referents.targets * (self.referents.objects + self.offsets)

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
