"""Learning an encoder by regression: from a picture to everything that is privileged, normalised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.algorithms import LearningError
from policies.learning import cosine
from policies.learning.demonstrations import Shown, privileged, recorded
from policies.learning.encoders import SHARP, Encoders
from policies.learning.networks import Normalizer, Stateful, descend, linear_layers, mlp
from policies.learning.state_estimation import StateEstimation
from policies.models.networks.feed_forward import FeedForward
from policies.models.vision import EncoderConfig, EstimatingEncoder
from sim import spec
from sim.env import stream
from sim.tasks import Task

RECORDED = int.from_bytes(b"recorded")  # mixed into the seed: what it learns from is nowhere else
REPORT = 100  # updates between two rows of metrics


class StateEstimator(Stateful):
    """Convolutions and a perceptron that tell what is privileged of a task's picture; ValueError if either is missing.

    In learning, pictures are moved by a few pixels at random (`sight.shift`).
    """

    state_parts = ("encoders", "telling", "usual", "optimizer")
    state_values = ("done", "untold")

    def __init__(self, task: Task, config: StateEstimation, sight: EncoderConfig, seed: int) -> None:
        shown = spec.pictures(task.policy)
        if len(shown) != 1 or not task.privileged:
            raise ValueError(
                f"algorithm.estimator.updates tells what is privileged from one picture: {task.name} shows "
                f"{len(shown)} pictures and knows {len(task.privileged)} privileged signals; set it to 0"
            )
        self.task, self.config, self.seed, self.known = task, config, seed, task.privileged
        self.generator = torch.Generator().manual_seed(seed)
        self.encoders = Encoders(shown, sight, self.generator, SHARP)
        self.size = spec.size(self.known)
        self.telling = mlp([self.encoders.size, *config.hidden, self.size], self.generator, "relu")
        self.usual = Normalizer(self.size)
        parameters = [*self.encoders.parameters(), *self.telling.parameters()]
        self.optimizer = torch.optim.Adam(parameters, config.learning_rate, fused=True)
        self.done = 0  # updates
        self.untold = 1.0  # share of the variance that it did not tell lately

    @property
    def finished(self) -> bool:
        """Whether it stays as it is from now on."""
        return self.done >= self.config.updates

    def learn(self) -> Iterator[dict[str, float]]:
        """The updates that are left; metrics of every `REPORT`-th. LearningError where recordings do not tell it."""
        if self.finished:
            return
        config = self.config
        shown = Shown(1, config.episodes, config.corruption, config.demonstrations)
        episodes = recorded(self.task, shown, stream(self.seed, RECORDED))
        told = torch.from_numpy(privileged(episodes, self.known, "algorithm.estimator.updates"))
        if not torch.isfinite(told).all():
            raise LearningError("what the demonstrations tell that is privileged is not finite: take other data")
        if self.done == 0:
            self.usual.update(told)
        wanted = self.usual(told)
        names = [s.name for s in self.encoders.pictures]
        pictures = {name: torch.from_numpy(np.concatenate([e.signals[name] for e in episodes])) for name in names}
        del episodes
        while not self.finished:
            some = torch.randint(len(wanted), (config.batch_size,), generator=self.generator)
            moved = self.encoders.moved({name: one[some] for name, one in pictures.items()}, self.generator)
            missed = (self.telling(self.encoders(moved)) - wanted[some]).square().mean()
            for group in self.optimizer.param_groups:
                group["lr"] = cosine(self.done / config.updates, config.learning_rate, 0.02 * config.learning_rate)
            descend(self.optimizer, missed)
            self.done += 1
            self.untold += 0.02 * (float(missed.detach()) - self.untold)
            if not math.isfinite(self.untold):
                raise LearningError(
                    f"after {self.done} updates the encoder's loss is not finite: lower "
                    "algorithm.estimator.learning_rate"
                )
            if self.done % REPORT == 0 or self.finished:
                yield {"progress": self.done / config.updates, "untold": self.untold}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.generator.set_state(torch.as_tensor(state["generator"], dtype=torch.uint8))

    @torch.no_grad()
    def look(self, pictures: Mapping[str, Tensor]) -> Tensor:
        """What it tells of pictures (n, height, width, 3), as they are: (n, size), normalised."""
        told: Tensor = self.telling(self.encoders(pictures))
        return told

    def exported(self) -> dict[str, EstimatingEncoder]:
        """The same as numpy data, by the picture's name."""
        head = FeedForward(linear_layers(self.telling), "relu")
        return {name: EstimatingEncoder(found, head) for name, found in self.encoders.exported().items()}
