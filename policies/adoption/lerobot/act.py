"""ACT, action chunking with transformers (arXiv:2304.13705), as LeRobot lays it out; without what only training needs.

The latent of its variational encoder is zero when it acts, so that encoder is left out.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from deploy.policy_file import PolicyFileError
from policies.adoption.lerobot.folder import ACTION, PLACE, STATE, Folder
from policies.adoption.lerobot.modules import (
    DEEPEST,
    STAGES,
    WIDTHS,
    FrozenNorm,
    Normalised,
    filled,
    picture,
    resnet,
    seen_by_resnet,
)

TRAINING = ("model.vae_encoder",)  # names of what is not needed here
PROJECTIONS = {STATE: "encoder_robot_state_input_proj", PLACE: "encoder_env_state_input_proj"}


class Attention(nn.Module):
    """Attention with several heads (arXiv:1706.03762); the parameters of torch.nn.MultiheadAttention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, asked: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """(n, s, width) of what is asked (n, s, width), keys and values (n, t, width)."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        told = (asked, keys, values)
        q, k, v = (self._apart(nn.functional.linear(x, w, b)) for x, w, b in zip(told, weights, biases, strict=True))
        likely = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
        y: torch.Tensor = self.out_proj((likely @ v).transpose(1, 2).flatten(2))
        return y

    def _apart(self, x: torch.Tensor) -> torch.Tensor:
        """(n, s, width) -> (n, heads, s, width / heads)."""
        apart: torch.Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return apart


class Layer(nn.Module):
    """Attention among the tokens, in a decoder then to what is encoded, then two linear layers; normalised each."""

    def __init__(self, width: int, heads: int, wide: int, first: bool, curve: str, decodes: bool) -> None:
        super().__init__()
        self.first, self.decodes = first, decodes
        self.self_attn = Attention(width, heads)
        if decodes:
            self.multihead_attn = Attention(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, wide), nn.Linear(wide, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        if decodes:
            self.norm3 = nn.LayerNorm(width)
        self.curve = nn.functional.relu if curve == "relu" else nn.functional.gelu

    def forward(self, x: torch.Tensor, place: torch.Tensor, encoded: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Tokens (n, s, width) of tokens, where those are, and in a decoder of what is encoded, and where that is."""

        def among(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.self_attn(x + place, x + place, x)
            return y

        def across(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.multihead_attn(x + place, encoded + there, encoded)
            return y

        def alone(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear2(self.curve(self.linear1(x)))
            return y

        parts = [(among, self.norm1), (alone, self.norm2)]
        if self.decodes:
            parts = [(among, self.norm1), (across, self.norm2), (alone, self.norm3)]
        for part, norm in parts:
            x = x + part(norm(x)) if self.first else norm(x + part(x))
        return x


class Layers(nn.Module):
    """Layers, and what follows them."""

    def __init__(self, layers: list[Layer], norm: nn.Module) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), norm


class Transformer(nn.Module):
    """Tokens of numbers and pictures -> a chunk of actions (n, chunk, actions), normalised."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        told, sizes = folder.settings, list(folder.numbers.values())
        width, heads, wide = (told.whole(key) for key in ("dim_model", "n_heads", "dim_feedforward"))
        if width % heads or width % 4:
            raise PolicyFileError(f"{told.path}: dim_model {width} is no multiple of n_heads {heads} and of 4")
        first, curve = told.flag("pre_norm"), told.word("feedforward_activation", "relu", "gelu")

        def layers(key: str, decodes: bool) -> list[Layer]:
            return [Layer(width, heads, wide, first, curve, decodes) for _ in range(told.whole(key, DEEPEST))]

        self.encoder = Layers(layers("n_encoder_layers", False), nn.LayerNorm(width) if first else nn.Identity())
        self.decoder = Layers(layers("n_decoder_layers", True), nn.LayerNorm(width))
        self.encoder_latent_input_proj = nn.Linear(told.whole("latent_dim"), width)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + len(sizes), width)
        self.numbers = [PROJECTIONS[name] for name in folder.numbers]
        for name, size in folder.numbers.items():
            setattr(self, PROJECTIONS[name], nn.Linear(size, width))
        self.sizes = sizes
        if folder.pictures:
            self.backbone = nn.Sequential()
            for name, layer in resnet(told.word("vision_backbone", *STAGES), FrozenNorm):
                self.backbone.add_module(name, layer)
            self.encoder_img_feat_input_proj = nn.Conv2d(WIDTHS[-1], width, 1)
        self.decoder_pos_embed = nn.Embedding(told.whole("chunk_size"), width)
        self.action_head = nn.Linear(width, folder.actions)
        for k, (height, across) in enumerate(folder.pictures.values()):
            self.register_buffer(f"place_{k}", places(height, across, width), persistent=False)

    def forward(self, numbers: torch.Tensor, pictures: list[torch.Tensor]) -> torch.Tensor:
        """Of normalised numbers (n, k) and pictures (n, 3, h, w)."""
        rows = numbers[:, :1] * 0.0
        tokens = [self.encoder_latent_input_proj.bias + rows]
        parts = numbers.split(self.sizes, dim=1) if self.sizes else ()
        tokens += [getattr(self, name)(part) for name, part in zip(self.numbers, parts, strict=True)]
        x, place = torch.stack(tokens, dim=1), self.encoder_1d_feature_pos_embed.weight
        for k, seen in enumerate(pictures):
            points = self.encoder_img_feat_input_proj(self.backbone(seen)).flatten(2).transpose(1, 2)
            x, place = torch.cat([x, points], dim=1), torch.cat([place, getattr(self, f"place_{k}")])
        for layer in self.encoder.layers:
            x = layer(x, place, x, place)
        x = self.encoder.norm(x)
        y = self.decoder_pos_embed.weight * 0.0 + rows.unsqueeze(1)
        for layer in self.decoder.layers:
            y = layer(y, self.decoder_pos_embed.weight, x, place)
        chunk: torch.Tensor = self.action_head(self.decoder.norm(y))
        return chunk


def places(height: int, across: int, width: int) -> torch.Tensor:
    """Where the points of a picture's features are, (points, width): sines and cosines of row, then of column.

    Rows and columns run from 0 to 2 pi, without 0; the wave lengths from 2 pi to 10 000 times that.
    """
    with torch.device("cpu"):
        made = []
        height, across = seen_by_resnet(height, across)
        power = 2 * (torch.arange(width // 2, dtype=torch.float32) // 2) / (width // 2)
        for side, shape in ((height, (height, 1)), (across, (1, across))):
            turn = torch.arange(1, side + 1, dtype=torch.float32) / (side + 1e-6) * (2 * math.pi)
            angle = turn[:, None] / 10000**power
            wave = torch.stack([angle[:, 0::2].sin(), angle[:, 1::2].cos()], dim=-1).flatten(1)
            made.append(wave.reshape(*shape, -1).expand(height, across, -1))
        return torch.cat(made, dim=-1).reshape(height * across, width)


class Act(nn.Module):
    """Numbers (n, k) and pictures (n, h, w, 3), 0 to 255 -> a chunk (n, chunk * actions) as the robot takes it."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.model = Transformer(folder)
        self.numbers = nn.ModuleList([Normalised(folder.normalisers.get(name)) for name in folder.numbers])
        self.pictures = nn.ModuleList([Normalised(folder.normalisers.get(name)) for name in folder.pictures])
        self.action = Normalised(folder.normalisers.get(ACTION))

    def forward(self, numbers: torch.Tensor, pictures: tuple[torch.Tensor, ...] = ()) -> torch.Tensor:
        """The chunk, action by action."""
        parts = numbers.split(self.model.sizes, dim=1) if self.model.sizes else ()
        told = [n(part) for n, part in zip(self.numbers, parts, strict=True)]
        seen = [n(picture(x)) for n, x in zip(self.pictures, pictures, strict=True)]
        return self.action.back(self.model(torch.cat(told, dim=1) if told else numbers, seen)).flatten(1)


def from_act(folder: Folder) -> tuple[Act, int, int]:
    """The network with its weights, the actions in a chunk, and how many of them are carried out."""
    told = folder.settings
    told.nothing(
        "temporal_ensemble_coeff",
        "averages over plans are not adopted; set it to null and n_action_steps to what suits the robot",
    )
    told.nothing("replace_final_stride_with_dilation", "a backbone with dilation is not adopted", zero=True)
    if told.whole("n_obs_steps") != 1 or not folder.numbers:
        raise PolicyFileError(f"{told.path}: needs n_obs_steps 1, and numbers among the inputs")
    horizon = told.whole("chunk_size", 1000)
    network = filled(folder.path, lambda: Act(folder), folder.tensors, TRAINING)
    assert isinstance(network, Act)
    return network, horizon, told.whole("n_action_steps", horizon)
