"""The way that named signals take in simulation, from where they arise to where they are used: imperfect, in torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sim.randomize import Array, delay_weights
from sim.spec import Group

TAPS = 4  # command latency reaches at most 3 control steps back, here as in the other consumers of a task


class Channel:
    """What becomes of a group's vector (n, P) on its way: latency, then offset and noise, then dropout."""

    def __init__(self, group: Group, num: int, rate_hz: float, device: str) -> None:
        sizes = np.array([s.size for s in group])
        self.owner = torch.from_numpy(np.repeat(np.arange(len(group)), sizes)).to(device)  # signal of each element
        self.low = np.array([s.delay_range()[0] * rate_hz for s in group])  # control steps
        self.high = np.array([s.delay_range()[1] * rate_hz for s in group])
        self.taps = max(TAPS, math.ceil(self.high.max() - 1e-9) + 1) if self.high.max() > 0.0 else 0
        self.bias_std = np.repeat([s.bias_std() for s in group], sizes)
        self.noise_std = torch.tensor(np.repeat([s.noise_std() for s in group], sizes), dtype=torch.float32).to(device)
        self.dropout = torch.tensor([s.dropout_probability() for s in group]).to(device)
        self.noisy, self.lossy = bool(self.noise_std.any()), bool(self.dropout.any())
        shape = (num, int(sizes.sum()))
        self.weights = torch.zeros((num, self.taps, shape[1]), device=device)
        self.buffer = torch.zeros_like(self.weights)  # newest first
        self.bias = torch.zeros(shape, device=device)
        self.last = torch.zeros(shape if self.lossy else (0, 0), device=device)

    def draw(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        """What is fixed for an episode, for n episodes: delay (n, signals) in control steps, its weights, offsets."""
        delay = rng.uniform(self.low, self.high, (n, len(self.low)))
        drawn = {"delay": delay.astype(np.float32)}
        if self.taps:
            per_signal = np.stack([delay_weights(d, self.taps) for d in delay.T], axis=-1)
            drawn["weights"] = per_signal[:, :, self.owner.cpu().numpy()]
        if self.bias_std.any():
            drawn["bias"] = rng.normal(0.0, self.bias_std, (n, len(self.bias_std))).astype(np.float32)
        return drawn

    def begin(self, rows: Tensor, drawn: Mapping[str, Tensor], values: Tensor, generator: torch.Generator) -> Tensor:
        """Start an episode in `rows` (count,): deliver the first message, as if values (count, P) had always held."""
        if self.taps:
            self.weights[rows] = drawn["weights"]
            self.buffer[rows] = values[:, None]
        if "bias" in drawn:
            self.bias[rows] = drawn["bias"]
            values = values + drawn["bias"]
        values = self._noise(values, generator)
        if self.lossy:
            self.last = self.last.index_copy(0, rows, values)  # not in place: what was delivered is in others' hands
        return values

    def send(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """What arrives this control step, (n, P)."""
        if self.taps:
            self.buffer = torch.cat((values[:, None], self.buffer[:, :-1]), 1)
            values = (self.weights * self.buffer).sum(1)
        if self.bias_std.any():
            values = values + self.bias
        values = self._noise(values, generator)
        if self.lossy:
            drawn = torch.rand((len(values), len(self.dropout)), generator=generator, device=values.device)
            values = torch.where((drawn < self.dropout)[:, self.owner], self.last, values)
            self.last = values
        return values

    def _noise(self, values: Tensor, generator: torch.Generator) -> Tensor:
        if not self.noisy:
            return values
        return values + self.noise_std * torch.randn(values.shape, generator=generator, device=values.device)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in ("weights", "buffer", "bias", "last")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in ("weights", "buffer", "bias", "last"):
            setattr(self, name, torch.as_tensor(state[name], device=self.bias.device).clone())
