"""Localisation: where objects are, regressed from keypoints in pictures by encoders that do nothing else.

Words tell them nothing, and pictures are not moved under them: a clone's are, by some pixels, and a pixel may be a
centimetre on the table. Each channel's heatmap has a soft-argmax (a keypoint); positions are regressed from these.
Where it is known at which pixel an object is, its heatmap is taught that: a marker of three pixels is found by nothing
else. Where there are several scenes, keypoints tell which it is, and each has a regression and units of its own.
Keypoints and the heights of the heatmaps' peaks may tell, too, how far off a position is likely to be (the logarithm of
a variance, as in Kendall and Gal 2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from policies.learning.encoders import SHARP, Encoders, pointed
from policies.models.vision import EncoderConfig
from sim.spec import Group

LEAST_SHARE = 0.05  # of the deviation of a position over all scenes: its deviation in one
HEAT = 0.3  # weight of a nat by which a heatmap does not say where an object is in its picture


@dataclass
class Sights:
    """Pictures, and what is true of them."""

    pictures: dict[str, Tensor]  # (n, height, width, 3) uint8
    truth: Tensor  # (n, objects, 3), m
    scene: Tensor  # (n,) which one it is
    pixels: dict[str, Tensor]  # where that is in each of them (n, objects, 2), right and down, -1 to 1; {}: unknown

    def __add__(self, more: Sights) -> Sights:
        """These, and more of the same kind."""
        pictures, pixels = (
            {name: torch.cat([value, other[name]]) for name, value in some.items()}
            for some, other in ((self.pictures, more.pictures), (self.pixels, more.pixels))
        )
        truth, scene = torch.cat([self.truth, more.truth]), torch.cat([self.scene, more.scene])
        return Sights(pictures, truth, scene, pixels)


class Localiser(nn.Module):
    """From pictures to positions, in any unit. Convolutions are drawn from a generator, the rest from torch's own."""

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        pictures: Group,
        objects: int,
        config: EncoderConfig,
        hidden: int,
        generator: torch.Generator,
        uncertainty: bool = False,
        scenes: int = 1,
    ) -> None:
        """For so many objects in these pictures, of so many scenes."""
        super().__init__()
        if uncertainty and config.head == "flat":
            raise ValueError("network.uncertainty is read from heatmaps, which network.localiser.head=flat has not")
        if config.head != "flat" and config.channels[-1] < objects:
            raise ValueError(
                f"network.localiser.channels end with {config.channels[-1]}, fewer than the {objects} objects"
            )
        for s in pictures if config.head != "flat" else ():
            if min(config.held(s.shape)) < 2:
                raise ValueError(f"network.localiser.strides leave less than 2 x 2 places of {s.name}")
        self.objects, self.scenes = objects, scenes
        self.encoders = Encoders(pictures, config, generator, SHARP)
        size, positions = self.encoders.size, 3 * objects * scenes
        self.affine = nn.Linear(size, positions)  # cameras see a table nearly as an affine map of it
        self.residual = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, positions))
        self.uncertainty = None
        if uncertainty:
            peaks = size // 2  # of the heatmaps, one for each keypoint
            self.uncertainty = nn.Sequential(nn.Linear(size + peaks, hidden), nn.ReLU(), nn.Linear(hidden, objects))
        self.scene = None
        if scenes > 1:
            self.scene = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, scenes))
        self.register_buffer("mean", torch.zeros(scenes, objects, 3))
        self.register_buffer("deviation", torch.ones(scenes, objects, 3))

    def clipped(self) -> list[list[nn.Parameter]]:
        """The parameters whose gradients are clipped together: those of positions, and of how uncertain they are.

        The likelihood's are steep where an error was not expected, and would leave nothing of the others.
        """
        judging = [] if self.uncertainty is None else [*self.uncertainty.parameters()]
        theirs = {id(parameter) for parameter in judging}
        return [[parameter for parameter in self.parameters() if id(parameter) not in theirs], judging]

    def normalise(self, positions: Tensor, scene: Tensor) -> None:
        """From now on positions (n, objects, 3) of these scenes (n,) are usual; of one scene they are as they are."""
        for number in scene.unique().tolist() if self.scene else ():
            own = positions[scene == number]
            self.mean[number] = own.mean(0)
            self.deviation[number] = own.std(0, unbiased=False).clamp_min(LEAST_SHARE)

    def forward(self, pictures: Mapping[str, Tensor]) -> Tensor:
        """Positions (n, objects, 3) of pictures name -> (n, height, width, 3) uint8.

        (n, objects, 4) with an uncertainty: the log of the squared error, the mean of the three, to be expected.
        """
        keypoints, judged, _ = self._looked(pictures)
        told = self._regressed(keypoints)
        if self.scene is None:
            positions = told[:, 0]
        else:
            likeliest = self.scene(keypoints).argmax(-1, keepdim=True)
            chosen = (torch.arange(self.scenes, device=told.device) == likeliest).to(told)
            positions = ((told * self.deviation + self.mean) * chosen[..., None, None]).sum(1)
        return torch.cat([positions, *judged], 2)

    def errors(
        self, pictures: Mapping[str, Tensor], truth: Tensor, scene: Tensor, pixels: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Squared errors (n, objects, 3) of positions in pictures, in the scenes' variances; truth (n, objects, 3).

        And nats, (), by which scenes (n,), pixels (see `Sights`) and errors are not expected.
        """
        keypoints, judged, looked = self._looked(pictures)
        rows = torch.arange(scene.shape[0])
        off = self._regressed(keypoints)[rows, scene] - (truth - self.mean[scene]) / self.deviation[scene]
        errors, unexpected = off.square(), off.new_zeros(())
        if self.scene is not None:
            unexpected = unexpected + F.cross_entropy(self.scene(keypoints), scene)
        for name, where in pixels.items():
            unexpected = unexpected + HEAT * missed(looked[name][:, : self.objects], where, pictures[name].shape[1:3])
        for told in judged:
            expected, true = told[..., 0], (errors * self.deviation[scene].square()).detach().mean(-1)
            unexpected = unexpected + 0.5 * (true * (-expected).exp() + expected).mean()
        return errors, unexpected

    def _looked(self, pictures: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        """Keypoints (n, size), how uncertain it is (n, objects, 1) if that is told, and heatmaps by the picture."""
        names = [s.name for s in self.encoders.pictures]
        looked = {name: self.encoders.looked(name, pictures[name]) for name in names}
        if self.encoders.flat:
            return torch.cat([some.relu().flatten(1) for some in looked.values()], 1), [], {}
        keypoints, peaks = (torch.cat(some, 1) for some in zip(*map(pointed, looked.values()), strict=True))
        if self.uncertainty is None:
            return keypoints, [], looked
        seen = torch.cat([keypoints, peaks.log()], 1).detach()  # it does not teach where to look
        return keypoints, [self.uncertainty(seen)[..., None]], looked

    def _regressed(self, keypoints: Tensor) -> Tensor:
        """Positions (n, scenes, objects, 3) in each scene, in its own unit."""
        told = self.affine(keypoints) + self.residual(keypoints)
        positions: Tensor = told.unflatten(1, (self.scenes, self.objects, 3))
        return positions


def missed(looked: Tensor, where: Tensor, size: torch.Size) -> Tensor:
    """Nats, (), by which heatmaps (n, k, rows, columns) do not say where something is (n, k, 2), right and down.

    Between the four places around it, -1 to 1 from edge to edge of pictures of `size`; what is beyond is at the edge.
    """
    rows, columns = looked.shape[2:]
    last = torch.tensor([columns - 1, rows - 1])
    across = torch.tensor([size[1], size[0]])
    at = ((where + 1.0) / 2.0 * across - 0.5) * (last + 1) / across
    at = at.minimum(last - 1e-3).clamp_min(0.0)
    low, share = at.long(), at.frac()
    likely = looked.flatten(2).log_softmax(-1)
    nats = looked.new_zeros(())
    for right, down in ((0, 0), (0, 1), (1, 0), (1, 1)):
        cell = (low[..., 1] + down) * columns + low[..., 0] + right
        weight = (share[..., 0] - (1 - right)).abs() * (share[..., 1] - (1 - down)).abs()
        nats = nats - (weight * likely.gather(2, cell[..., None])[..., 0]).sum() / where[..., 0].numel()
    return nats
