"""An actor that remembers where things are, in torch: exported, it is a `policies.models.tracking.TrackingGru`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from policies.algorithms.ppo.recurrent_actor import gated
from policies.learning.encoders import Encoders
from policies.learning.fused.recurrent import LASTING
from policies.learning.networks import Normalizer, linear_layers, mlp
from policies.models.tracking import TrackingGru
from sim.tasks.tracking import EgoMotion

DOUBT = -2.0  # the first bias of the gate through which vectors are corrected


class TrackingActor(nn.Module):
    """See `TrackingGru`. Its state is the gated unit's, then the vectors. Numbers end with how the robot moves (3,)."""

    def __init__(
        self,
        encoders: Encoders,
        features: int,
        hidden: list[int],
        actions: int,
        generator: torch.Generator,
        ego: EgoMotion,
    ) -> None:
        super().__init__()
        self.encoders, self.units, self.ego, self.size = encoders, hidden[1], ego, hidden[1] + ego.size

        def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Sequential:
            return mlp([inputs, outputs], generator, last_gain=gain)

        gain = math.sqrt(2.0)
        self.encoder, self.known = linear(features + encoders.size, hidden[0], gain), linear(ego.size, hidden[0], gain)
        self.inward, self.across = linear(hidden[0], 3 * self.units), linear(self.units, 3 * self.units)
        self.correction = linear(hidden[0] + self.units, 2 * ego.size)
        self.output = mlp([self.units + ego.size, hidden[0], actions], generator, "relu", 0.01)
        self.register_buffer("moved", torch.from_numpy(ego.moved.T.copy()), persistent=False)
        self.register_buffer("turned", torch.from_numpy(ego.turned.T.copy()), persistent=False)
        with torch.no_grad():
            self.inward[0].bias[self.units : 2 * self.units] = torch.linspace(*LASTING, self.units)  # type: ignore[operator]
            self.correction[0].bias[ego.size :] = DOUBT  # type: ignore[operator]

    def initial(self, n: int) -> Tensor:
        """The state before the first step (n, size)."""
        return torch.zeros((n, self.size), device=self.moved.device)  # type: ignore[arg-type]

    def told(self, numbers: Tensor, pictures: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What does not depend on the state: of the first layer (..., e), and how the robot moves (..., 3)."""
        lead, flat = numbers.shape[:-1], numbers[..., :-3].flatten(0, -2)
        if pictures:
            shown = {name: some.flatten(0, -4) for name, some in pictures.items()}
            flat = torch.cat([flat, self.encoders(shown)], -1)
        return self.encoder(flat).reshape(*lead, -1), numbers[..., -3:]

    def remember(self, told: Tensor, moving: Tensor, state: Tensor) -> Tensor:
        """The next state (n, size)."""
        before, tracked = state[:, : self.units], state[:, self.units :]
        half = 0.5 * float(self.ego.dt) * moving[:, 2:]
        square = half * half
        moved = torch.cat([tracked, moving[:, :2]], -1) @ self.moved  # type: ignore[operator]
        carried = ((1.0 - square) * moved + 2.0 * half * (moved @ self.turned)) / (1.0 + square)
        x = (told + self.known(carried)).relu()
        hidden = gated(self.inward(x), self.across(before), before)
        measured, gate = self.correction(torch.cat([x, hidden], -1)).chunk(2, -1)
        return torch.cat([hidden, torch.lerp(carried, measured, torch.sigmoid(gate))], -1)

    def act(self, state: Tensor) -> Tensor:
        """Actions (..., k) in [-1, 1]."""
        chosen: Tensor = torch.tanh(self.output(state))
        return chosen

    def tracked(self, state: Tensor) -> Tensor:
        """The vectors (..., m) of states (..., size)."""
        return state[..., self.units :]

    def forward(self, numbers: Tensor, pictures: Mapping[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (n, k) and the next state (n, size)."""
        after = self.remember(*self.told(numbers, pictures), state)
        return self.act(after), after

    def through(self, numbers: Tensor, pictures: Mapping[str, Tensor], state: Tensor, goes_on: Tensor) -> Tensor:
        """The states (T, n, size) after T steps (T, n, .), from one (n, size) that is forgotten where not `goes_on`."""
        states = []
        for told, moving, kept in zip(*self.told(numbers, pictures), goes_on[..., None], strict=True):
            state = self.remember(told, moving, state)
            states.append(state)
            state = state * kept
        return torch.stack(states)

    def exported(self, normalizer: Normalizer, motion: list[int]) -> TrackingGru:
        """As numpy data, with the normaliser of its numbers folded in; `motion`: the columns that say how it moves."""
        (weight, bias), (known, more) = (
            *linear_layers(self.encoder, normalizer.wider(self.encoders.size)),
            *linear_layers(self.known),
        )
        (inward,), (across,), (correction,) = map(linear_layers, (self.inward, self.across, self.correction))
        hidden, output = linear_layers(self.output)
        encoder = torch.cat([torch.from_numpy(weight), torch.from_numpy(known)], 1).numpy(), bias + more
        ahead, left, turning = motion
        return TrackingGru(self.ego, (ahead, left, turning), encoder, inward, across, correction, hidden, output)
