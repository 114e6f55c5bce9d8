"""An actor that remembers where things are, in torch: exported, a `policies.models.networks.tracking.TrackingGru`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from policies.algorithms.ppo.recurrent_actor import beside, gated, rolled
from policies.learning.encoders import Encoders
from policies.learning.fused.recurrent import LASTING
from policies.learning.networks import Normalizer, linear_layers, mlp
from policies.models.networks import Layer
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.tracking import TrackingGru
from sim.tasks.tracking import EgoMotion

DOUBT = -2.0  # the first bias of the gate through which vectors are corrected


class TrackingActor(nn.Module):
    """See `TrackingGru`. Its state is the gated unit's, then the vectors.

    Numbers come twice: as the normaliser has them, then as they are.
    """

    moved: Tensor  # of `EgoMotion`, turned for row vectors
    turned: Tensor
    turns: Tensor

    def __init__(
        self,
        encoders: Encoders,
        features: int,
        hidden: list[int],
        head: Sequence[int],
        actions: int,
        generator: torch.Generator,
        ego: EgoMotion,
        motion: list[int],
    ) -> None:
        """`motion`: the columns of the numbers that say how the robot moves (3,)."""
        super().__init__()
        self.encoders, self.units, self.ego, self.motion = encoders, hidden[1], ego, motion
        self.features, self.size = features, hidden[1] + ego.size

        def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Sequential:
            return mlp([inputs, outputs], generator, last_gain=gain)

        gain = math.sqrt(2.0)
        self.encoder, self.known = linear(features + encoders.size, hidden[0], gain), linear(ego.size, hidden[0], gain)
        self.inward, self.across = linear(hidden[0], 3 * self.units), linear(self.units, 3 * self.units)
        self.correction = linear(hidden[0] + self.units, 2 * ego.size)
        self.output = mlp([features + ego.size + self.units, *head, actions], generator, "tanh", 0.01)
        for name in ("moved", "turned", "turns"):
            constant = torch.from_numpy(np.ascontiguousarray(getattr(ego, name).T))
            self.register_buffer(name, constant, persistent=False)
        with torch.no_grad():
            self.inward[0].bias[self.units : 2 * self.units] = torch.linspace(*LASTING, self.units)  # type: ignore[operator]
            self.correction[0].bias[ego.size :] = DOUBT  # type: ignore[operator]

    def initial(self, n: int) -> Tensor:
        """The state before the first step (n, size)."""
        return torch.zeros((n, self.size), device=self.moved.device)

    @torch.no_grad()
    def begin_with(self, layers: Sequence[Layer], columns: Sequence[int], actions: Sequence[int]) -> None:
        """Take over a perceptron with tanh of numbers and vectors: its head does the same, and hears no memory.

        `columns`: where its inputs are among the numbers and vectors; `actions`: what its outputs are. ValueError
        unless the head has layers as wide as its.
        """
        own = [layer for layer in self.output if isinstance(layer, nn.Linear)]
        widths, wide = [len(bias) for _, bias in layers[:-1]], [layer.out_features for layer in own[:-1]]
        if widths != wide:
            raise ValueError(
                f"the teacher has layers of {widths} units, the student's head of {wide}: set head={widths}"
            )
        own[0].weight.zero_()
        for layer, (weight, bias) in zip(own, layers, strict=True):
            rows = torch.tensor(actions if layer is own[-1] else range(layer.out_features))
            into = torch.tensor(columns if layer is own[0] else range(layer.in_features))
            layer.weight[rows[:, None], into] = torch.from_numpy(np.array(weight)).to(layer.weight)
            layer.bias[rows] = torch.from_numpy(np.array(bias)).to(layer.bias)

    def told(self, numbers: Tensor, pictures: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What does not depend on the state: of the first layer (..., e), and how the robot moves (..., 3)."""
        seen = self.encoder(beside(self.encoders, numbers[..., : self.features], pictures))
        return seen.reshape(*numbers.shape[:-1], -1), numbers[..., [self.features + k for k in self.motion]]

    def remember(self, told: Tensor, moving: Tensor, state: Tensor) -> Tensor:
        """The next state (n, size)."""
        before, tracked = state[:, : self.units], state[:, self.units :]
        sine, less = self.ego.turning(0.5 * float(self.ego.dt) * moving[:, 2:])
        moved = torch.cat([tracked, moving[:, :2]], -1) @ self.moved
        carried = moved - less * self.turns * moved + sine * (moved @ self.turned)
        x = (told + self.known(carried)).relu()
        hidden = gated(self.inward(x), self.across(before), before)
        measured, gate = self.correction(torch.cat([x, hidden], -1)).chunk(2, -1)
        return torch.cat([hidden, torch.lerp(carried, measured, torch.sigmoid(gate))], -1)

    def act(self, numbers: Tensor, state: Tensor) -> Tensor:
        """Actions (..., k) in [-1, 1]."""
        known = numbers[..., self.features :], state[..., self.units :], state[..., : self.units]
        chosen: Tensor = torch.tanh(self.output(torch.cat(known, -1)))
        return chosen

    def tracked(self, state: Tensor) -> Tensor:
        """The vectors (..., m) of states (..., size)."""
        return state[..., self.units :]

    def forward(self, numbers: Tensor, pictures: Mapping[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (n, k) and the next state (n, size)."""
        after = self.remember(*self.told(numbers, pictures), state)
        return self.act(numbers, after), after

    def through(self, numbers: Tensor, pictures: Mapping[str, Tensor], state: Tensor, goes_on: Tensor) -> Tensor:
        """The states (T, n, size) after T steps (T, n, .), from one (n, size) that is forgotten where not `goes_on`."""
        return rolled(self.remember, self.told(numbers, pictures), state, goes_on)

    def exported(self, normalizer: Normalizer) -> TrackingGru:
        """As numpy data, with the normaliser of its numbers folded in."""
        ((weight, bias),) = linear_layers(self.encoder, normalizer.wider(self.encoders.size))
        ((known, more),) = linear_layers(self.known)
        (inward,), (across,), (correction,) = map(linear_layers, (self.inward, self.across, self.correction))
        ahead, left, turning = self.motion
        encoder = np.concatenate([weight, known], axis=1), bias + more
        rest = inward, across, correction, Mlp(linear_layers(self.output))
        return TrackingGru(self.ego, (ahead, left, turning), self.features, encoder, *rest)
