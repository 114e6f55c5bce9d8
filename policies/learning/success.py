"""Learning to see success from a few labelled frames: perceptrons in an ensemble, with an encoder of each picture.

What is believed is their mean minus their spread: where no labelled frame is near they disagree, and a policy that
searches for whatever they like finds less (reward classifiers are exploited; Fu et al. 2018, arXiv 1805.11686). Batches
hold as many frames of success as others, pictures are moved and lit differently at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from policies.datasets.labels import UNKNOWN, Labelled
from policies.learning import cosine
from policies.learning.encoders import WHITE, Encoders
from policies.learning.networks import Ensemble, Normalizer, descend, ensemble_layers
from policies.models.action_selection import CriticEnsemble
from policies.models.networks import Array
from policies.models.success import distances
from policies.models.vision import EncoderConfig, ObservationEncoder
from sim import spec
from sim.spec import Group

PIECE = 256  # frames judged at once


@dataclass
class Recognition:
    """Settings of the learning."""

    members: int = 5  # of the ensemble
    pessimism: float = 1.0  # deviations below their mean that are believed
    hidden: int = 64  # units in each of two layers
    updates: int = 600
    batch_size: int = 128  # frames, half of them of success
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    shift: int = 3  # pixels by which a picture is moved at most, each way
    light: float = 0.15  # how much brighter, darker or differently coloured a picture is made, as a share

    def __post_init__(self) -> None:
        for name, least in (("members", 2), ("hidden", 1), ("updates", 1), ("batch_size", 2), ("shift", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.pessimism < 0.0 or not 0.0 <= self.light < 1.0:
            raise ValueError(f"needs pessimism >= 0 and 0 <= light < 1, got {self.pessimism} and {self.light}")


class Frames:
    """Frames of some episodes: what is measured (n, m), distances (n, d), pictures by name, labels (n,)."""

    def __init__(self, episodes: Sequence[Labelled], inputs: Group) -> None:
        numbers, pairs = spec.numbers(inputs), spec.place_pairs(inputs)
        signals = {s.name: np.concatenate([e.signals[s.name] for e in episodes]) for s in inputs}
        count = sum(len(e.label) for e in episodes)
        self.measured = torch.from_numpy(spec.pack(numbers, signals)) if numbers else torch.zeros(count, 0)
        apart: Array = np.concatenate([np.zeros((count, 0), np.float32), *distances(signals, pairs)], axis=1)
        self.apart = torch.from_numpy(apart)
        self.pictures = {s.name: torch.from_numpy(signals[s.name]) for s in spec.pictures(inputs)}
        self.label = torch.from_numpy(np.concatenate([e.label for e in episodes]))


class Recognizer:
    """One classifier in training."""

    def __init__(self, inputs: Group, config: Recognition, seed: int) -> None:
        self.inputs, self.config = inputs, config
        self.generator = torch.Generator().manual_seed(seed)
        self.eyes = Encoders(spec.pictures(inputs), EncoderConfig(shift=config.shift), self.generator)
        self.size = spec.size(spec.numbers(inputs)) + self.eyes.size + len(spec.place_pairs(inputs))
        sizes = [self.size, config.hidden, config.hidden]
        self.ensemble = Ensemble(config.members, sizes, self.generator, layer_norm=True)
        self.normalizer = Normalizer(self.size)

    def fit(self, frames: Frames) -> None:
        """Learn from the labelled ones; ValueError unless there are both kinds."""
        config = self.config
        known = frames.label != UNKNOWN
        numbers = torch.cat([frames.measured, frames.apart], 1)[known].double().numpy()
        m = frames.measured.shape[1]
        state: dict[str, Any] = {"count": len(numbers)}
        for name, of, pad in (("mean", numbers.mean(0), 0.0), ("variance", numbers.var(0), 1.0)):
            state[name] = np.insert(of, [m] * self.eyes.size, pad)  # points stay as they are
        self.normalizer.load_state_dict(state)
        sides = [torch.nonzero(frames.label == label)[:, 0] for label in (0, 1)]
        if not all(map(len, sides)):
            raise ValueError("without one held-out part labels are of one kind only: label frames of more episodes")
        weights = [*self.ensemble.parameters(), *self.eyes.parameters()]
        optimizer = torch.optim.AdamW(weights, config.learning_rate, weight_decay=config.weight_decay, fused=True)
        for update in range(config.updates):
            optimizer.param_groups[0]["lr"] = cosine(update / config.updates, config.learning_rate, 0.0)
            half = config.batch_size // 2
            index = torch.cat([s[torch.randint(len(s), (half,), generator=self.generator)] for s in sides])
            logits = self.ensemble(self._seen(frames, index, moved=True))  # (members, batch)
            wanted = frames.label[index].float().expand_as(logits)
            loss = config.members * functional.binary_cross_entropy_with_logits(logits, wanted)
            descend(optimizer, loss)

    @torch.no_grad()
    def believed(self, frames: Frames) -> Array:
        """What it makes of every frame (n,): the logit's mean minus `pessimism` deviations."""
        pieces = torch.split(torch.arange(len(frames.label)), PIECE)
        logits = torch.cat([self.ensemble(self._seen(frames, index, moved=False)) for index in pieces], 1)
        believed: Array = (logits.mean(0) - self.config.pessimism * logits.std(0)).numpy()
        return believed

    def _seen(self, frames: Frames, index: Tensor, moved: bool) -> Tensor:
        """What the perceptrons take (n, size)."""
        parts = [frames.measured[index]]
        if frames.pictures:
            pictures: Mapping[str, Tensor] = {name: some[index] for name, some in frames.pictures.items()}
            if moved:
                pictures = {name: self._lit(some) for name, some in self.eyes.moved(pictures, self.generator).items()}
            parts.append(self.eyes(pictures))
        return self.normalizer(torch.cat([*parts, frames.apart[index]], -1))

    def _lit(self, pictures: Tensor) -> Tensor:
        """Each brighter or darker, and its colours stronger or weaker, at random."""
        n, light = len(pictures), self.config.light
        gain, bias = (2.0 * torch.rand(2, n, 1, 1, 3, generator=self.generator) - 1.0).unbind()
        return ((1.0 + light * gain) * pictures + 0.5 * WHITE * light * bias[..., :1]).clamp(0.0, WHITE)

    def exported(self) -> tuple[ObservationEncoder, CriticEnsemble]:
        """Copies as numpy data that take signals as they are."""
        judges = CriticEnsemble(*ensemble_layers(self.ensemble, self.normalizer), self.config.pessimism)
        return ObservationEncoder(self.inputs, self.eyes.exported()), judges
