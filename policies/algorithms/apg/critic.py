"""The critic of analytic policy gradients: the discounted cost that follows a window; see `torch_path`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from policies.algorithms.apg.autograd import Adam
from policies.learning.networks import Normalizer, mlp

CRITIC_HIDDEN = (64, 64)
CRITIC_RATE = 2e-3  # learning rate, falling as the policy's does
CRITIC_STEPS = 16  # per window, each on all of it
TRACE = 0.95  # lambda of the critic's targets
FOLLOW = 0.1  # how far the target critic moves towards the critic, per window


@dataclass
class View:
    """What a critic sees of a window: features (T + 1, n, f), and whether the vehicle is or was lost (T + 1, n)."""

    features: Tensor
    gone: Tensor


class Critic:
    """The discounted cost that follows a state: learned with TD(lambda), against a copy that follows slowly.

    The network's output is in units of a cost per step: the value is that over (1 - gamma).
    """

    def __init__(self, inputs: int, gamma: float, seed: int, device: str) -> None:
        if not 0.0 < gamma < 1.0:
            raise ValueError(f"algorithm.gamma must be between 0 and 1 for a critic, got {gamma}")
        generator = torch.Generator()
        generator.manual_seed(seed)
        self.gamma = gamma
        self.net = mlp([inputs, *CRITIC_HIDDEN, 1], generator, last_gain=0.01).to(device)
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.normalizer = Normalizer(inputs, device)
        self.adam = Adam(self.net.parameters())

    def value(self, x: Tensor) -> Tensor:
        """The value (...,) of critic features (..., f); the gradient reaches x."""
        answer: Tensor = self.target(self.normalizer(x)).squeeze(-1)
        return answer / (1.0 - self.gamma)

    @torch.no_grad()
    def targets(self, view: View, cost: Tensor) -> Tensor:
        """TD(lambda) targets (T, n), in costs per step, from costs (T, n). The lost pay their last one for ever."""
        value = self.target(self.normalizer(view.features)).squeeze(-1)
        value[1:] = torch.where(view.gone[1:], cost, value[1:])
        kept, following = [], value[-1]
        for t in range(len(cost) - 1, -1, -1):
            ahead = (1.0 - TRACE) * value[t + 1] + TRACE * torch.where(view.gone[t + 1], value[t + 1], following)
            following = (1.0 - self.gamma) * cost[t] + self.gamma * ahead
            kept.append(following)
        return torch.stack(kept[::-1])

    def learn(self, view: View, cost: Tensor, rate: float) -> float:
        """Fit the values of a window's states before they were lost; returns the mean error, in costs per step."""
        here = ~view.gone[:-1]
        target = self.targets(view, cost)[here]
        inputs = self.normalizer(view.features[:-1][here])
        for _ in range(CRITIC_STEPS):
            loss = nn.functional.smooth_l1_loss(self.net(inputs).squeeze(-1), target)
            loss.backward()
            self.adam.step(rate, 0.9, 0.99, 1.0)
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, FOLLOW)
        return float(loss.detach())

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("normalizer", "adam")}
        nets = {name: dict(getattr(self, name).state_dict()) for name in ("net", "target")}
        return copy.deepcopy({**parts, **nets})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in ("normalizer", "adam", "net", "target"):
            getattr(self, name).load_state_dict(state[name])
