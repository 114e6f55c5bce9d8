"""Before the rest is cloned, words learn alone what they mean: which thing, and where beside it.

From every step of the demonstrations, by where the things and what is meant truly are, which only a simulator knows. It
takes seconds; inside a clone, whose loss is of commands, it takes longer than the whole clone. Where pictures alone
show the things, eyes learn beforehand to find them, too: a clone that learns beside them would see their first, bad
places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from policies.algorithms import LearningError
from policies.learning import cosine
from policies.learning.networks import learned
from policies.learning.vla.pointing import Pointing
from policies.learning.vla.shown import Sentences, Told
from sim.rollout import Episode
from sim.tasks.abilities import HasWords, meaning_of

if TYPE_CHECKING:
    from policies.algorithms.vla import VlaConfig

LAST = 0.02  # of the rate, in the end
STEEPEST = 1.0  # norm of a gradient
RISE = 50  # updates in which the rate of eyes rises
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


def ground(
    pointing: Pointing, shown: Told, sentences: Sentences, weight: Tensor, config: VlaConfig, generator: torch.Generator
) -> float:
    """Words learn to point, from samples of this weight (n,); nats by which they do not, in the last tenth."""
    pointing.normalise(shown.truth)

    def drawn() -> tuple[Tensor, Tensor]:
        index = torch.multinomial(weight, config.batch_size, True, generator=generator)
        words, there = sentences.heard(shown.asked[index], config.unheard, generator)
        loss = pointing.loss(words, there, shown.truth[index])
        return loss, loss

    return float(_taught(pointing, config.grounding, 1, config, drawn))


def look_for(pointing: Pointing, shown: Told, config: VlaConfig, generator: torch.Generator) -> float:
    """Eyes learn to find the things in pictures; m by which they are off in the last tenth (root mean square)."""
    find = pointing.find
    assert find is not None

    def drawn() -> tuple[Tensor, Tensor]:
        index = torch.randint(len(shown.truth), (config.batch_size,), generator=generator)
        pictures = find.eyes.moved({name: some[index] for name, some in shown.pictures.items()}, generator)
        missed = pointing.missed(pictures, shown.truth[index])
        return missed.mean(), (missed * pointing.deviation[: find.things].square()).sum(-1).mean()

    return float(_taught(find, config.finding, RISE, config, drawn).sqrt())


def _taught(
    network: nn.Module, updates: int, rise: int, config: VlaConfig, drawn: Callable[[], tuple[Tensor, Tensor]]
) -> Tensor:
    """Learn by so many updates, in the first `rise` of which the rate rises; the mean of what the last tenth tells.

    `drawn`: the loss of some samples, and what is told of them.
    """
    optimizer = torch.optim.AdamW(learned(network), config.learning_rate, weight_decay=config.weight_decay)
    told = []
    for done in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * cosine(done / updates, 1.0, LAST) * min(1.0, (done + 1) / rise)
        loss, some = drawn()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), STEEPEST)
        optimizer.step()
        told.append(some.detach())
    return torch.stack(told[-max(1, updates // 10) :]).mean()


@torch.no_grad()
def found(pointing: Pointing, shown: Told) -> Tensor:
    """Where the things are found (n, things, 3) at every step of the demonstrations, m."""
    pieces = torch.arange(len(shown.truth)).split(TOGETHER)
    seen = ({name: some[index] for name, some in shown.pictures.items()} for index in pieces)
    return torch.cat([pointing.places(shown.numbers[index], some) for index, some in zip(pieces, seen, strict=True)])
