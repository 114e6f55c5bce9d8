"""A detector in training, from pictures of matches; and what it gets wrong on games that it never saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from policies.learning.detection.errors import Answers, compared, fitted
from policies.learning.detection.network import Detection, DetectorNetwork, pools
from policies.learning.detection.pictures import Frames, watched
from policies.models.networks import Array
from sim.env import stream
from sim.tasks.soccer import SoccerVision1v1
from sim.tasks.soccer.detection import Errors, things

UNSEEN = int.from_bytes(b"unseen")  # mixed into the seed of the games that judge


class DetectorLearner:
    """Learns from `total_steps` pictures of a task; then so many `games` judge it."""

    def __init__(self, task: SoccerVision1v1, total_steps: int, games: int, seed: int, threads: int = 1) -> None:
        """`threads` are torch's: beside other work on the same cores several wait for each other."""
        self.task, self.total_steps, self.games, self.seed, self.threads = task, total_steps, games, seed, threads
        self.network = DetectorNetwork(task, Detection(), seed)
        self.errors: Errors | None = None  # when it is over
        self.done = 0  # pictures
        self._skipped = 0  # that were learned from before a run was interrupted

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end; one yield per pool of pictures."""
        torch.set_num_threads(self.threads)
        for frames in pools(watched(self.task, self.total_steps, self.seed), self.network.config.pool):
            count = len(frames.game)
            loss = self.network.learn(frames, self.done / self.total_steps, count / self.total_steps)
            self.done += count
            if self.done > self._skipped:
                progress = min(1.0, self.done / self.total_steps)
                yield {"loss": loss, "progress": progress, "env_steps": float(self.done)}
            if self.done >= self.total_steps:
                return

    def judge(self) -> tuple[Frames, Answers]:
        """Measure its errors: unseen games, and its answers beside what is so. ValueError when it tells too little."""
        games = watched(self.task, self.games, stream(self.seed, UNSEEN) % 2**31)
        unseen = Frames.joined(list(games))
        answers = compared(unseen, self.network.told(unseen.pictures), [*things(self.task.players).values()])
        self.errors = fitted(answers)
        return unseen, answers

    def recognise(self, pictures: NDArray[np.uint8]) -> Array:
        """What it tells (n, things, 3) of pictures (n, height, width, 3)."""
        return self.network.told(pictures)

    def state_dict(self) -> dict[str, Any]:
        """When it is over, all of it; before that how far it is: what was learned is learned again."""
        if self.errors is None:
            return {"done": self.done, "errors": {}, "network": {}}
        held = {name: value.detach().numpy().copy() for name, value in self.network.state_dict().items()}
        return {"done": self.done, "errors": asdict(self.errors), "network": held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        if not state["errors"]:
            self._skipped = int(state["done"])
            return
        self.done, self.errors = int(state["done"]), Errors(**{k: float(v) for k, v in state["errors"].items()})
        self.network.load_state_dict({name: torch.as_tensor(value) for name, value in state["network"].items()})
