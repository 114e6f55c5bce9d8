"""A head that makes a chunk of actions out of noise, by flow matching, where others say tokens (Lipman et al. 2023).

Readouts attend to what is seen and told, once per chunk (as Octo's, Octo Model Team 2024, arXiv 2405.12213). They are
all that the flow knows, with what is measured and the words that count: one vector, from which a perceptron goes a few
Euler steps from noise to actions. So whoever steers the noise sees that vector, and the flow is a black box.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from policies.algorithms.bc import FREQUENCIES, STILL, embed, schedule, silu
from policies.language.minilm import SentenceEncoder
from policies.learning.networks import Normalizer, mlp
from policies.learning.vla.grounding import Referents
from policies.learning.vla.hearing import Listener
from policies.learning.vla.looking import FIRST, Block, Looking, TinyConfig, Told
from policies.models.chunking import Denoiser
from policies.models.graph import spliced
from policies.models.networks import Array
from policies.models.vision import ObservationEncoder
from sim import spec
from sim.spec import Group

if TYPE_CHECKING:
    from policies.models.graph import Graph


@dataclass
class FlowConfig:
    """Settings of the head."""

    readouts: int = 4  # tokens that attend, and are what the flow is told
    hidden: list[int] = field(default_factory=lambda: [256, 256])
    steps: int = 5  # Euler's, per chunk
    draws: int = 8  # of noise and time per picture in learning: pictures are dear
    noise: str = "normal"  # of the exported policy: "normal", or "none"

    def __post_init__(self) -> None:
        if min(self.readouts, self.steps, self.draws, *self.hidden) < 1:
            raise ValueError(
                "readouts, steps, draws and hidden are at least 1; "
                f"got {self.readouts}, {self.steps}, {self.draws} and {self.hidden}"
            )
        if self.noise not in ("normal", "none"):
            raise ValueError(f"noise {self.noise!r} is not one of normal, none")


class TinyFlow(Looking):
    """The policy. It is made of the same numbers for the same seed.

    `usual_mean`, `usual_deviation` (observed,): what its observations are like in the demonstrations, once `settle` was
    told; for those who steer it.
    """

    usual_mean: Tensor
    usual_deviation: Tensor

    def __init__(
        self,
        chunk: tuple[int, int],
        numbers: int,
        pictures: Group,
        words: int,
        config: TinyConfig,
        flow: FlowConfig,
        seed: int,
        referents: Referents | None = None,
    ) -> None:
        """For chunks of (horizon, actions), `numbers` measured numbers, these pictures, words of so many numbers."""
        width = config.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(numbers, pictures, words, config, seed, referents)
            self.turn = nn.Parameter(FIRST * torch.randn(flow.readouts, width))
            self.blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.layers))
        self.last = nn.LayerNorm(width)
        self.flow, self.chunk, self.numbers = flow, chunk, numbers
        self.observed = numbers + width + flow.readouts * width
        size = chunk[0] * chunk[1]
        sizes = [self.observed + size + 1 + 2 * FREQUENCIES, *flow.hidden, size]
        self.velocity = silu(mlp(sizes, torch.Generator().manual_seed(seed), last_gain=0.1))
        self.register_buffer("usual_mean", torch.zeros(self.observed))
        self.register_buffer("usual_deviation", torch.ones(self.observed))

    def normalise(self, numbers: Tensor) -> None:
        super().normalise(numbers)
        self.usual_mean[: self.numbers], self.usual_deviation[: self.numbers] = self.mean, self.deviation

    def observe(self, told: Told, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Tensor:
        """What the flow is told (n, observed): what is measured, the words that count, the readouts."""
        prefix = self.encode(told, numbers, pictures)
        x = prefix.start[:, None] + self.turn
        for block, attended in zip(self.blocks, prefix.attended, strict=True):
            x, _ = block(x, attended, prefix.there, False)
        return torch.cat([numbers, self.heard(told), self.last(x).flatten(1)], 1)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Times and noise for so many chunks (n, draws, 1 + horizon * actions)."""
        time = torch.rand(self.flow.draws * n, 1, generator=generator)
        noise = torch.randn((self.flow.draws * n, self.chunk[0] * self.chunk[1]), generator=generator)
        return torch.cat([time, noise], 1).view(self.flow.draws, n, -1).transpose(0, 1)

    def loss(self, observation: Tensor, chunk: Tensor, drawn: Tensor) -> Tensor:
        """Mean squared error of the velocity on the way from noise to chunks (n, horizon * actions)."""
        measured = (observation[:, : self.numbers] - self.mean) / self.deviation
        seen = torch.cat([measured, observation[:, self.numbers :]], 1)
        seen, chunk = (some.repeat(self.flow.draws, 1) for some in (seen, chunk))
        time, noise = drawn.transpose(0, 1).flatten(0, 1).tensor_split([1], 1)
        time = time[:, 0]
        x = torch.lerp(noise, chunk, time[:, None])
        return F.mse_loss(self.velocity(torch.cat([seen, x, embed(time)], -1)), chunk - noise)

    def settle(self, observations: Tensor) -> None:
        """From now on observations (n, observed) like these are usual."""
        self.usual_mean.copy_(observations.mean(0))
        deviation = observations.std(0, unbiased=False).clamp_min(STILL)
        deviation[: self.numbers] = self.deviation
        self.usual_deviation.copy_(deviation)

    def base(self, eye: FlowEye | None = None) -> Denoiser:
        """The flow as numpy data: a black box to whoever steers it."""
        steps, size = schedule("flow", self.flow.steps), self.chunk[0] * self.chunk[1]
        first, *layers = (layer for layer in self.velocity if isinstance(layer, nn.Linear))
        weight, bias = (p.detach().numpy() for p in (first.weight, first.bias))
        see, look, tell = np.split(weight, [self.observed, self.observed + size], axis=1)
        usual = Normalizer(self.numbers)
        usual.load_state_dict({"mean": self.mean.double(), "variance": self.deviation.double() ** 2, "count": 1})
        measured, bias = usual.fold(see[:, : self.numbers], bias)
        see = np.concatenate([measured, see[:, self.numbers :]], axis=1)
        timed = (embed(torch.from_numpy(steps.time)).numpy() @ tell.T + bias).astype(np.float32)
        rest = [(p.weight.detach().numpy().copy(), p.bias.detach().numpy().copy()) for p in layers]
        moments = (self.usual_mean.numpy().copy(), self.usual_deviation.numpy().copy())
        return Denoiser(*self.chunk, steps, see, look.copy(), timed, rest, eye, *moments)


