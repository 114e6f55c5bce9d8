"""An actor that remembers, of numbers and pictures, in torch: exported, it is a `policies.models.networks.gru.Gru`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from policies.learning.encoders import Encoders
from policies.learning.fused.recurrent import LASTING
from policies.learning.networks import Normalizer, linear_layers, mlp
from policies.models.networks.gru import Gru


def gated(told: Tensor, kept: Tensor, state: Tensor) -> Tensor:
    """The next state (n, size) of a gated unit, from what it makes of its input and of its state (n, 3 size)."""
    reset_in, update_in, new_in = told.chunk(3, -1)
    reset_kept, update_kept, new_kept = kept.chunk(3, -1)
    new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_kept) * new_kept)
    return torch.lerp(new, state, torch.sigmoid(update_in + update_kept))


def beside(encoders: Encoders, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Tensor:
    """Numbers (..., f) and what is found in pictures (..., height, width, 3), as (n, .)."""
    flat = numbers.flatten(0, -2)
    if not pictures:
        return flat
    return torch.cat([flat, encoders({name: some.flatten(0, -4) for name, some in pictures.items()})], -1)


def rolled(remember: Callable[..., Tensor], told: Sequence[Tensor], state: Tensor, goes_on: Tensor) -> Tensor:
    """The states (T, n, size) that `remember` makes of what is told (T, n, .) step by step, from one (n, size).

    It is forgotten where not `goes_on` (T, n), 1 or 0.
    """
    states = []
    for *now, kept in zip(*told, goes_on[..., None], strict=True):
        state = remember(*now, state)
        states.append(state)
        state = state * kept
    return torch.stack(states)


class RecurrentActor(nn.Module):
    """Linear and ReLU, a gated recurrent unit (gates as torch.nn.GRUCell's), linear and tanh."""

    def __init__(
        self, encoders: Encoders, features: int, hidden: list[int], actions: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoders, self.size = encoders, hidden[1]

        def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Sequential:
            return mlp([inputs, outputs], generator, last_gain=gain)

        self.encoder = linear(features + encoders.size, hidden[0], 2.0**0.5)
        self.inward, self.across = linear(hidden[0], 3 * self.size), linear(self.size, 3 * self.size)
        self.output = linear(self.size, actions, 0.01)
        with torch.no_grad():
            self.inward[0].bias[self.size : 2 * self.size] = torch.linspace(*LASTING, self.size)  # type: ignore[operator]

    def initial(self, n: int) -> Tensor:
        """The state before the first step (n, size)."""
        return torch.zeros((n, self.size), device=next(self.parameters()).device)

    def gates(self, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Tensor:
        """What the unit is told (..., 3 size) of numbers (..., f) and pictures (..., height, width, 3)."""
        told: Tensor = self.inward(self.encoder(beside(self.encoders, numbers, pictures)).relu())
        return told.reshape(*numbers.shape[:-1], -1)

    def remember(self, told: Tensor, state: Tensor) -> Tensor:
        """The next state (n, size)."""
        return gated(told, self.across(state), state)

    def act(self, numbers: Tensor, state: Tensor) -> Tensor:
        """Actions (..., k) in [-1, 1]; the numbers are in the state already."""
        chosen: Tensor = torch.tanh(self.output(state))
        return chosen

    def forward(self, numbers: Tensor, pictures: Mapping[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (n, k) and the next state (n, size)."""
        after = self.remember(self.gates(numbers, pictures), state)
        return self.act(numbers, after), after

    def through(self, numbers: Tensor, pictures: Mapping[str, Tensor], state: Tensor, goes_on: Tensor) -> Tensor:
        """The states (T, n, size) after T steps (T, n, .), from one (n, size) that is forgotten where not `goes_on`.

        `goes_on` is (T, n), 1 or 0.
        """
        return rolled(self.remember, (self.gates(numbers, pictures),), state, goes_on)

    def exported(self, normalizer: Normalizer) -> Gru:
        """As numpy data, with the normaliser of its numbers folded in."""
        (encoder,) = linear_layers(self.encoder, normalizer.wider(self.encoders.size))
        (inward,), (across,), (output,) = map(linear_layers, (self.inward, self.across, self.output))
        return Gru(encoder, inward[0], across[0], inward[1], across[1], output)
