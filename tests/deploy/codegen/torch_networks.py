"""Small networks as people write them in torch, for the tests of the C generator: name -> module and its signal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


class Does(nn.Module):
    """Layers around a function, so that what the function computes is neither the first nor the last thing."""

    def __init__(self, function: Callable[[Tensor], Tensor], before: int = 8, inputs: int = 6) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(inputs, before), function

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs) -> (N, ...)."""
        return self.function(self.first(x)).float().flatten(1)


class Applied(nn.Module):
    """Modules with a function that brings them together."""

    def __init__(self, function: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.parts, self.function = nn.ModuleList(parts), function

    def forward(self, x: Tensor) -> Tensor:
        """(N, ...) -> (N, ...)."""
        return self.function(x, *self.parts).flatten(1)


class Pictures(nn.Module):
    """An encoder of pictures of bytes (N, height, width, channels)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(N, height, width, channels) -> (N, ...)."""
        return self.layers(x.permute(0, 3, 1, 2).float() / 255.0).flatten(1)


@dataclass(frozen=True)
class Network:
    """A module, the shape of its signal x, and whether that is a picture of bytes."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (6,)
    bytes: bool = False


def does(function: Callable[[Tensor], Tensor], before: int = 8) -> Network:
    """A function between a layer and the end."""
    return Network(lambda: Does(function, before))


def stack(*layers: Callable[[], nn.Module], shape: tuple[int, ...] = (6,)) -> Network:
    """Layers one after another."""
    return Network(lambda: nn.Sequential(*(layer() for layer in layers)), shape)


def pictures(*layers: Callable[[], nn.Module], shape: tuple[int, ...] = (12, 10, 3)) -> Network:
    """Layers over a picture."""
    return Network(lambda: Pictures(*(layer() for layer in layers)), shape, bytes=True)


def _codes(x: Tensor, size: int) -> Tensor:
    """Whole numbers 0 .. size - 1."""
    return (x.abs() * 3.0).long().clamp(max=size - 1)


def _attend(x: Tensor, attention: nn.Module) -> Tensor:
    mask = torch.full((3, 3), -torch.inf).triu(1)
    return attention(x, x, x, attn_mask=mask, need_weights=False)[0]


def _written(x: Tensor) -> Tensor:
    """Into a copy, by slices and by a mask."""
    y = x.clone()
    y[:, 1:3] = x[:, 4:6]
    return torch.where(y > 0.5, y, torch.zeros_like(y)).masked_fill(y < -1.0, 2.0)


def _last(x: Tensor, cell: nn.Module, head: nn.Module) -> Tensor:
    return head(cell(x)[0][:, -1])


def _stepped(x: Tensor, cell: nn.Module) -> Tensor:
    made = cell(x)
    return made[0] if isinstance(made, tuple) else made


def recurrent(kind: type[nn.Module], **options: object) -> Network:
    """A sequence of four steps, its last output through a layer."""
    width = 5 * (2 if options.get("bidirectional") else 1)
    return Network(lambda: Applied(_last, kind(3, 5, batch_first=True, **options), nn.Linear(width, 2)), (4, 3))


NETWORKS = {
    # activations
    "gelu": stack(lambda: nn.Linear(6, 8), lambda: nn.LayerNorm(8), nn.GELU, lambda: nn.Linear(8, 2)),
    "gelu by tanh": stack(lambda: nn.Linear(6, 8), lambda: nn.GELU("tanh"), lambda: nn.Linear(8, 2)),
    "softplus": does(functional.softplus),
    "softplus, steep": does(lambda x: functional.softplus(x, beta=3.0, threshold=5.0)),
    "celu, softsign, tanhshrink": does(
        lambda x: functional.celu(x, 0.7) + functional.softsign(x) - functional.tanhshrink(x)
    ),
    "hardtanh, relu6, thresholds": does(
        lambda x: functional.hardtanh(x) + functional.relu6(3.0 * x) + functional.threshold(x, 0.1, -0.2)
    ),
    "shrinks": does(lambda x: functional.softshrink(x, 0.2) + functional.hardshrink(x, 0.3)),
    "log sigmoid": does(functional.logsigmoid),
    "glu": does(lambda x: functional.glu(x, dim=-1)),
    "log softmax": does(lambda x: functional.log_softmax(x, dim=-1)),
    "softmin of the first axis": does(lambda x: functional.softmin(x.reshape(-1, 2, 4), dim=1)),
    # mathematics
    "sin, cos": does(lambda x: torch.cat([torch.sin(3.0 * x), torch.cos(5.0 * x)], -1)),
    "tan, atan": does(lambda x: torch.atan(x) + torch.tan(0.5 * torch.tanh(x))),
    "atan2": does(lambda x: torch.atan2(x[:, :4], x[:, 4:])),
    "asin, acos": does(lambda x: torch.asin(0.9 * torch.tanh(x)) * torch.acos(0.9 * torch.tanh(x))),
    "hyperbolic": does(lambda x: torch.sinh(0.5 * x) + torch.cosh(x) + torch.asinh(x) + torch.atanh(0.9 * x.tanh())),
    "acosh, log1p, expm1": does(lambda x: torch.acosh(1.1 + x * x) + torch.log1p(x * x) + torch.expm1(x)),
    "logarithms": does(lambda x: torch.log(x.abs() + 0.01) + torch.log2(x * x + 1.0) - torch.log10(x * x + 2.0)),
    "rounding": does(lambda x: torch.round(3.0 * x) + x.floor() - x.ceil() + x.sign() + torch.trunc(2.0 * x)),
    "powers": does(lambda x: x.abs().pow(1.5) + (x * x).pow(0.37) - x.pow(4) + (x * x + 1.0).pow(-2.5) + 2.0**x),
    "rsqrt, reciprocal": does(lambda x: torch.rsqrt(x * x + 0.1) + torch.reciprocal(x.abs() + 0.5)),
    "remainders": does(lambda x: torch.remainder(5.0 * x, 0.7) + torch.fmod(5.0 * x, 0.7)),
    "comparisons": does(lambda x: ((x > 0.1) & ~(x < 0.3)) | (x == 0.2) ^ (x >= 0.25)),
    "not finite inside": does(lambda x: torch.nan_to_num(torch.log(torch.relu(x)), neginf=-3.0)),
    # choices
    "argmax": does(lambda x: x.argmax(-1, keepdim=True)),
    "argmin of an axis": does(lambda x: x.reshape(-1, 2, 4).argmin(-2)),
    "top k": does(lambda x: torch.cat([*torch.topk(x, 3)], -1)),
    "sort": does(lambda x: torch.sort(x, descending=False)[0]),
    "embedding": Network(
        lambda: Applied(lambda x, table: table(_codes(x, 7)), nn.Embedding(7, 4)),
    ),
    "one hot": does(lambda x: functional.one_hot(_codes(x, 5), 5)),
    "gather": does(lambda x: torch.gather(x, 1, _codes(x[:, :3], 8))),
    "index select": does(lambda x: x[:, torch.tensor([3, 0, 3])].repeat(1, 2)),
    "mixture of experts": does(lambda x: x[:, :4] * functional.one_hot(x[:, 4:].argmax(-1), 4)),
    # sums and the like
    "cumsum": does(lambda x: x.cumsum(-1) + x.reshape(-1, 2, 4).cumsum(1).flatten(1)),
    "sums": does(
        lambda x: torch.cat(
            [x.reshape(-1, 2, 2, 2).sum((1, 3)), x.prod(-1, True), x.amin(-1, True), x.amax(-1, True)], 1
        )
    ),
    "norms": does(lambda x: torch.cat([x.norm(1, -1, True), x.norm(2, -1, True), functional.normalize(x)], -1)),
    "log sum exp": does(
        lambda x: torch.logsumexp(x, -1, keepdim=True) + x.std(-1, keepdim=True) + x.var(-1, keepdim=True)
    ),
    "cosine similarity": does(lambda x: functional.cosine_similarity(x[:, :4], x[:, 4:], dim=-1)[:, None]),
    # products
    "einsum": does(lambda x: torch.einsum("bij,bkj->bik", x.reshape(-1, 2, 4), x.reshape(-1, 2, 4))),
    "einsum of three": does(
        lambda x: (
            torch.einsum("bi,bj,bj->bij", x[:, :4], x[:, 4:], x[:, :4])
            + torch.einsum("bij->bji", x.reshape(-1, 2, 4))[:, :, :1]
        )
    ),
    "bilinear": Network(lambda: Applied(lambda x, layer: layer(x[:, :3], x[:, 3:]), nn.Bilinear(3, 3, 4))),
    "products of all kinds": does(
        lambda x: torch.matmul(torch.ones(3, 2), x.reshape(-1, 2, 4)) + (x.reshape(-1, 2, 4).mT @ x[:, :2, None])[:, :3]
    ),
    "outer and cross": does(
        lambda x: torch.cat(
            [torch.cross(x[:, :3], x[:, 3:6], dim=-1), (x[:, :2, None] * x[:, None, 2:4]).flatten(1)], -1
        )
    ),
    # layers
    "group norm": stack(lambda: nn.Linear(6, 8), lambda: nn.GroupNorm(2, 8), lambda: nn.Linear(8, 2)),
    "instance norm": stack(lambda: nn.InstanceNorm1d(2, affine=True), nn.Flatten, shape=(2, 5)),
    "rms norm, silu": stack(lambda: nn.Linear(6, 8), lambda: nn.RMSNorm(8), nn.SiLU, lambda: nn.Linear(8, 2)),
    "attention": Network(lambda: Applied(_attend, nn.MultiheadAttention(8, 2, batch_first=True)), (3, 8)),
    "transformer, norm first": Network(
        lambda: Applied(
            lambda x, layer: layer(x),
            nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", norm_first=True, batch_first=True),
        ),
        (3, 8),
    ),
    "gru": recurrent(nn.GRU),
    "gru, both ways": recurrent(nn.GRU, bidirectional=True, num_layers=2),
    "lstm": recurrent(nn.LSTM),
    "lstm, both ways": recurrent(nn.LSTM, bidirectional=True),
    "rnn": recurrent(nn.RNN),
    "gru cell": Network(lambda: Applied(_stepped, nn.GRUCell(6, 5))),
    "lstm cell": Network(lambda: Applied(_stepped, nn.LSTMCell(6, 5))),
    # signals over time
    "dilated convolutions over time": stack(
        lambda: nn.Conv1d(2, 4, 3, dilation=2, padding=2),
        nn.GELU,
        lambda: nn.Conv1d(4, 2, 2, dilation=3, padding="same"),
        shape=(2, 9),
    ),
    "transposed convolution over time": stack(lambda: nn.ConvTranspose1d(2, 3, 4, 2, 1), shape=(2, 5)),
    "pools over time": stack(
        lambda: nn.AvgPool1d(3, 2, ceil_mode=True), lambda: nn.MaxPool1d(2, ceil_mode=True), shape=(2, 10)
    ),
    "adaptive pools": stack(lambda: nn.AdaptiveAvgPool1d(3), lambda: nn.AdaptiveMaxPool1d(1), shape=(2, 9)),
    "pads": stack(
        lambda: nn.ReflectionPad1d(2), lambda: nn.ReplicationPad1d(1), lambda: nn.ConstantPad1d(1, 0.7), shape=(2, 5)
    ),
    "roll, flip": does(lambda x: x.roll(2, 1) + x.flip(1) + x.unfold(1, 8, 1)[:, 0]),
    "written": does(_written),
    # pictures
    "impala": pictures(
        lambda: nn.Conv2d(3, 4, 3, padding=1),
        lambda: nn.MaxPool2d(3, 2, 1),
        nn.ReLU,
        lambda: nn.Conv2d(4, 4, 3, padding="same"),
        nn.Flatten,
        lambda: nn.Linear(120, 4),
    ),
    "dilated, same": pictures(
        lambda: nn.Conv2d(3, 4, 3, dilation=2),
        nn.SiLU,
        lambda: nn.Conv2d(4, 4, (2, 3), padding="same", groups=2),
        lambda: nn.AvgPool2d(2, ceil_mode=True, padding=1),
    ),
    "pools, ceil": pictures(
        lambda: nn.AvgPool2d(3, 2, padding=1, ceil_mode=True, count_include_pad=False),
        lambda: nn.MaxPool2d(2, 2, ceil_mode=True, dilation=2),
    ),
    "nearest": pictures(lambda: nn.Upsample(scale_factor=2), lambda: nn.Conv2d(3, 2, 5, 4)),
    "bilinear resize": pictures(lambda: nn.Upsample((5, 7), mode="bilinear"), lambda: nn.Conv2d(3, 2, 3)),
    "bicubic resize": pictures(lambda: nn.Upsample((5, 7), mode="bicubic", align_corners=True)),
    "u-net": pictures(
        lambda: nn.Conv2d(3, 4, 3, 2, 1),
        nn.ReLU,
        lambda: nn.ConvTranspose2d(4, 2, 3, 2, 1, 1),
        lambda: nn.BatchNorm2d(2),
        lambda: nn.PixelUnshuffle(2),
        lambda: nn.PixelShuffle(2),
        lambda: nn.AdaptiveAvgPool2d((2, 2)),
    ),
}
