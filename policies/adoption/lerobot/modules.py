"""Parts of LeRobot's networks as torch modules, whose parameters are called as in its files: for inference only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from deploy.policy_file import PolicyFileError
from policies.adoption.lerobot.folder import Normaliser
from policies.models.networks import Array

STAGES = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}  # arXiv:1512.03385, table 1: those of two convolutions
WIDTHS = (64, 128, 256, 512)
DEEPEST = 64  # layers of one kind
Norm = Callable[[int], nn.Module]


class FrozenNorm(nn.Module):
    """Batch normalisation as it was learned: (x - mean) / sqrt(var + 1e-5) * weight + bias of each channel."""

    weight: torch.Tensor
    bias: torch.Tensor
    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gain = self.weight * (self.running_var + 1e-5).rsqrt()
        bias = self.bias - self.running_mean * gain
        return x * gain.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)


class Block(nn.Module):
    """Two convolutions of 3 x 3 and what they begin with, added."""

    def __init__(self, before: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = norm(width)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), norm(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def seen_by_resnet(height: int, across: int) -> tuple[int, int]:
    """Sides of what `resnet` makes of a picture; each of its halvings rounds up."""
    for _ in range(5):
        height, across = -(-height // 2), -(-across // 2)
    return height, across


def resnet(kind: str, norm: Norm) -> list[tuple[str, nn.Module]]:
    """Pictures (n, 3, h, w) -> (n, 512, h / 32, w / 32): the layers in their order, with torchvision's names."""
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(3, 64, 7, 2, 3, bias=False)),
        ("bn1", norm(64)),
        ("relu", nn.ReLU()),
        ("maxpool", nn.MaxPool2d(3, 2, 1)),
    ]
    before = 64
    for stage, (count, width) in enumerate(zip(STAGES[kind], WIDTHS, strict=True)):
        blocks = []
        for k in range(count):
            blocks.append(Block(before, width, 2 if stage and not k else 1, norm))
            before = width
        layers.append((f"layer{stage + 1}", nn.Sequential(*blocks)))
    return layers


class Normalised(nn.Module):
    """(x - shift) / scale - less; x itself where nothing is known."""

    def __init__(self, known: Normaliser | None) -> None:
        super().__init__()
        self.known = known is not None
        if known is not None:
            self.register_buffer("shift", torch.from_numpy(known.shift.copy()), persistent=False)
            self.register_buffer("scale", torch.from_numpy(known.scale.copy()), persistent=False)
            back = known.scale if known.restored is None else known.restored
            self.register_buffer("restored", torch.from_numpy(back.copy()), persistent=False)
            self.less = known.less

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.shift) / self.scale - self.less if self.known else x  # type: ignore[operator]

    def back(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse."""
        return (x + self.less) * self.restored + self.shift if self.known else x  # type: ignore[operator]


def picture(x: torch.Tensor) -> torch.Tensor:
    """(n, h, w, 3), 0 to 255 -> (n, 3, h, w), 0 to 1."""
    return x.to(torch.float32).permute(0, 3, 1, 2) / 255.0


def filled(path: str, make: Callable[[], nn.Module], tensors: Mapping[str, Array], unused: Sequence[str]) -> nn.Module:
    """The module with the file's weights, ready to act; `make` builds it, without memory for its own.

    PolicyFileError names what is missing, of another shape, or left over but for names that begin with `unused`.
    """
    with torch.device("meta"):
        module = make()
    wanted = module.state_dict()
    for name, value in wanted.items():
        shape = tuple(value.shape)
        if name not in tensors or tensors[name].shape != shape:
            raise PolicyFileError(f"{path}: the weights lack {name} of shape {shape}, which its config.json asks for")
    over = [name for name in tensors if name not in wanted and not name.startswith(tuple(unused))]
    if over:
        raise PolicyFileError(f"{path}: the weights hold {over[0]:.80}, which its config.json does not ask for")
    module.load_state_dict({name: torch.from_numpy(tensors[name].copy()) for name in wanted}, assign=True)
    return module.requires_grad_(False).eval()
