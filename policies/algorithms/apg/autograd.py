"""What the torch path of apg is made of: the engine's step as an autograd function, the networks, the optimiser.

Each means the same as its counterpart in `policies.algorithms.apg.fused` and `policies.algorithms.apg.fused_network`.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policies.algorithms.apg import ApgConfig
from policies.algorithms.apg.fused_plan import HUGE, load_dynamics
from policies.learning.networks import linear_layers
from policies.models.export import TorchNetwork
from policies.models.networks import Network
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from sim.engines import ENGINES
from sim.engines.vector.simd import LANES
from sim.registry import load

Array = NDArray[Any]

OUTPUT_SCALE = 0.1  # of the last layer's first weights: the first policy hovers


class Physics:
    """The engine's equations for one batch of vehicles: parameters (blocks, rows, LANES), control period dt in seconds.

    `limit` bounds the norm of each vehicle's state adjoint: (blocks, 1, LANES), or one for all. `alive` (blocks, 1,
    LANES) is cleared where a state stops being finite: that vehicle stands still from there, and no gradient passes
    through it.
    """

    def __init__(self, engine: str, parameters: Array, dt: float, limit: Array | float = math.inf) -> None:
        load_dynamics(engine)  # says which engines have an adjoint
        module = importlib.import_module(ENGINES[engine].partition(":")[0])
        self.step, self.step_adjoint = module.step_blocks, module.step_adjoint_blocks
        self.sense, self.sense_adjoint = module.sense_blocks, module.sense_adjoint_blocks
        self.signal_rows: int = module.SIGNAL_ROWS
        self.parameters, self.dt, self.limit = parameters, parameters.dtype.type(dt), limit
        self.alive = np.ones((len(parameters), 1, LANES), bool)


def to_lanes(values: Array) -> Array:
    """(blocks * LANES, rows) -> (blocks, rows, LANES)."""
    return np.ascontiguousarray(values.reshape(-1, LANES, values.shape[1]).transpose(0, 2, 1))


def from_lanes(values: Array) -> Array:
    """(..., blocks, rows, LANES) -> (..., blocks * LANES, rows)."""
    swapped = np.ascontiguousarray(np.swapaxes(values, -1, -2))
    return swapped.reshape(*values.shape[:-3], -1, values.shape[-2])


def host(values: Tensor) -> Array:
    """A tensor as numpy: the same memory when it is on the CPU."""
    array: Array = values.detach().cpu().numpy()
    return array


def named(sizes: Mapping[str, int], vector: Tensor) -> dict[str, Tensor]:
    """A vector (..., sum of sizes) cut into name -> (..., size)."""
    return dict(zip(sizes, torch.split(vector, list(sizes.values()), -1), strict=True))


class Step(torch.autograd.Function):
    """(state, command, physics) -> (the state one control period later, its signals), with the engine's own adjoint.

    State (blocks, rows, LANES), command (n, k), signals (n, m). The state's adjoint is complete when it arrives here
    (costs, later features and later steps), so it is here that it is clipped.
    """

    @staticmethod
    def forward(ctx: Any, state: Tensor, command: Tensor, physics: Physics) -> tuple[Tensor, Tensor]:
        before, given = host(state), to_lanes(host(command))
        after = before.copy()
        physics.step(after, physics.parameters, given, physics.dt, 1)
        sane = (np.abs(after) < HUGE).all(axis=1, keepdims=True)
        if not sane.all():
            physics.alive &= sane
            after = np.where(sane, after, before)
        signals = np.empty((len(after), physics.signal_rows, LANES), after.dtype)
        physics.sense(after, signals)
        ctx.tape = before, given, after, physics
        return torch.from_numpy(after).to(state.device), torch.from_numpy(from_lanes(signals)).to(state.device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g_state: Tensor, g_signals: Tensor) -> tuple[Tensor, Tensor, None]:
        before, given, after, physics = ctx.tape
        gradient = np.array(host(g_state), order="C")
        physics.sense_adjoint(after, to_lanes(host(g_signals)), gradient)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.sqrt((gradient * gradient).sum(axis=1, keepdims=True))
            gradient *= np.where(norm > physics.limit, physics.limit / np.maximum(norm, 1e-30), 1.0)
        g_command = np.zeros_like(given)
        physics.step_adjoint(before, physics.parameters, given, gradient, g_command, physics.dt)
        if not physics.alive.all():
            gradient, g_command = np.where(physics.alive, gradient, 0.0), np.where(physics.alive, g_command, 0.0)
        device = g_state.device
        return torch.from_numpy(gradient).to(device), torch.from_numpy(from_lanes(g_command)).to(device), None


def _empty(kind: Callable[..., Any], inputs: int, outputs: int) -> Any:
    """A layer whose weights nobody has drawn, so that torch's global generator stays out of it."""
    return kind(inputs, outputs, device="meta").to_empty(device="cpu")


