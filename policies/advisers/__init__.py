"""Advisers: who says, slowly, what he would have done, while somebody else learns. The table: name -> "module:Class".

Each works in a process of its own (`policies.advisers.process`), where it may take its time, fail, or end: whoever
learns never waits for it. After Found-RL (Qu et al. 2026), where the adviser is a vision-language model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.registry import load
from sim.tasks import Task

Array = NDArray[Any]

ADVISERS = {
    "expert": "policies.advisers.expert:Expert",
    "policy": "policies.advisers.policy:Earlier",
    "vlm": "policies.advisers.vision_language:VisionLanguage",
}
LEVELS = ("lowest", "low", "middle", "high", "highest")  # of a command, for those who choose among words
SPREAD = {2: (0, 4), 3: (0, 2, 4), 4: (0, 1, 3, 4), 5: (0, 1, 2, 3, 4)}  # which of them, by how many


@dataclass
class AdviserConfig:
    """Who advises, and how long that may take."""

    adviser: str = "expert"  # of ADVISERS
    policy: str = ""  # the file of adviser=policy: a policy that was trained for this task earlier
    model: str = ""  # the folder of adviser=vlm, as Hugging Face's `transformers` writes one
    prompt: str = "What should the {robot} do next?"  # to the vlm, before the options
    levels: int = 3  # of each command among which the vlm chooses, 2..5
    latency: float = 0.3  # s that expert and policy take over a batch, in the place of a large model
    synchronous: bool = False  # wait for every answer, without that latency: the same seed gives the same result
    batch: int = 64  # states that it is asked about at a time, at most
    queue: int = 256  # states that may wait for it; beyond that, the oldest are dropped
    timeout: float = 60.0  # s that a batch may take; then its process is ended and begun anew

    def __post_init__(self) -> None:
        if self.latency < 0.0 or not self.timeout > self.latency:
            raise ValueError(f"needs 0 <= latency < timeout, got {self.latency} and {self.timeout}")
        if not 1 <= self.batch <= self.queue:
            raise ValueError(f"needs 1 <= batch <= queue, got {self.batch} and {self.queue}")
        if self.levels not in SPREAD:
            raise ValueError(f"levels must be in 2..5, got {self.levels}")


class Answer(NamedTuple):
    """What an adviser says about n states."""

    action: Array  # (n, k) in [-1, 1]: what it would have done
    weight: Array  # (n,) 0..1: how much that counts
    score: Array  # (n,): how well it likes what was done; compared with its other scores only


class Adviser(Protocol):
    """Answers about one state at a time know nothing of those before."""

    def __init__(self, task: Task, config: AdviserConfig) -> None:
        """Quick, and done by who learns, too: ValueError, one sentence, where it cannot advise about this task."""

    def open(self) -> None:
        """Get ready; in its own process only."""

    def advise(self, signals: Mapping[str, Array], done: Array) -> Answer:
        """About n states: noise-free signals (n, *shape), "history" with them, and the actions (n, k) that followed."""


def make(task: Task, config: AdviserConfig) -> Adviser:
    """The adviser of that name, or of "module:Class"; ValueError lists the choices, or says why not for this task."""
    made: Adviser = load("adviser", config.adviser, ADVISERS)(task, config)
    return made


def agreement(action: Array, done: Array) -> Array:
    """How near (n,) what was done (n, k) is to what one would have done: minus the root of the mean square."""
    near: Array = -np.sqrt(np.square(action - done).mean(axis=1))
    return near
