"""Demonstrations: from whom, and every step of theirs with the chunk of actions that followed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policies.algorithms import LearningError
from policies.collect import demonstrate, stored
from policies.models.controller import normalised
from policies.models.networks import Array
from sim import spec
from sim.rollout import Episode
from sim.tasks import Task


@dataclass
class Shown:
    """Demonstrations, in chunks."""

    horizon: int = 4  # actions in a chunk
    episodes: int = 80  # demonstrated by the task's expert
    corruption: float = 1.0  # of the expert; 1 is mediocre, 0 perfect
    demonstrations: str = ""  # folder of a dataset, or of several (DIR,DIR); the first `episodes` of each instead

    def __post_init__(self) -> None:
        for name in ("horizon", "episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.corruption < 0.0:
            raise ValueError(f"corruption must be at least 0, got {self.corruption}")


def chunked(action: Array, horizon: int) -> Array:
    """From every step of (n, k) the next actions, the last one held beyond the end: (n, horizon * k)."""
    ahead = np.minimum(np.arange(len(action))[:, None] + np.arange(horizon), len(action) - 1)
    chunks: Array = action[ahead].reshape(len(action), -1)
    return chunks


@dataclass
class Demonstrations:
    """Every step of the episodes: what was seen (n, o) and the chunk that followed (n, horizon * k) in [-1, 1]."""

    observation: Array  # numbers
    chunk: Array
    pictures: dict[str, NDArray[np.uint8]] = field(default_factory=dict)  # (n, height, width, 3)

    @classmethod
    def of(cls, episodes: list[Episode], task: Task, horizon: int) -> Demonstrations:
        """After an episode's end its last action is held. ValueError names an episode that is not finite."""
        seen, chunks = [], []
        for episode in episodes:
            observation = spec.pack(spec.numbers(task.policy), episode.signals)
            action = normalised(task.commands, episode.commands)
            if not (np.isfinite(observation).all() and np.isfinite(action).all()):
                raise ValueError(f"demonstration {episode.number} holds a value that is not finite")
            seen.append(observation)
            chunks.append(chunked(action, horizon))
        if not seen:
            raise ValueError("there is no demonstration")
        shown = {s.name: np.concatenate([e.signals[s.name] for e in episodes]) for s in spec.pictures(task.policy)}
        return cls(np.concatenate(seen), np.concatenate(chunks).astype(np.float32), shown)


def lacking(episodes: Iterable[Episode], names: Sequence[str]) -> tuple[int, list[str]] | None:
    """The number of the first episode that does not tell all of these signals, and those; None if all do."""
    for episode in episodes:
        if missing := [name for name in names if name not in episode.signals]:
            return episode.number, missing
    return None


def privileged(episodes: Sequence[Episode], known: spec.Group, setting: str) -> Array:
    """What only recordings know, every step of all episodes (n, p). LearningError where they do not know it.

    `setting`: which, at 0, does without.
    """
    if found := lacking(episodes, [s.name for s in known]):
        number, missing = found
        raise LearningError(
            f"demonstration {number} does not tell {', '.join(missing)}, by which pictures are learned: set "
            f"{setting}=0, or take other data"
        )
    told: Array = np.concatenate([spec.pack(known, episode.signals) for episode in episodes])
    return told


def folders(names: str) -> list[str]:
    """Of datasets: parted by commas, unless one has a comma in its name. ValueError where one is named twice."""
    found = [names] if Path(names).exists() else names.split(",")
    if "" in found:
        raise ValueError(f"{names!r} has a comma without a folder beside it")
    if len({Path(name).resolve() for name in found}) < len(found):
        raise ValueError(f"{names!r} names the same folder twice")
    return found


def recorded(task: Task, config: Shown, seed: int) -> list[Episode]:
    """Of the task's expert, or from the dataset that the settings name; LearningError when that cannot be read."""
    if not config.demonstrations:
        return sorted(demonstrate(task, config.episodes, seed, config.corruption), key=lambda e: e.number)
    try:
        return [e for folder in folders(config.demonstrations) for e in stored(task, folder, config.episodes)]
    except ValueError as error:  # a DatasetError
        raise LearningError(f"demonstrations: {error}") from error


def demonstrated(task: Task, config: Shown, seed: int) -> list[Episode]:
    """The same; LearningError when none of them succeeds."""
    shown = recorded(task, config, seed)
    if not any(episode.succeeded for episode in shown):
        raise LearningError(
            f"none of the {len(shown)} demonstrations succeeds, so there is nothing to learn: "
            "lower their setting corruption, raise episodes, or take other data"
        )
    return shown


def demonstrations(task: Task, config: Shown, seed: int) -> Demonstrations:
    """What a base learns from: `demonstrated`."""
    return Demonstrations.of(demonstrated(task, config, seed), task, config.horizon)
