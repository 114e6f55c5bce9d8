"""Before the rest is cloned, words learn alone what they mean: which thing, and where beside it.

From every step of the demonstrations, by where the things and what is meant truly are, which only a simulator knows. It
takes seconds; inside a clone, whose loss is of commands, it takes longer than the whole clone. Where pictures alone
show the things, eyes learn beforehand to find them, too: a clone that learns beside them would see their first, bad
places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from policies.algorithms import LearningError
from policies.algorithms.vla.descent import descend
from policies.learning import cosine
from policies.learning.buffers import Batch
from policies.learning.encoders import columns, kept
from policies.learning.networks import Stateful, learned
from policies.learning.parallel.learners import Learners
from policies.learning.vla.pointing import Pointing
from policies.learning.vla.shown import Sentences, Told
from sim.rollout import Episode
from sim.tasks.abilities import HasWords, meaning_of

if TYPE_CHECKING:
    from policies.algorithms.vla import VlaConfig

LAST = 0.02  # of the rate, in the end
RISE = 50  # updates in which the rate of eyes rises
REPORT = 50  # updates between two reports
TOGETHER = 256  # pictures of each camera at a time


def meaning_at(task: HasWords, episodes: Sequence[Episode]) -> Tensor:
    """Where the things, and what is meant, are (n, things + meant, 3) at every step; LearningError where none says."""
    things, meant = meaning_of(task)
    names = things, *meant
    for episode in episodes:
        if missing := [name for name in names if name not in episode.signals]:
            raise LearningError(
                f"demonstration {episode.number} does not tell {', '.join(missing)}, from which words learn to point: "
                "set algorithm.network.beside=0, or take other data"
            )
    told = [np.concatenate([episode.signals[name] for name in names], axis=1) for episode in episodes]
    places: Tensor = torch.from_numpy(np.concatenate(told).astype(np.float32)).unflatten(1, (-1, 3))
    return places


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
        pointing: Pointing,
        config: VlaConfig,
        learners: Learners,
        generator: torch.Generator,
    ) -> None:
        """The part `network` of `pointing`, by so many updates."""
        self.pointing, self.updates, self.config = pointing, updates, config
        self.learners, self.generator = learners, generator
        self.learning = learned(network)
        self.optimizer = torch.optim.AdamW(self.learning, config.learning_rate, weight_decay=config.weight_decay)
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
                group["lr"] = config.learning_rate * rate
            pieces = self._index(shown, weight).split(config.micro_batch or config.batch_size)
            told = descend(
                self.learners,
                self.optimizer,
                self.learning,
                pieces,
                lambda rows: self._drawn(shown, sentences, rows),
                self._losses,
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


class Grounding(Stage):
    """Words learn to point, from samples of the clone's weight."""

    name, said, cost, rise = "grounding", "its words learn what they mean", 0.1, 1

    def _index(self, shown: Told, weight: Tensor) -> Tensor:
        return torch.multinomial(weight, self.config.batch_size, True, generator=self.generator)

    def _drawn(self, shown: Told, sentences: Sentences, rows: Tensor) -> Batch:
        words, there = sentences.heard(shown.asked[rows], self.config.unheard, self.generator)
        return {"words": words, "there": there, "truth": shown.truth[rows]}

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.pointing.loss(batch["words"], batch["there"], batch["truth"])}

    def metrics(self) -> dict[str, float]:
        """Nats by which words do not point at what they mean."""
        return {"grounding_loss": float(self._ended())}


class Localisation(Stage):
    """Eyes learn to find the things in pictures, from all samples alike."""

    name, said, cost, rise = "localisation", "its eyes learn to find things", 1.0, RISE

    def _index(self, shown: Told, weight: Tensor) -> Tensor:
        return torch.randint(len(shown.truth), (self.config.batch_size,), generator=self.generator)

    def _drawn(self, shown: Told, sentences: Sentences, rows: Tensor) -> Batch:
        return looked(self.pointing, shown.pictures, shown.truth, rows, self.generator)

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        return missed(self.pointing, batch)

    def metrics(self) -> dict[str, float]:
        """By how many m things are found elsewhere (root mean square)."""
        return {"localisation_error": float(self._ended().sqrt())}


def first_stages(pointing: Pointing, config: VlaConfig, learners: Learners, generator: torch.Generator) -> list[Stage]:
    """What of it learns first, one after the other."""
    made: list[Stage] = [Grounding(pointing, config.grounding, pointing, config, learners, generator)]
    if pointing.find:
        made.append(Localisation(pointing.find, config.finding, pointing, config, learners, generator))
    return made


def looked(
    pointing: Pointing, pictures: Mapping[str, Tensor], truth: Tensor, rows: Tensor, generator: torch.Generator
) -> Batch:
    """What eyes learn from: these samples (n,) of pictures, and of where the things are (.., things, 3)."""
    assert pointing.find is not None
    shown = pointing.find.eyes.moved({name: some[rows] for name, some in pictures.items()}, generator)
    return {"truth": truth[rows], **columns(shown)}


def missed(pointing: Pointing, batch: Batch) -> dict[str, Tensor]:
    """The loss of eyes, in variances; and, "told", the mean squared distance by which they miss, m^2."""
    off = pointing.missed(kept(batch), batch["truth"])
    away = (off * pointing.deviation[: pointing.pointed.things].square()).sum(-1)
    return {"loss": off.mean(), "told": away.mean().detach()}


@torch.no_grad()
def found(pointing: Pointing, shown: Told) -> Tensor:
    """Where the things are found (n, things, 3) at every step of the demonstrations, m."""
    pieces = torch.arange(len(shown.truth)).split(TOGETHER)
    seen = ({name: some[index] for name, some in shown.pictures.items()} for index in pieces)
    return torch.cat([pointing.places(shown.numbers[index], some) for index, some in zip(pieces, seen, strict=True)])
