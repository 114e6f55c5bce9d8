"""The network of a detector, and how it learns: from pictures of matches that are made while it does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from policies.learning import cosine
from policies.learning.detection.pictures import Frames, labels
from policies.learning.encoders import WHITE, convolution_layers, convolutions
from policies.learning.networks import descend, linear_layers, mlp
from policies.models.detector import PictureDetector, picture_bearings, told
from policies.models.networks import Array, Layer
from policies.models.vision import CONTRAST, DARK, EncoderConfig
from sim.spec import pictures, size
from sim.tasks.soccer import SoccerVision1v1

PIECE = 512  # pictures judged at once
NOISY = 0.5  # share of the pictures of training that get noise


@dataclass
class Detection:
    """Settings of the learning."""

    sight: EncoderConfig = field(default_factory=lambda: EncoderConfig([16, 32, 32, 32], [2, 2, 1, 1], "flat", 0))
    values: int = 16  # of each thing, whose means are taken where it is
    hidden: int = 64  # units of the layer behind them
    batch_size: int = 256  # pictures
    pool: int = 30_000  # pictures that are mixed with one another
    epochs: int = 2  # times that each picture is learned from
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    noise: float = 0.1  # most that each colour of a picture gets in training (standard deviation), of 1
    shift: int = 1  # pixels by which pictures are moved in training at most, up or down
    slack: float = 0.05  # of an error (rad; share of the distance), below which its square counts (Huber 1964)


class DetectorNetwork(nn.Module):
    """One detector in training; see `PictureDetector`."""

    def __init__(self, task: SoccerVision1v1, config: Detection, seed: int) -> None:
        super().__init__()
        self.task, self.config = task, config
        self.generator = torch.Generator().manual_seed(seed)
        self.inputs, self.outputs = pictures(task.policy), told(task.players)
        self.things = n = size(self.outputs) // 3
        sight = config.sight
        self.eye = convolutions(sight, self.generator, 1.0)
        self.maps = mlp([sight.channels[-1], n], self.generator)
        self.held = mlp([sight.channels[-1], n * config.values], self.generator)
        directions = picture_bearings(task.lens.optics().rays)
        # With such strides and a margin, the middle of a cell is on the first of its columns.
        bearings = directions[:: math.prod(sight.strides)].copy()
        self.bearings = nn.Buffer(torch.from_numpy(bearings))
        self.head = mlp([n * (config.values + len(bearings)), config.hidden, 2 * n], self.generator, "relu", 0.1)
        self.optimizer = torch.optim.AdamW(
            self.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True
        )

    def forward(self, shown: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (n, things), shares of columns (n, things, columns), logarithms of distances (n, things)."""
        cells = self.eye(standardised(shown.permute(0, 3, 1, 2).float()) / WHITE).relu()
        rows, columns = cells.shape[2:]
        flat = cells.permute(0, 2, 3, 1).flatten(1, 2)  # (n, cells, channels)
        likely = self.maps(flat).softmax(1)  # (n, cells, things)
        held = self.held(flat).unflatten(2, (self.things, -1))  # (n, cells, things, values)
        found = (held * likely[..., None]).sum(1)
        column = likely.transpose(1, 2).unflatten(2, (rows, columns)).sum(2)
        logit, distance = self.head(torch.cat([found.flatten(1), column.flatten(1)], 1)).split(self.things, 1)
        return logit, column, distance

    def learn(self, frames: Frames, done: float, share: float) -> float:
        """Go over these pictures in any order, for `share` of the training, of which `done` is over; the mean loss."""
        config, count = self.config, len(frames.pictures)
        shown = torch.from_numpy(frames.pictures)
        wanted = torch.from_numpy(labels(frames, self.task.players))
        order = torch.cat([torch.randperm(count, generator=self.generator) for _ in range(config.epochs)])
        total, batches = 0.0, order.split(config.batch_size)
        for k, index in enumerate(batches):
            rate = cosine(min(1.0, done + share * k / len(batches)), config.learning_rate, 0.0)
            self.optimizer.param_groups[0]["lr"] = rate
            loss = self._loss(self._augmented(shown[index]), wanted[index])
            descend(self.optimizer, loss)
            total += float(loss.detach())
        return total / len(batches)

    def _augmented(self, shown: Tensor) -> Tensor:
        """Pictures (n, height, width, 3) as worse cameras might have made them: half noisier, two thirds tilted more.

        They are moved up or down only, for their columns are bearings.
        """
        (count, height), shift, generator = shown.shape[:2], self.config.shift, self.generator
        moved = torch.randint(-shift, shift + 1, (count, 1), generator=generator)
        rows = (torch.arange(height) + moved).clamp(0, height - 1)
        shown = shown[torch.arange(count)[:, None], rows].float()
        noise = torch.rand(count, 1, 1, 1, generator=generator) * self.config.noise * WHITE
        noise *= torch.rand(count, 1, 1, 1, generator=generator) < NOISY
        return (shown + noise * torch.randn(shown.shape, generator=generator)).clamp(0.0, WHITE)

    def _loss(self, shown: Tensor, wanted: Tensor) -> Tensor:
        """Of what is seen, of the columns in which it is, and of bearings and distances in them."""
        logit, column, distance = self(shown)
        seen, angle, away = wanted.unbind(-1)
        found = functional.binary_cross_entropy_with_logits(logit, seen)
        slack = self.config.slack
        off = functional.huber_loss(column @ self.bearings, angle, reduction="none", delta=slack)
        scale = functional.huber_loss(distance, away.clamp_min(1e-2).log(), reduction="none", delta=slack)
        errors = (off + scale) / slack + off / slack + self._misplaced(column, angle)
        return found + (errors * seen).sum() / seen.sum().clamp_min(1.0)

    def _misplaced(self, column: Tensor, angle: Tensor) -> Tensor:
        """Cross-entropy (n, things) of the columns' shares from the two between which the bearing lies."""
        falling = self.bearings  # from left to right
        after = torch.searchsorted(-falling, -angle.contiguous()).clamp(1, len(falling) - 1)
        left, right = falling[after - 1], falling[after]
        share = ((left - angle) / (left - right)).clamp(0.0, 1.0)
        likely = (column + 1e-6).log()
        before = likely.gather(2, (after - 1)[..., None]).squeeze(2)
        beyond = likely.gather(2, after[..., None]).squeeze(2)
        return -(1.0 - share) * before - share * beyond

    @torch.no_grad()
    def told(self, shown: NDArray[np.uint8]) -> Array:
        """What it tells (n, things, 3) of these pictures (n, height, width, 3)."""
        parts = [self(piece) for piece in torch.from_numpy(shown).split(PIECE)]
        logit, column, distance = (torch.cat(some) for some in zip(*parts, strict=True))
        seen = (logit > 0.0).float()
        made: Array = torch.stack([seen, seen * (column @ self.bearings), seen * distance.exp()], -1).numpy()
        return made

    def exported(self, name: str) -> PictureDetector:
        """As numpy data."""
        (maps,), (values,) = linear_layers(self.maps), linear_layers(self.held)
        layers: list[Layer] = convolution_layers(self.eye)
        task = self.task
        return PictureDetector(
            name=name,
            task=task.name,
            robot=task.robot.name,
            rate_hz=task.rate_hz,
            inputs=self.inputs,
            outputs=self.outputs,
            layers=layers,
            strides=self.config.sight.strides,
            maps=maps,
            values=values,
            head=linear_layers(self.head),
            bearings=self.bearings.numpy().copy(),
        )


def standardised(shown: Tensor) -> Tensor:
    """Pictures (n, 3, height, width) as `policies.models.vision.standardised` makes them."""
    off = shown - shown.mean((2, 3), keepdim=True)
    return off / (off.square().mean((2, 3), keepdim=True).sqrt() + DARK) * CONTRAST


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
