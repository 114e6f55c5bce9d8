"""An auxiliary loss of cloning: to tell, from what is seen and told, what only a simulator knows.

Where the thing lies that the words mean is asked for directly, beside what an expert does about it: then eyes and words
learn what to look for from every step, also where the expert's commands say little. No policy file has it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.learning.vla.looking import SMALLEST
from sim import spec
from sim.spec import Group


class Auxiliary(nn.Module):
    """A linear map from what decoding begins with (n, width) to the privileged signals, each as important."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, width: int, signals: Group) -> None:
        super().__init__()
        self.signals, size = signals, spec.size(signals)
        self.weight, self.bias = nn.Parameter(torch.zeros(size, width)), nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))

    def normalise(self, truth: Tensor) -> None:
        """From now on what is so (n, k) is like this."""
        self.mean.copy_(truth.mean(0))
        self.deviation.copy_(truth.std(0, unbiased=False).clamp_min(SMALLEST))

    def loss(self, start: Tensor, truth: Tensor) -> Tensor:
        """Squared error in variances of what is so (n, k): the mean over the numbers of a signal, then over signals."""
        told = (truth - self.mean) / self.deviation
        error = (start @ self.weight.T + self.bias - told).square().mean(0)
        return torch.stack([some.mean() for some in error.split([s.size for s in self.signals])]).mean()
