"""Before the rest is cloned, words learn alone what they mean: which object, and which offset from it.

From every step of the demonstrations, by where objects and targets truly are, which only a simulator knows. It
takes seconds; inside a clone, whose loss is of commands, it takes longer than the whole clone. Where pictures alone
show the objects, the localiser learns beforehand, too: a clone that learns beside it would see its first, bad
positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from policies.algorithms import LearningError
from policies.algorithms.vla.descent import descend
from policies.learning import cosine
from policies.learning.buffers import Batch
from policies.learning.demonstrations import lacking
from policies.learning.encoders import columns, kept
from policies.learning.networks import Stateful, learned
from policies.learning.parallel.learners import Learners
from policies.learning.vla.grounding import Choices
from policies.learning.vla.localiser import Localiser, Sights
from policies.learning.vla.shown import Sentences, Told
from sim.rollout import Episode
from sim.tasks.abilities import HasWords, referents_of

if TYPE_CHECKING:
    from policies.algorithms.vla import VlaConfig

LAST = 0.02  # of the rate, in the end
RISE = 50  # updates in which the rate of the localiser rises
REPORT = 50  # updates between two reports
TOGETHER = 256  # pictures of each camera at a time
PIXEL = "pixel."  # before the name of a picture in a batch: where objects are in it


def as_often(kinds: Tensor) -> Tensor:
    """Weights (n,) by which every kind (n,) is drawn as often."""
    return 1.0 / torch.bincount(kinds).float()[kinds]


def true_positions(task: HasWords, episodes: Sequence[Episode]) -> Tensor:
    """Of objects and targets (n, objects + targets, 3) at every step, m; LearningError where none says."""
    objects, targets = referents_of(task)
    names = *objects, *targets
    if found := lacking(episodes, names):
        number, missing = found
        raise LearningError(
            f"demonstration {number} does not tell {', '.join(missing)}, from which "
            + (
                "words are grounded: set algorithm.network.offsets=0, or take other data"
                if targets
                else "pictures are learned: set algorithm.network.places=false, or take other data"
            )
        )
    told = [np.concatenate([episode.signals[name] for name in names], axis=1) for episode in episodes]
    for number, some in enumerate(told):
        if not np.isfinite(some).all():
            raise LearningError(f"demonstration {number}: {', '.join(names)} are not all finite numbers")
    positions: Tensor = torch.from_numpy(np.concatenate(told).astype(np.float32)).unflatten(1, (-1, 3))
    return positions


class Stage(Stateful):
    """A part of the policy learns alone, by a rate that rises and then falls. Its weights are in the policy's state."""

    name: ClassVar[str]  # of its metrics
    said: ClassVar[str]  # who learns, in words
    cost: ClassVar[float]  # of an update, beside one of the clone's
    rise: ClassVar[int]  # updates in which the rate rises
    state_parts = ("optimizer",)
    state_values = ("done", "last")

    def __init__(
        self,
        network: nn.Module,
        updates: int,
        config: VlaConfig,
        learners: Learners,
        generator: torch.Generator,
        rate: float,
    ) -> None:
        """This part, by so many updates of at most this rate."""
        self.updates, self.config, self.rate = updates, config, rate
        self.learners, self.generator = learners, generator
        self.learning = learned(network)
        self.clipped: Sequence[Sequence[Tensor]] = [self.learning]  # parameters, those together whose gradients are
        self.optimizer = torch.optim.AdamW(self.learning, rate, weight_decay=config.weight_decay)
        self.done = 0
        self.last: list[float] = []  # what was told in the last tenth of the updates

    @property
    def over(self) -> bool:
        return self.done >= self.updates

    def learn(self, shown: Told, sentences: Sentences, weight: Tensor) -> Iterator[dict[str, float]]:
        """Go on to the end, from samples of demonstrations that may have this weight (n,); metrics now and then."""
        config, tenth = self.config, max(1, self.updates // 10)
        losses: list[Tensor] = []
        while self.learners.more(not self.over):
            rate = cosine(self.done / self.updates, 1.0, LAST) * min(1.0, (self.done + 1) / self.rise)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * rate
            pieces = self._index(shown, weight).split(config.micro_batch or config.batch_size)
            told = descend(
                self.learners,
                self.optimizer,
                self.learning,
                pieces,
                lambda rows: self._drawn(shown, sentences, rows),
                self._losses,
                self.clipped,
            )
            losses.append(told["loss"])
            self.last = [*self.last, float(told.get("told", told["loss"]))][-tenth:]
            self.done += 1
            if self.done % REPORT == 0 or self.over:
                self.learners.agree(self.learning)
                loss = float(torch.stack(losses).mean())
                yield {"loss": loss, f"{self.name}_loss": loss}
                losses = []

    def metrics(self) -> dict[str, float]:
        """What it has come to, once it is over."""
        raise NotImplementedError

    def _ended(self) -> Tensor:
        """The mean of what was told in the last tenth."""
        return torch.tensor(self.last).mean()

    def _index(self, shown: Told, weight: Tensor) -> Tensor:
        """The numbers (n,) of a batch of samples."""
        raise NotImplementedError

    def _drawn(self, shown: Told, sentences: Sentences, rows: Tensor) -> Batch:
        """These samples (n,), with what is random of them."""
        raise NotImplementedError

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        """The "loss", and what is "told" if that is something else."""
        raise NotImplementedError


class GroundingStage(Stage):
    """Words learn what they refer to, from samples of the clone's weight."""

    name, said, cost, rise = "grounding", "words learn what they refer to", 0.1, 1

    def __init__(self, choices: Choices, config: VlaConfig, learners: Learners, generator: torch.Generator) -> None:
        super().__init__(choices, config.grounding, config, learners, generator, config.learning_rate)
        self.choices = choices

    def _index(self, shown: Told, weight: Tensor) -> Tensor:
        return torch.multinomial(weight, self.config.batch_size, True, generator=self.generator)

    def _drawn(self, shown: Told, sentences: Sentences, rows: Tensor) -> Batch:
        words, there = sentences.heard(shown.asked[rows], self.config.unheard, self.generator)
        return {"words": words, "there": there, "truth": shown.truth[rows]}

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.choices.loss(batch["words"], batch["there"], batch["truth"])}

    def metrics(self) -> dict[str, float]:
        """Nats by which words do not say what they refer to."""
        return {"grounding_loss": float(self._ended())}


