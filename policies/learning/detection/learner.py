"""A detector in training, from pictures of matches; and what it gets wrong on games that it never saw."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from policies.learning.detection.errors import Answers, compared, fitted
from policies.learning.detection.network import Detection, DetectorNetwork, pools
from policies.learning.detection.pictures import Frames, Matches
from policies.models.networks import Array
from sim.env import stream
from sim.tasks.soccer import SoccerVision1v1
from sim.tasks.soccer.detection import Errors, things

SEES = "standardised colours"  # what its network is shown: in states, as others have the same shapes
WAY = "augmented"  # how it learns that: in states of one that goes on
UNSEEN = int.from_bytes(b"unseen")  # mixed into the seed of the games that judge


class DetectorLearner:
    """Learns from `total_steps` pictures of a task; then so many `games` judge it."""

    def __init__(self, task: SoccerVision1v1, total_steps: int, games: int, seed: int, threads: int = 1) -> None:
        """`threads` are torch's: beside other work on the same cores several wait for each other."""
        self.task, self.total_steps, self.games, self.seed, self.threads = task, total_steps, games, seed, threads
        self.network = DetectorNetwork(task, Detection(), seed)
        self.matches = Matches(task, total_steps, seed)
        self.errors: Errors | None = None  # when it is over
        self.done = 0  # pictures

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end; one yield per pool of pictures."""
        torch.set_num_threads(self.threads)
        mixed = pools(iter(self.matches), self.network.config.pool)
        while self.done < self.total_steps:
            frames = next(mixed)
            count = len(frames.game)
            loss = self.network.learn(frames, self.done / self.total_steps, count / self.total_steps)
            self.done += count
            yield {"loss": loss, "progress": min(1.0, self.done / self.total_steps), "env_steps": float(self.done)}

    def judge(self) -> tuple[Frames, Answers]:
        """Measure its errors: unseen games, and its answers beside what is so. ValueError when it tells too little."""
        unseen = Frames.joined([*Matches(self.task, self.games, stream(self.seed, UNSEEN) % 2**31)])
        answers = compared(unseen, self.network.told(unseen.pictures), [*things(self.task.players).values()])
        self.errors = fitted(answers)
        return unseen, answers

    def recognise(self, pictures: NDArray[np.uint8]) -> Array:
        """What it tells (n, things, 3) of pictures (n, height, width, 3)."""
        return self.network.told(pictures)

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        held = {name: value.detach().numpy().copy() for name, value in self.network.state_dict().items()}
        state: dict[str, Any] = {"done": self.done, "errors": {}, "network": held, "sees": SEES}
        if self.errors is not None:
            return {**state, "errors": asdict(self.errors)}
        generator, optimizer = self.network.generator.get_state().numpy(), self.network.optimizer.state_dict()
        over = np.array(self.matches.over, np.int64).reshape(-1, 2)
        return {**state, "generator": generator, "optimizer": copy.deepcopy(optimizer), "over": over, "way": WAY}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there. ValueError for what another version kept."""
        if state.get("sees") != SEES or not (state["errors"] or state.get("way") == WAY):
            raise ValueError("its detector was learned by an earlier version, from other pictures: train anew")
        self.done = int(state["done"])
        self.network.load_state_dict({name: torch.as_tensor(value) for name, value in state["network"].items()})
        if state["errors"]:
            self.errors = Errors(**{k: float(v) for k, v in state["errors"].items()})
            return
        self.network.generator.set_state(torch.as_tensor(state["generator"]))
        self.network.optimizer.load_state_dict(state["optimizer"])
        self.matches = Matches(self.task, self.total_steps, self.seed, state["over"])
