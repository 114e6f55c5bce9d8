"""What learners share: multilayer perceptrons, ensembles of them, action distributions, running normalisers.

Weights are drawn from an explicit generator, never from torch's global one, so that a seed decides everything. Networks
live on the CPU when they are made; move them with `.to(device)`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from sim.randomize import Array

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


def activation(name: str) -> nn.Module:
    """The hidden activation of that name; ValueError lists the choices, which are those of an exported controller."""
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; choices: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def orthogonal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """A random (rows, columns) matrix with orthonormal rows or columns, whichever are fewer."""
    drawn = torch.randn((max(rows, columns), min(rows, columns)), generator=generator)
    q, r = torch.linalg.qr(drawn)
    q = q * r.diagonal().sign()
    return torch.as_tensor(q if rows >= columns else q.T).contiguous()


def mlp(
    sizes: Sequence[int], generator: torch.Generator, hidden: str = "tanh", last_gain: float = 1.0
) -> nn.Sequential:
    """Linear layers of `sizes` (inputs, hidden ..., outputs) with `hidden` activations between, none after the last.

    Weights are orthogonal, times sqrt(2) or, in the last layer, `last_gain`; biases are zero.
    """
    layers: list[nn.Module] = []
    count = len(sizes) - 1
    for index in range(count):
        last = index == count - 1
        linear = nn.Linear(sizes[index], sizes[index + 1], device="meta").to_empty(device="cpu")  # draws nothing
        gain = last_gain if last else math.sqrt(2.0)
        with torch.no_grad():
            linear.weight.copy_(gain * orthogonal(sizes[index + 1], sizes[index], generator))
            linear.bias.zero_()
        layers += [linear] if last else [linear, activation(hidden)]
    return nn.Sequential(*layers)


def linear_layers(network: nn.Sequential, normalizer: Normalizer | None = None) -> list[tuple[Array, Array]]:
    """Copies of the (W (out, in), b (out,)) of a network, with its input's normaliser folded into the first layer."""
    found = [layer for layer in network if isinstance(layer, nn.Linear)]
    layers = [(layer.weight.detach().cpu().numpy().copy(), layer.bias.detach().cpu().numpy().copy()) for layer in found]
    if normalizer is not None:
        layers[0] = normalizer.fold(*layers[0])
    return layers


class Ensemble(nn.Module):
    """`count` perceptrons with one output each, evaluated in one batched matmul per layer: (b, inputs) -> (count, b).

    ReLU between the layers; with `layer_norm` each hidden layer is normalised (without a learned scale) before it,
    which keeps critics from diverging at many updates per step (RLPD, Ball et al. 2023). With other `outputs` than one
    it is asked by `each`.
    """

    def __init__(
        self, count: int, sizes: Sequence[int], generator: torch.Generator, layer_norm: bool = False, outputs: int = 1
    ) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for layer, (inputs, wide) in enumerate(zip([*sizes], [*sizes[1:], outputs], strict=True)):
            gain = 1.0 if layer == len(sizes) - 1 else math.sqrt(2.0)
            drawn = [gain * orthogonal(wide, inputs, generator).T for _ in range(count)]
            self.weights.append(nn.Parameter(torch.stack(drawn).contiguous()))
            self.biases.append(nn.Parameter(torch.zeros(count, 1, wide)))

    def forward(self, x: Tensor, some: Tensor | None = None) -> Tensor:
        """Of all perceptrons, or of `some`, by their index."""
        return self.each(x.expand(len(self.weights[0]) if some is None else len(some), *x.shape), some).squeeze(-1)

    def each(self, y: Tensor, some: Tensor | None = None) -> Tensor:
        """(count, b, outputs) of inputs of their own (count, b, inputs)."""
        last = len(self.weights) - 1
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            y = torch.baddbmm(bias, y, weight) if some is None else torch.baddbmm(bias[some], y, weight[some])
            if index < last:
                y = functional.relu(functional.layer_norm(y, y.shape[-1:]) if self.layer_norm else y)
        return y


def ensemble_layers(ensemble: Ensemble, normalizer: Normalizer) -> tuple[list[Array], list[Array]]:
    """Copies of its weights (count, in, out) and biases (count, 1, out), with the normaliser of its first inputs folded
    into the first layer.
    """
    weights = [w.detach().numpy().copy() for w in ensemble.weights]
    biases = [b.detach().numpy().copy() for b in ensemble.biases]
    seen = len(normalizer.shift)
    for one, (weight, bias) in enumerate(zip(weights[0], biases[0], strict=True)):
        folded, biases[0][one] = normalizer.fold(weight[:seen].T, bias)
        weights[0][one, :seen] = folded.T
    return weights, biases


def moments(x: Tensor) -> Tensor:
    """How many samples (..., k) there are, their mean and variance (biased): (1 + 2 k,) float64."""
    x = x.detach().flatten(0, -2).double()
    count = torch.tensor([len(x)], dtype=torch.float64, device=x.device)
    if not x.numel():
        return torch.cat([count, x.new_zeros(2 * x.shape[-1])])
    return torch.cat([count, x.mean(0), x.var(0, unbiased=False)])