class LocalisationStage(Stage):
    """The localiser learns, from all samples alike."""

    name, said, cost, rise = "localisation", "the localiser learns", 1.0, RISE

    def __init__(
        self,
        localiser: Localiser,
        choices: Choices,
        config: VlaConfig,
        learners: Learners,
        generator: torch.Generator,
    ) -> None:
        """Of those choices."""
        rate = config.localisation_learning_rate
        super().__init__(localiser, config.localisation, config, learners, generator, rate)
        self.choices, self.localiser, self.clipped = choices, localiser, localiser.clipped()

    def _index(self, shown: Told, weight: Tensor) -> Tensor:
        assert shown.sights is not None
        scene, count = shown.sights.scene, self.config.batch_size
        if self.localiser.scenes == 1:
            return torch.randint(len(scene), (count,), generator=self.generator)
        return torch.multinomial(as_often(scene), count, True, generator=self.generator)

    def _drawn(self, shown: Told, sentences: Sentences, rows: Tensor) -> Batch:
        assert shown.sights is not None
        return samples(self.localiser, shown.sights, rows, self.generator)

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        return losses(self.choices, batch)

    def metrics(self) -> dict[str, float]:
        """By how many m objects are off (root mean square)."""
        return {"localisation_error": float(self._ended().sqrt())}


def first_stages(choices: Choices, config: VlaConfig, learners: Learners, generator: torch.Generator) -> list[Stage]:
    """What of it learns first, one after the other."""
    rest = config, learners, generator
    made: list[Stage] = [GroundingStage(choices, *rest)]
    if choices.localiser:
        made.append(LocalisationStage(choices.localiser, choices, *rest))
    return made


def samples(localiser: Localiser, sights: Sights, rows: Tensor, generator: torch.Generator) -> Batch:
    """What it learns from: these rows (n,) of what was seen."""
    shown = localiser.encoders.moved({name: some[rows] for name, some in sights.pictures.items()}, generator)
    pixels = {f"{PIXEL}{name}": some[rows] for name, some in sights.pixels.items()}
    return {"truth": sights.truth[rows], "scene": sights.scene[rows], **columns(shown), **pixels}


def losses(choices: Choices, batch: Batch) -> dict[str, Tensor]:
    """Of a localiser: "loss", in variances, and "told", the mean squared distance by which it misses, m^2."""
    pixels = {name.removeprefix(PIXEL): some for name, some in batch.items() if name.startswith(PIXEL)}
    off, loss = choices.localisation_errors(Sights(kept(batch), batch["truth"], batch["scene"], pixels))
    return {"loss": loss, "told": off.sum(-1).mean()}


@torch.no_grad()
def localised(choices: Choices, shown: Told) -> Tensor:
    """Positions (n, objects, 3 or 4) of the objects, m, as they are found at every step of the demonstrations."""
    pieces = torch.arange(len(shown.truth)).split(TOGETHER)
    seen = ({name: some[index] for name, some in shown.pictures.items()} for index in pieces)
    return torch.cat([choices.positions(shown.numbers[index], some) for index, some in zip(pieces, seen, strict=True)])