class MlpPolicy(nn.Module):
    """features (n, f) -> hidden (tanh) ... -> actions (n, k) (tanh)."""

    state_size = 0

    def __init__(self, sizes: Sequence[int], rng: np.random.Generator, bias: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_empty(nn.Linear, *pair) for pair in itertools.pairwise(sizes))
        _initialise(self.pairs(), rng, bias)

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """(W, b) of each layer, in the order of `fused_network.Layout`."""
        return [(layer.weight, layer.bias) for layer in self.layers]  # type: ignore[misc]

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x, state

    def network(self) -> Network:
        return Mlp(linear_layers(nn.Sequential(*self.layers)), "tanh")


class GruPolicy(nn.Module):
    """features (n, f) -> encoder (ReLU) -> GRU -> actions (n, k) (tanh)."""

    def __init__(
        self, features: int, encoder: int, hidden: int, actions: int, rng: np.random.Generator, bias: float
    ) -> None:
        super().__init__()
        self.state_size = hidden
        self.encoder = _empty(nn.Linear, features, encoder)
        self.cell = _empty(nn.GRUCell, encoder, hidden)
        self.output = _empty(nn.Linear, hidden, actions)
        _initialise(self.pairs(), rng, bias)

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """As in `MlpPolicy`."""
        cell = self.cell
        inner = [(cell.weight_ih, cell.bias_ih), (cell.weight_hh, cell.bias_hh)]
        outer = [(layer.weight, layer.bias) for layer in (self.encoder, self.output)]
        return [outer[0], *inner, outer[1]]

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(torch.relu(self.encoder(x)), state)
        return torch.tanh(self.output(state)), state

    def network(self) -> Network:
        (encoder,), (output,) = (linear_layers(nn.Sequential(layer)) for layer in (self.encoder, self.output))
        cell = (self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh)
        w_ih, w_hh, b_ih, b_hh = (host(p).copy() for p in cell)
        return Gru(encoder, w_ih, w_hh, b_ih, b_hh, output)


class AnyPolicy(nn.Module):
    """A user's module, features (n, inputs) -> actions (n, outputs), clipped to [-1, 1] as in the exported file."""

    state_size = 0

    def __init__(self, made: Callable[[int, int], nn.Module], inputs: int, outputs: int, seed: int) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = made(inputs, outputs)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.module(x).clamp(-1.0, 1.0), state

    def network(self) -> Network:
        return TorchNetwork(copy.deepcopy(self.module).cpu(), self.inputs, self.outputs)


def _initialise(layers: list[tuple[Tensor, Tensor]], rng: np.random.Generator, bias: float) -> None:
    """`fused_network.initial_weights`, drawn in the same order: one seed starts both paths from the same policy."""
    with torch.no_grad():
        for weight, offset in layers:
            bound = 1.0 / np.sqrt(weight.shape[1])
            for tensor in (weight, offset):
                tensor.copy_(torch.from_numpy(rng.uniform(-bound, bound, tuple(tensor.shape))))
        weight *= OUTPUT_SCALE
        offset.fill_(float(np.arctanh(bias)))


def make_policy(config: ApgConfig, features: int, actions: int, rng: np.random.Generator, bias: float) -> Any:
    """The configured network as a module: (features (n, f), state (n, h)) -> (actions (n, k), next state)."""
    if config.network == "mlp":
        return MlpPolicy([features, *config.hidden, actions], rng, bias)
    if config.network == "gru":
        return GruPolicy(features, config.hidden[0], config.hidden[1], actions, rng, bias)
    made = load("network", config.network, {"mlp": "", "gru": ""})
    return AnyPolicy(made, features, actions, int(rng.integers(2**31)))


class Adam:
    """Adam as `fused.adam`: a gradient norm limit before it, and a gradient that is not finite is discarded."""

    def __init__(self, parameters: Iterator[Tensor]) -> None:
        self.parameters = list(parameters)
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.count = 0

    @torch.no_grad()
    def step(self, rate: float, beta1: float, beta2: float, clip: float) -> float:
        """One update from the parameters' gradients, which are cleared; returns the gradient's norm."""
        self.count += 1
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        if math.isfinite(norm):
            factor = min(1.0, clip / (norm + 1e-12))
            correction = math.sqrt(1.0 - beta2**self.count)
            scale, epsilon = rate * correction / (1.0 - beta1**self.count), 1e-8 * correction
            for p, g, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
                g = g * factor
                first += (1.0 - beta1) * (g - first)
                second += (1.0 - beta2) * (g * g - second)
                p -= scale * first / (second.sqrt() + epsilon)
        for p in self.parameters:
            p.grad = None
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {
            "first": [m.clone() for m in self.first],
            "second": [m.clone() for m in self.second],
            "count": self.count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in ("first", "second"):
            for mine, saved in zip(getattr(self, name), state[name], strict=True):
                mine.copy_(torch.as_tensor(saved))
        self.count = int(state["count"])