class Glance(nn.Module):
    """What the flow is told (n, observed): of tokens (n, words), what is kept of them, numbers (n, k), and pictures."""

    def __init__(self, policy: TinyFlow) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, tokens: Tensor, told: Tensor, numbers: Tensor, pictures: tuple[Tensor, ...] = ()) -> Tensor:
        seen = {s.name: shown for s, shown in zip(self.policy.pictures, pictures, strict=True)}
        return self.policy.observe(self.policy.recalled(told, tokens != 0), numbers, seen)


class FlowEye(ObservationEncoder):
    """What makes a flow's observation of signals and words: a `ToldEye`."""

    def __init__(self, inputs: Group, encoder: SentenceEncoder, policy: TinyFlow) -> None:
        self.inputs, self.pictures, self.numbers = inputs, spec.pictures(inputs), spec.numbers(inputs)
        (self.told,) = spec.tokens(inputs)
        self.policy, self.vocabulary = policy, encoder.words.vocabulary
        self.kept = policy.kept(self.told.shape[0])
        self.words = policy.config.width
        self._listener, self._glance = Listener(encoder, policy).eval(), Glance(policy).eval()

    @property
    def size(self) -> int:
        return self.policy.observed

    def see(self, signals: Mapping[str, Any]) -> Array:
        return self.look(signals, self.hear(np.ascontiguousarray(signals[self.told.name], np.int64)))

    def hear(self, tokens: NDArray[np.int64]) -> Array:
        return self._listener.hear(tokens)

    @torch.no_grad()
    def look(self, signals: Mapping[str, Any], kept: Array) -> Array:
        tokens = torch.from_numpy(np.ascontiguousarray(signals[self.told.name], np.int64))
        numbers = torch.from_numpy(spec.pack(self.numbers, signals))
        shown = tuple(torch.from_numpy(np.ascontiguousarray(signals[s.name])) for s in self.pictures)
        made: Array = self._glance(tokens, torch.from_numpy(kept), numbers, shown).numpy()
        return made

    def write_hear(self, graph: Graph) -> str:
        words = torch.ones(2, *self.told.shape, dtype=torch.int64)
        return spliced(graph, self._listener, (words,), (self.told.name,))

    def write_look(self, graph: Graph, kept: str) -> str:
        numbers = graph.join([s.name for s in self.numbers])
        words = torch.ones(2, *self.told.shape, dtype=torch.int64)
        rows = (torch.zeros(2, self.kept), torch.zeros(2, spec.size(self.numbers)))
        pictures = tuple(torch.zeros(2, *s.shape, dtype=torch.uint8) for s in self.pictures)
        given = (self.told.name, kept, numbers, *(s.name for s in self.pictures))
        seen = (pictures,) if pictures else ()  # torch exports no empty tuple
        return spliced(graph, self._glance, (words, *rows, *seen), given)
