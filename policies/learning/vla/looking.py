"""What a policy that is told in words sees and hears, before it decides: tokens, or a flow, are decoded from it.

Convolutions see, told what to look for by the words (FiLM, Perez et al. 2018); the words, the patches and what is
measured are what a decoder attends to. What the words refer to (`grounding`) counts as measured; where it is all that
they say (`network.choice`), it stands in their place. Nothing of that depends on what is decoded: it is worked out once
per chunk, and the words' part once per episode.
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
from policies.learning.vla.grounding import Choices, Grounding, Meaning, Referents
from policies.learning.vla.localiser import Localiser
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
    keypoints: int = 32  # in each picture
    sight: EncoderConfig = field(default_factory=EncoderConfig)
    patch: int = 1  # rows and columns of what the convolutions hold that are attended to as one
    encoder_layers: int = 0  # of the sentence encoder, whose states are heard; 0: all
    roles: int = 1  # weighted means of the words that are heard: several tell what is moved from where it goes
    offsets: int = 0  # from an object, that words may mean, of a task whose words refer to objects; 0: no grounding
    choice: bool = False  # of words that mean no positions, all that is heard is which thing they ask for, chosen first
    places: bool = False  # with choice: the `localiser` finds where things are, as far as the task tells learning
    looks: bool = True  # at the pictures themselves, too, where the `localiser` finds objects in them
    # Of objects in pictures, that words mean (offsets) or not (places); it uses neither keypoints, patch nor sight. A
    # picture that moves tells it nothing of positions: shift is 0.
    localiser: EncoderConfig = field(
        default_factory=lambda: EncoderConfig(channels=[8, 12, 12], strides=[2, 1, 1], shift=0)
    )
    uncertainty: bool = False  # the clone sees how far off the localiser is likely to be
    parallel: bool = False  # all tokens at once, each by itself (head=tokens)

    def __post_init__(self) -> None:
        counts = self.width, self.layers, self.heads, self.keypoints, self.patch, self.roles
        if min(counts) < 1 or self.width % self.heads:
            raise ValueError(
                "width, layers, heads, keypoints, patch and roles are at least 1, and heads divide width; "
                f"got {', '.join(map(str, counts))}"
            )
        for name in ("offsets", "encoder_layers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


@dataclass
class Told:
    """Instructions, as the policy keeps them for an episode."""

    words: Tensor  # (n, words, width)
    there: Tensor  # (n, words)
    heard: Tensor  # (n, width) the words that count; with a `Meaning` there are none, nor words
    reference: Tensor  # (n, k) what they refer to; k = 0 without `grounding`
    positions: Tensor | None = None  # (n, objects, 3 or 4) of the objects, if they have been localised already

    def at(self, rows: NDArray[np.int64]) -> Told:
        """Of these rows."""
        positions = None if self.positions is None else self.positions[rows]
        return Told(self.words[rows], self.there[rows], self.heard[rows], self.reference[rows], positions)

    def packed(self) -> Tensor:
        """All but what is there, as numbers (n, k)."""
        return torch.cat([self.words.flatten(1), self.heard, self.reference], 1)


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


class Looking(nn.Module):
    """The part that every head decodes from. Weights are torch's, drawn from its global generator: the caller seeds it.

    The head adds the `blocks` that attend.
    """

    mean: Tensor
    deviation: Tensor
    blocks: nn.ModuleList

    def __init__(
        self,
        numbers: int,
        pictures: Group,
        words: int,
        config: TinyConfig,
        seed: int,
        referents: Referents | None = None,
    ) -> None:
        """For `numbers` measured numbers, these pictures, words of so many numbers each, and what they refer to."""
        super().__init__()
        self.config, self.pictures = config, pictures
        width, sight = config.width, config.sight
        channels = sight.channels[-1]
        generator = torch.Generator().manual_seed(seed)
        self.meaning: Meaning | None = None
        self.grounding: Grounding | None = None
        if not config.choice:
            self.hear, self.counts = nn.Linear(words, width), nn.Linear(width, config.roles)
            self.gather = nn.Linear(config.roles * width, width) if config.roles > 1 else nn.Identity()
        localiser = None
        if referents is not None and self._localises(referents):
            objects, scenes = referents.objects, referents.scenes
            own = config.localiser
            localiser = Localiser(pictures, objects, own, width, generator, config.uncertainty, scenes)
        if config.choice:
            self.meaning = Meaning(words, _chosen(referents), localiser)
            self.thing = nn.Linear(self.meaning.kept, width)
        if referents is not None and referents.targets and config.offsets:
            self.grounding = Grounding(words, referents, config.offsets, localiser)
        if config.uncertainty and localiser is None:
            raise ValueError(
                "network.uncertainty=true is of a localiser, and there is none: objects must be seen in pictures only, "
                "and network.offsets be over 0 where words mean them, else network.choice and network.places true"
            )
        self.looked = pictures if config.looks or localiser is None else ()
        self.measure = nn.Linear(numbers + (self.choices.size if self.choices else 0), width)
        self.eyes = nn.ModuleDict({s.name: convolutions(sight, generator, 1.0) for s in self.looked})
        self.film = nn.ModuleDict({s.name: nn.Linear(width, 2 * channels) for s in self.looked})
        self.patch = nn.ModuleDict({s.name: nn.Linear(channels, width) for s in self.looked})
        self.heatmap = nn.ModuleDict({s.name: nn.Linear(channels, config.keypoints) for s in self.looked})
        self.keypoint = nn.ModuleDict({s.name: nn.Linear(2 * config.keypoints, width) for s in self.looked})
        areas = {s.name: [side // config.patch for side in sight.held(s.shape)] for s in self.looked}
        self.patch_position = nn.ParameterDict({n: FIRST * torch.randn(h * w, width) for n, (h, w) in areas.items()})
        for layer in self.film.values():
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("deviation", torch.ones(numbers))

    def _localises(self, referents: Referents) -> bool:
        """Whether nobody measures where the objects are that it is told of."""
        config = self.config
        if referents.targets:
            return config.offsets > 0 and referents.first is None
        if config.places and not (config.choice and referents.objects):
            raise ValueError(
                "network.places=true is of a task that tells where objects are, and whose words mean no positions "
                "(network.choice=true): set it to false"
            )
        return config.places and referents.first is None

    def normalise(self, numbers: Tensor) -> None:
        """From now on numbers (n, k) like these are seen with mean 0 and deviation 1."""
        self.mean.copy_(numbers.mean(0))
        self.deviation.copy_(numbers.std(0, unbiased=False).clamp_min(SMALLEST))

    @property
    def choices(self) -> Choices | None:
        """What learns alone what words refer to, before the rest."""
        return self.meaning or self.grounding

    def tell(self, words: Tensor, there: Tensor) -> Told:
        if self.meaning:
            return self.recalled(self.meaning.resolve(words, there), there)
        heard = self.hear(words)
        weight = self.counts(heard).masked_fill(~there[..., None], -torch.inf).softmax(1)
        reference = self.grounding.resolve(words, there) if self.grounding else words.new_zeros(words.shape[0], 0)
        return Told(heard, there, self.gather((weight.transpose(1, 2) @ heard).flatten(1)), reference)

    def kept(self, words: int) -> int:
        """Numbers that it keeps of an instruction of so many words."""
        if self.meaning:
            return self.meaning.kept
        return (words + 1) * self.config.width + (self.grounding.kept if self.grounding else 0)

    def recalled(self, packed: Tensor, there: Tensor) -> Told:
        """Of what was kept (n, k), and which words are there (n, words)."""
        width, count = self.config.width, there.shape[1]
        if self.meaning:
            return Told(packed.new_zeros(packed.shape[0], 0, width), there[:, :0], packed[:, :0], packed)
        words, heard, reference = packed.tensor_split([count * width, (count + 1) * width], 1)
        return Told(words.unflatten(1, (-1, width)), there, heard, reference)

    def heard(self, told: Told) -> Tensor:
        """What counts of an instruction (n, width)."""
        return self.thing(told.reference) if self.meaning else told.heard

    def encode(self, told: Told, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Prefix:
        heard = self.heard(told)
        looks = {s.name: self._look(s.name, pictures[s.name], heard) for s in self.looked}
        measured = (numbers - self.mean) / self.deviation
        if self.choices and self.choices.size:
            positions = self.choices.positions(numbers, pictures) if told.positions is None else told.positions
            measured = torch.cat([measured, self.choices.targets(told.reference, positions)], 1)
        measured = self.measure(measured)
        start = heard + measured
        for name, (_, keypoints) in looks.items():
            start = start + self.keypoint[name](keypoints)
        whole = torch.cat([told.words, measured[:, None], *(patches for patches, _ in looks.values())], 1)
        seen = told.there.new_ones(whole.shape[0], whole.shape[1] - told.there.shape[1])
        there = torch.cat([told.there, seen], 1)[:, None, None]
        return Prefix([block.offered(whole) for block in self.blocks], there, start)  # type: ignore[operator]

    def _look(self, name: str, pictures: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
        """Patches (n, patches, width) and keypoints in the picture (n, 2 * keypoints)."""
        held = self.eyes[name](pictures.permute(0, 3, 1, 2).float() / WHITE)
        height, width = held.shape[2:]
        more, shift = self.film[name](heard)[:, None].chunk(2, -1)
        held = F.relu(held.flatten(2).transpose(1, 2) * (1.0 + more) + shift)
        heatmap = self.heatmap[name](held).softmax(1)
        keypoints = heatmap.transpose(1, 2) @ torch.from_numpy(grid(height, width)).to(held)
        if self.config.patch > 1:
            square = held.transpose(1, 2).unflatten(2, (height, width))
            held = F.avg_pool2d(square, self.config.patch).flatten(2).transpose(1, 2)
        return self.patch[name](held) + self.patch_position[name], keypoints.flatten(1)


def _chosen(referents: Referents | None) -> Referents:
    """What words choose among; ValueError where they mean something else."""
    if referents is None or not referents.things:
        raise ValueError(
            "network.choice=true is of words that mean no positions: here they do, set network.offsets over 0 instead"
        )
    return referents
