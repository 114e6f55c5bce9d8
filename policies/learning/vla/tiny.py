"""A vision-language-action policy that learns on two cores: some 200,000 parameters and a frozen sentence encoder.

Convolutions see, told what to look for by the words (FiLM, Perez et al. 2018); the words, the patches and what is
measured are what the action tokens attend to. Nothing of that depends on the tokens: it is worked out once per chunk,
and the words' part once per episode. Tokens are said one after the other, or all at once (`parallel`, as OpenVLA-OFT):
then each has its own distribution, and a chunk costs one turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from policies.learning.encoders import WHITE, convolutions
from policies.learning.vla import Judged, Spoken, saying
from policies.models.tokens import ActionTokens
from policies.models.vision import EncoderConfig, grid
from sim.spec import Group

SMALLEST = 1e-3  # deviation of what is measured
FIRST = 0.02  # deviation of embeddings at first


@dataclass
class TinyConfig:
    """Settings of the network."""

    width: int = 64  # numbers per token
    layers: int = 2
    heads: int = 4
    points: int = 32  # places in each picture
    sight: EncoderConfig = field(default_factory=EncoderConfig)
    patch: int = 1  # rows and columns of what the convolutions hold that are attended to as one
    parallel: bool = False  # all tokens at once, each by itself

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.heads, self.points, self.patch) < 1 or self.width % self.heads:
            raise ValueError(
                "width, layers, heads, points and patch are at least 1, and heads divide width; "
                f"got {self.width}, {self.layers}, {self.heads}, {self.points}, {self.patch}"
            )


@dataclass
class Told:
    """Instructions, as the policy keeps them for an episode."""

    words: Tensor  # (n, words, width)
    there: Tensor  # (n, words)
    heard: Tensor  # (n, width) the words that count

    def at(self, rows: NDArray[np.int64]) -> Told:
        """Of these rows."""
        return Told(self.words[rows], self.there[rows], self.heard[rows])


@dataclass
class Prefix:
    """What is seen and told, as the policy keeps it for a chunk."""

    attended: list[tuple[Tensor, Tensor]]  # per layer keys and values (n, heads, context, width / heads)
    there: Tensor  # (n, 1, 1, context)
    start: Tensor  # (n, width) what every token begins with


class Block(nn.Module):
    """Tokens attend to tokens, then to the context, then a perceptron; normalised before each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.own, self.own_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ask, self.offer, self.ask_out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.think = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def offered(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a context (n, m, width)."""
        key, value = self.offer(self.norms[2](context)).chunk(2, -1)
        return self._split(key), self._split(value)

    def forward(
        self,
        x: Tensor,
        attended: tuple[Tensor, Tensor],
        there: Tensor,
        causal: bool,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Tokens (n, k, width), and keys and values of them and those before: the `past` of the next."""
        query, key, value = (self._split(part) for part in self.own(self.norms[0](x)).chunk(3, -1))
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        own = F.scaled_dot_product_attention(query, key, value, is_causal=causal and past is None)
        x = x + self.own_out(own.transpose(1, 2).flatten(2))
        query = self._split(self.ask(self.norms[1](x)))
        found = F.scaled_dot_product_attention(query, *attended, attn_mask=there)
        x = x + self.ask_out(found.transpose(1, 2).flatten(2))
        return x + self.think(self.norms[3](x)), (key, value)

    def _split(self, x: Tensor) -> Tensor:
        parts: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return parts


class TinyVla(nn.Module):
    """The policy: a `TokenPolicy`. It is made of the same numbers for the same seed."""

    mean: Tensor
    deviation: Tensor
    agreement = 1e-4

    def __init__(
        self, tokens: ActionTokens, numbers: int, pictures: Group, words: int, config: TinyConfig, seed: int
    ) -> None:
        """For `numbers` measured numbers, these pictures, and words of so many numbers each."""
        super().__init__()
        self.tokens, self.config, self.pictures = tokens, config, pictures
        width, sight = config.width, config.sight
        channels = sight.channels[-1]
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hear, self.counts = nn.Linear(words, width), nn.Linear(width, 1)
            self.measure = nn.Linear(numbers, width)
            self.eyes = nn.ModuleDict({s.name: convolutions(sight, generator, 1.0) for s in pictures})
            self.seek = nn.ModuleDict({s.name: nn.Linear(width, 2 * channels) for s in pictures})
            self.patch = nn.ModuleDict({s.name: nn.Linear(channels, width) for s in pictures})
            self.place = nn.ModuleDict({s.name: nn.Linear(channels, config.points) for s in pictures})
            self.point = nn.ModuleDict({s.name: nn.Linear(2 * config.points, width) for s in pictures})
            areas = {s.name: [side // config.patch for side in sight.held(s.shape)] for s in pictures}
            self.where = nn.ParameterDict({n: FIRST * torch.randn(h * w, width) for n, (h, w) in areas.items()})
            self.turn = nn.Parameter(FIRST * torch.randn(tokens.length, width))
            self.said = None if config.parallel else nn.Embedding(tokens.vocabulary, width)
            self.blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.layers))
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, tokens.vocabulary)
            self.worth = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        for layer in (self.head, *self.seek.values()):
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("deviation", torch.ones(numbers))

    def normalise(self, numbers: Tensor) -> None:
        """From now on numbers (n, k) like these are seen with mean 0 and deviation 1."""
        self.mean.copy_(numbers.mean(0))
        self.deviation.copy_(numbers.std(0, unbiased=False).clamp_min(SMALLEST))

    def tell(self, words: Tensor, there: Tensor) -> Told:
        heard = self.hear(words)
        weight = self.counts(heard).squeeze(-1).masked_fill(~there, -torch.inf).softmax(-1)
        return Told(heard, there, (weight[:, None] @ heard).squeeze(1))

    def encode(self, told: Told, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Prefix:
        measured = self.measure((numbers - self.mean) / self.deviation)
        context, start = [told.words, measured[:, None]], told.heard + measured
        for signal in self.pictures:
            patches, point = self._look(signal.name, pictures[signal.name], told.heard)
            context.append(patches)
            start = start + point
        whole = torch.cat(context, 1)
        seen = told.there.new_ones(whole.shape[0], whole.shape[1] - told.there.shape[1])
        there = torch.cat([told.there, seen], 1)[:, None, None]
        return Prefix([block.offered(whole) for block in self.blocks], there, start)  # type: ignore[operator]

    def _look(self, name: str, pictures: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
        """Patches (n, patches, width) and places (n, width)."""
        held = self.eyes[name](pictures.permute(0, 3, 1, 2).float() / WHITE)
        height, width = held.shape[2:]
        more, shift = self.seek[name](heard)[:, None].chunk(2, -1)
        held = F.relu(held.flatten(2).transpose(1, 2) * (1.0 + more) + shift)
        likely = self.place[name](held).softmax(1)
        places = likely.transpose(1, 2) @ torch.from_numpy(grid(height, width)).to(held)
        if self.config.patch > 1:
            square = held.transpose(1, 2).unflatten(2, (height, width))
            held = F.avg_pool2d(square, self.config.patch).flatten(2).transpose(1, 2)
        return self.patch[name](held) + self.where[name], self.point[name](places.flatten(1))

    def generate(
        self, prefix: Prefix, temperature: float, generator: torch.Generator | None = None, blur: Tensor | None = None
    ) -> Spoken:
        if temperature < 0.0:
            raise ValueError(f"temperature is zero or positive, got {temperature}")
        with torch.no_grad():
            if self.said is None:
                likely = saying.likely(self._logits(prefix, None), temperature or 1.0, blur)
                return saying.ended(saying.drawn(likely, temperature, generator), likely, self.tokens)
            return self._said_in_turn(prefix, temperature, generator, blur)

    def _said_in_turn(
        self, prefix: Prefix, temperature: float, generator: torch.Generator | None, blur: Tensor | None
    ) -> Spoken:
        """Token after token: each turn works out its own keys and values, and finds those before it."""
        assert self.said is not None
        past: list[tuple[Tensor, Tensor] | None] = [None] * len(self.blocks)
        tokens: list[Tensor] = []
        likely: list[Tensor] = []
        for k in range(self.tokens.length):
            x = prefix.start + self.turn[k]
            x = (x + self.said(tokens[-1]) if tokens else x)[:, None]
            for layer, block in enumerate(self.blocks):
                x, past[layer] = block(x, prefix.attended[layer], prefix.there, True, past[layer])
            turn = None if blur is None else blur[k : k + 1]
            likely.append(saying.likely(self.head(self.last(x)), temperature or 1.0, turn)[:, 0])
            tokens.append(saying.drawn(likely[-1], temperature, generator))
        return saying.ended(torch.stack(tokens, 1), torch.stack(likely, 1), self.tokens)

    def evaluate(self, prefix: Prefix, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Judged:
        if temperature <= 0.0:
            raise ValueError(f"temperature is positive, got {temperature}")
        likely = self.likely(prefix, tokens, temperature, blur)
        return Judged(*saying.judged(tokens, likely, self.tokens), self.value(prefix))

    def value(self, prefix: Prefix) -> Tensor:
        """(n,) of what is seen."""
        worth: Tensor = self.worth(prefix.start)
        return worth.squeeze(-1)

    def likely(self, prefix: Prefix, tokens: Tensor, temperature: float = 1.0, blur: Tensor | None = None) -> Tensor:
        """Log-probabilities of every token (n, length, vocabulary), given those before it."""
        return saying.likely(self._logits(prefix, tokens), temperature, blur)

    def detokenise(self, tokens: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return self.tokens.decode(tokens.cpu().numpy())

    def _logits(self, prefix: Prefix, tokens: Tensor | None) -> Tensor:
        """Of every token (n, length, vocabulary), given those before it if they are said in turn."""
        x = prefix.start[:, None] + self.turn
        if self.said is not None and tokens is not None:
            x = torch.cat([x[:, :1], x[:, 1:] + self.said(tokens[:, :-1])], 1)
        for block, attended in zip(self.blocks, prefix.attended, strict=True):
            x, _ = block(x, attended, prefix.there, self.said is not None)
        logits: Tensor = self.head(self.last(x))
        return logits

    def after(self, tokens: Tensor) -> Tensor:
        """Which tokens (n, length) come after the end, and count no more."""
        return saying.after(tokens, self.tokens)
