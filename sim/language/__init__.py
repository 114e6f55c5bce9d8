"""Tasks in words: what somebody may say to ask for a task, and what asks for its opposite."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np

from sim.language import metaworld

LEADS = ("", "please ", "now ", "go ahead and ", "you should ")  # before a sentence; learners may see these
SENTENCES = ("learned", "held_out", "wrong")  # that episodes are asked for with; wrong: those for something else
SAID = int.from_bytes(b"said")  # mixed into the seed
UNSEEN_LEADS = ("could you ", "your next job is to ", "i would like you to ")  # and only evaluations these


@dataclass(frozen=True)
class Instructions:
    """All sentences that ask for one task; what evaluations draw shares no sentence and no lead with the rest."""

    task: str
    learned: tuple[str, ...]
    held_out: tuple[str, ...]
    opposite: str = ""  # the task of the same scene that is undone by this one; none: no such task

    def draw(self, rng: np.random.Generator, held_out: bool = False) -> str:
        """One sentence, each as likely."""
        sentences = self.held_out if held_out else self.learned
        return sentences[rng.integers(len(sentences))]


def asked_with(
    rng: np.random.Generator, sentences: str, asked: Instructions, others: Callable[[], Sequence[Instructions]]
) -> str:
    """What an episode is asked for with, of `SENTENCES`: wrong ones are unseen ones of another thing."""
    if sentences == "wrong":
        wrong = others()
        asked = wrong[int(rng.integers(len(wrong)))]
    return asked.draw(rng, held_out=sentences != "learned")


def expanded(patterns: Iterable[str]) -> tuple[str, ...]:
    """Every sentence of the patterns, in their order, once each: `(a|b|)` stands for one of its alternatives."""
    found: dict[str, None] = {}
    for pattern in patterns:
        parts = re.split(r"\(([^()]*)\)", pattern)  # outside, inside, outside, ...
        choices = [part.split("|") if k % 2 else [part] for k, part in enumerate(parts)]
        found |= dict.fromkeys("".join(chosen) for chosen in itertools.product(*choices))
    return tuple(found)


@cache
def spoken() -> Mapping[str, Instructions]:
    """Task -> its instructions, of all tasks that have some."""
    return MappingProxyType({name: _instructions(name) for name in metaworld.PHRASES})


def _instructions(name: str) -> Instructions:
    phrases = metaworld.PHRASES[name]
    seen = tuple(lead + sentence for sentence in expanded(phrases.learned) for lead in LEADS)
    unseen = tuple(lead + sentence for sentence in expanded(phrases.held_out) for lead in UNSEEN_LEADS)
    return Instructions(name, seen, unseen, phrases.opposite)


def instructions_of(task: str) -> Instructions:
    """The instructions of a task by its name; ValueError names those that have some."""
    if task not in spoken():
        raise ValueError(f"task {task} has no instructions in words; these have: {', '.join(spoken())}")
    return spoken()[task]
