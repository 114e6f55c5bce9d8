"""The network of a detector, and how it learns: from pictures of matches that are made while it does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from policies.learning import cosine
from policies.learning.detection.pictures import Frames, labels
from policies.learning.encoders import Encoders
from policies.learning.networks import descend, linear_layers, mlp
from policies.models.controller import Array
from policies.models.detector import PictureDetector, told
from policies.models.vision import EncoderConfig
from sim.spec import pictures
from sim.tasks.soccer import SoccerVision1v1

PIECE = 512  # pictures judged at once


@dataclass
class Detection:
    """Settings of the learning."""

    sight: EncoderConfig = field(default_factory=lambda: EncoderConfig([16, 32, 32], [2, 2, 2], "flat", shift=0))
    hidden: int = 128  # units of the layer behind the convolutions
    batch_size: int = 256  # pictures
    pool: int = 30_000  # pictures that are mixed with one another
    epochs: int = 2  # times that each picture is learned from
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    bearing: float = 4.0  # weight of the errors of bearings (shares of half the view)
    distance: float = 1.0  # of those of distances (their logarithms)
    slack: float = 0.05  # of such an error, below which its square counts (Huber 1964)


class DetectorNetwork:
    """One detector in training."""

    def __init__(self, task: SoccerVision1v1, config: Detection, seed: int) -> None:
        self.task, self.config = task, config
        self.generator = torch.Generator().manual_seed(seed)
        self.inputs = pictures(task.policy)
        self.outputs = told(task.players)
        self.things = sum(s.size for s in self.outputs) // 3
        self.eye = Encoders(self.inputs, config.sight, self.generator)
        sizes = [self.eye.size, config.hidden, 3 * self.things]
        self.head = mlp(sizes, self.generator, hidden="relu", last_gain=0.1)
        self.half = math.radians(task.lens.view) / 2.0
        self.weights = [*self.eye.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(
            self.weights, config.learning_rate, weight_decay=config.weight_decay, fused=True
        )

    def forward(self, shown: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, bearings (shares of half the view) and logarithms of distances (n, things) of pictures."""
        made = self.head(self.eye({self.inputs[0].name: shown}).relu())
        logit, bearing, distance = made.split(self.things, 1)
        return logit, bearing, distance

    def learn(self, frames: Frames, done: float, share: float) -> float:
        """Go over these pictures in any order, while `share` of the training from `done` (0..1) on goes by: the loss."""
        config, count = self.config, len(frames.pictures)
        shown = torch.from_numpy(frames.pictures)
        wanted = torch.from_numpy(labels(frames, self.task.players))
        order = torch.cat([torch.randperm(count, generator=self.generator) for _ in range(config.epochs)])
        total, batches = 0.0, order.split(config.batch_size)
        for k, index in enumerate(batches):
            rate = cosine(min(1.0, done + share * k / len(batches)), config.learning_rate, 0.0)
            self.optimizer.param_groups[0]["lr"] = rate
            loss = self._loss(shown[index], wanted[index])
            descend(self.optimizer, loss)
            total += float(loss.detach())
        return total / len(batches)

    def _loss(self, shown: Tensor, wanted: Tensor) -> Tensor:
        config = self.config
        logit, bearing, distance = self.forward(shown)
        seen, angle, away = wanted.unbind(-1)
        found = functional.binary_cross_entropy_with_logits(logit, seen)
        off = functional.huber_loss(bearing, angle / self.half, reduction="none", delta=config.slack)
        scale = functional.huber_loss(distance, away.clamp_min(1e-2).log(), reduction="none", delta=config.slack)
        errors = (config.bearing * off + config.distance * scale) / config.slack * seen
        return found + errors.sum() / seen.sum().clamp_min(1.0)

    @torch.no_grad()
    def told(self, frames: Frames) -> Array:
        """What it tells (n, things, 3) of these pictures."""
        parts = [self.forward(piece) for piece in torch.from_numpy(frames.pictures).split(PIECE)]
        logit, bearing, distance = (torch.cat(some) for some in zip(*parts, strict=True))
        seen = (logit > 0.0).float()
        made: Array = torch.stack([seen, seen * self.half * bearing, seen * distance.exp()], -1).numpy()
        return made

    def exported(self, name: str) -> PictureDetector:
        """As numpy data."""
        (eye,) = self.eye.exported().values()
        layers = linear_layers(self.head)
        task = self.task
        terms = {"task": task.name, "robot": task.robot.name, "rate_hz": task.rate_hz}
        return PictureDetector(name, **terms, inputs=self.inputs, outputs=self.outputs, eye=eye, layers=layers, view=2.0 * self.half)


def pools(frames: Iterator[Frames], size: int) -> Iterator[Frames]:
    """So many pictures of several games at a time."""
    held: list[Frames] = []
    for some in frames:
        held.append(some)
        if sum(len(f.game) for f in held) >= size:
            yield Frames.joined(held)
            held = []
    if held:
        yield Frames.joined(held)


def spread(values: np.ndarray) -> float:
    return float(np.std(values))
