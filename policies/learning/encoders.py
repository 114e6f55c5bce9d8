"""Learning to see: encoders of pictures, trained end to end with whatever takes the points that they find.

In training a picture is moved by a few pixels at random (DrQ, Yarats et al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from policies.learning.networks import orthogonal
from policies.models.networks import Array
from policies.models.vision import ENCODERS, KERNEL, EncoderConfig, PictureEncoder, grid
from sim.spec import Group

WHITE = 255.0
# An untrained encoder looks everywhere at once, and all its points lie near the middle: within about 0.01. Learning by
# trial and error hardly hears them there; sharper first weights spread them.
SHARP = 8.0
TOGETHER = 256  # pictures: with 1024 at once, what convolutions hold leaves the caches, a third slower on an EPYC
PICTURE = "picture."  # before its name in a buffer


class Encoders(nn.Module):
    """An encoder per picture; without pictures, none, and nothing is drawn."""

    def __init__(
        self, pictures: Group, config: EncoderConfig, generator: torch.Generator, sharpness: float = 1.0
    ) -> None:
        """`sharpness`: a factor of the first weights of the last convolution, see `SHARP`; of keypoints."""
        super().__init__()
        self.pictures, self.config = pictures, config
        self.size = sum(config.found(s.shape) for s in pictures)
        self.flat = config.head == "flat"
        sharpness = 1.0 if self.flat else sharpness
        self.encoders = nn.ModuleDict({s.name: convolutions(config, generator, sharpness) for s in pictures})

    def forward(self, pictures: Mapping[str, Tensor]) -> Tensor:
        """Points in pictures (n, height, width, 3) uint8 by name, or all that is held of them: (n, size)."""
        found = []
        for signal in self.pictures:
            some = pictures[signal.name].split(TOGETHER)
            found.append(torch.cat([self.found(signal.name, part) for part in some]))
        return torch.cat(found, -1)

    def found(self, name: str, pictures: Tensor) -> Tensor:
        """What one of them finds in its pictures (n, height, width, 3), which are few: (n, k)."""
        looked = self.looked(name, pictures)
        return looked.relu().flatten(1) if self.flat else pointed(looked)[0]

    def looked(self, name: str, pictures: Tensor) -> Tensor:
        """What the last convolution of one of them makes of its pictures (n, k, rows, columns)."""
        looked: Tensor = self.encoders[name](pictures.permute(0, 3, 1, 2).float() / WHITE)
        return looked

    def moved(self, pictures: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Each picture moved at random, its edge repeated."""
        return {name: shifted(some, self.config.shift, generator) for name, some in pictures.items()}

    def exported(self) -> dict[str, PictureEncoder]:
        """Copies as numpy data, which take pictures as they are."""
        made, strides = ENCODERS[self.config.head], self.config.strides
        return {s.name: made(s.shape, convolution_layers(self.encoders[s.name]), strides) for s in self.pictures}


def pointed(looked: Tensor) -> tuple[Tensor, Tensor]:
    """The points (n, 2 k) of what was looked at (n, k, rows, columns), and how high each one's heatmap is (n, k)."""
    likely = looked.flatten(2).softmax(-1)
    places: Tensor = likely @ torch.from_numpy(grid(*looked.shape[2:])).to(likely.device)
    return places.flatten(1), likely.amax(-1)


class PictureActor(nn.Module):
    """A network of numbers and of the points in pictures behind them; without pictures, of the numbers alone."""

    def __init__(self, encoders: Encoders, network: nn.Sequential) -> None:
        super().__init__()
        self.encoders, self.network = encoders, network

    def forward(self, numbers: Tensor, pictures: Mapping[str, Tensor]) -> Tensor:
        """The network's outputs (n, k)."""
        output: Tensor = self.network(torch.cat([numbers, self.encoders(pictures)], -1) if pictures else numbers)
        return output


def columns(pictures: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Pictures by the names under which a buffer keeps them, uint8 as they are."""
    return {f"{prefix}{PICTURE}{name}": shown for name, shown in pictures.items()}


def kept(batch: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The inverse: the pictures in a batch."""
    start = f"{prefix}{PICTURE}"
    return {name.removeprefix(start): shown for name, shown in batch.items() if name.startswith(start)}


def convolutions(config: EncoderConfig, generator: torch.Generator, sharpness: float) -> nn.Sequential:
    """Convolutions with ReLU between them."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, stride in zip(config.channels, config.strides, strict=True):
        layer = nn.Conv2d(inputs, outputs, KERNEL, stride, KERNEL // 2, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            drawn = orthogonal(outputs, inputs * KERNEL**2, generator)
            layer.weight.copy_(2.0**0.5 * drawn.view_as(layer.weight))
            layer.bias.zero_()  # type: ignore[union-attr]
        layers += [*([nn.ReLU()] if layers else []), layer]
        inputs = outputs
    with torch.no_grad():
        layers[-1].weight.mul_(sharpness)  # type: ignore[operator]
    network: nn.Sequential = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def convolution_layers(encoder: nn.Module) -> list[tuple[Array, Array]]:
    """Copies of their W (out, in, KERNEL, KERNEL) and b (out,); the first takes 0 to 255."""
    found = [layer for layer in encoder.children() if isinstance(layer, nn.Conv2d)]
    layers = [(v.weight.detach().cpu().numpy().copy(order="C"), v.bias.detach().cpu().numpy().copy()) for v in found]  # type: ignore[union-attr]
    layers[0] = layers[0][0] / WHITE, layers[0][1]
    return layers


def shifted(pictures: Tensor, shift: int, generator: torch.Generator) -> Tensor:
    """Pictures (n, height, width, 3), each moved by up to `shift` pixels each way, its edge repeated."""
    if shift == 0:
        return pictures
    n, height, width, _ = pictures.shape
    device = pictures.device
    down, right = torch.randint(-shift, shift + 1, (2, n, 1), generator=generator, device=generator.device).to(device)
    rows = (torch.arange(height, device=device) + down).clamp(0, height - 1)
    columns = (torch.arange(width, device=device) + right).clamp(0, width - 1)
    return pictures[torch.arange(n, device=device)[:, None, None], rows[:, :, None], columns[:, None]]