def merged(told: Tensor) -> Tensor:
    """The moments (1 + 2 k,) of all samples whose moments (parts, 1 + 2 k) these are, one part after the other."""
    first: Tensor
    first, *rest = told
    for other in rest:
        total = first[0] + other[0]
        share = other[0] / total.clamp(min=1.0)
        (mean, variance), (mean_2, variance_2) = first[1:].chunk(2), other[1:].chunk(2)
        delta = mean_2 - mean
        variance = variance + share * (variance_2 - variance + (1.0 - share) * delta**2)
        first = torch.cat([total[None], mean + share * delta, variance])
    return first


class Normalizer:
    """Running mean and variance of (..., k) samples. Linear (no clipping), so that it folds into a network's layer.

    With each update, what is known already counts `kept` as much as before. Statistics are float64 and all of
    `state_dict`; what is applied is their float32 rounding.
    """

    def __init__(self, size: int, device: str = "cpu", smallest_std: float | Tensor = 1e-3, kept: float = 1.0) -> None:
        self.kept = kept
        self.smallest = torch.as_tensor(smallest_std, dtype=torch.float32, device=device)
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.variance = torch.ones(size, dtype=torch.float64, device=device)
        self.count = 0
        self._refresh()

    def _refresh(self) -> None:
        self.shift = self.mean.float()
        self.std = torch.maximum(self.variance.sqrt().float(), self.smallest)

    def update(self, x: Tensor) -> None:
        """Take samples (..., k) into account."""
        self.take(moments(x))

    def take(self, told: Tensor) -> None:
        """The same of their `moments` (the pairwise formula of Chan et al. 1979)."""
        count = int(told[0])
        if not len(self.mean) or not count:
            return
        mean, variance = told[1:].chunk(2)
        total = round(self.kept * self.count) + count
        share = count / total
        delta = mean - self.mean
        self.variance = self.variance + share * (variance - self.variance + (1.0 - share) * delta**2)
        self.mean = self.mean + share * delta
        self.count = total
        self._refresh()

    def __call__(self, x: Tensor) -> Tensor:
        """(x - mean) / std."""
        return (x - self.shift) / self.std

    def invert(self, x: Tensor) -> Tensor:
        """mean + std * x."""
        return self.shift + self.std * x

    def fold(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """The layer that takes raw inputs and returns what (weight, bias) returns for normalised ones."""
        shift, std = self.shift.cpu().numpy().astype("float64"), self.std.cpu().numpy().astype("float64")
        scaled = weight / std
        return scaled.astype("float32"), (bias - scaled @ shift).astype("float32")

    def wider(self, more: int) -> Normalizer:
        """The same, with `more` inputs behind, which it leaves as they are."""
        pad = torch.nn.functional.pad
        smallest = pad(self.smallest.expand(len(self.mean)), (0, more), value=1e-3)
        other = Normalizer(len(self.mean) + more, str(self.mean.device), smallest)
        mean, variance = pad(self.mean, (0, more)), pad(self.variance, (0, more), value=1.0)
        other.load_state_dict({"mean": mean, "variance": variance, "count": self.count})
        return other

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.clone(), "variance": self.variance.clone(), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        device = self.mean.device
        self.mean = torch.as_tensor(state["mean"], device=device).clone()
        self.variance = torch.as_tensor(state["variance"], device=device).clone()
        self.count = int(state["count"])
        self._refresh()


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Let what it keeps lie in memory as its parameters do: torch's fused steps are silently wrong otherwise."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter.detach()).copy_(value)


class HasParameters(Protocol):
    """A network, as its learner knows it."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All of them."""


def learned(network: HasParameters) -> list[Tensor]:
    """Its parameters that learn."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


class Stateful:
    """Saves and restores what it names: attributes with a `state_dict` of their own, and plain values and arrays."""

    state_parts: tuple[str, ...] = ()
    state_values: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """Copies of all of it, by name."""
        parts = {name: getattr(self, name).state_dict() for name in self.state_parts}
        return copy.deepcopy(parts | {name: getattr(self, name) for name in self.state_values})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name in self.state_parts:
            part = getattr(self, name)
            part.load_state_dict(copy.deepcopy(state[name]))  # torch's optimizers keep what they are given
            if isinstance(part, torch.optim.Optimizer):
                _lay_out(part)
        for name in self.state_values:
            setattr(self, name, copy.deepcopy(state[name]))


def gaussian_log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density (n,) of actions (n, k) under independent Gaussians."""
    z = (action - mean) * torch.exp(-log_std)
    return (-0.5 * z * z - log_std - HALF_LOG_TAU).sum(-1)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(mean + std * noise) and its log density (n,), differentiable in both; `noise` is standard normal.

    log(1 - tanh(u)^2) is evaluated as 2 (log 2 - u - softplus(-2 u)), which stays finite where tanh saturates.
    """
    u = mean + torch.exp(log_std) * noise
    log_prob = -0.5 * noise * noise - log_std - HALF_LOG_TAU
    slope = 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
    return torch.tanh(u), (log_prob - slope).sum(-1)


def lacking(device: str) -> str:
    """Why torch cannot use a device: that it was built without CUDA, or finds no GPU; "" where it can."""
    try:
        torch.zeros((), device=device)
    except (AssertionError, RuntimeError) as error:
        return str(error).partition("\n")[0]
    return ""
