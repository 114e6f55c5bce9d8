"""Localisation: where objects are, regressed from keypoints in pictures by encoders that do nothing else.

Words tell them nothing, and pictures are not moved under them: a clone's are, by some pixels, and a pixel may be a
centimetre on the table. Each channel's heatmap has a soft-argmax (a keypoint); positions are regressed from these.
Keypoints and the heights of the heatmaps' peaks may tell, too, how far off a position is likely to be (the logarithm of
a variance, as in Kendall and Gal 2017).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from policies.learning.encoders import SHARP, Encoders
from policies.models.vision import EncoderConfig
from sim.spec import Group


class Localiser(nn.Module):
    """From pictures to positions, in any unit. Convolutions are drawn from a generator, the rest from torch's own."""

    def __init__(
        self,
        pictures: Group,
        objects: int,
        config: EncoderConfig,
        hidden: int,
        generator: torch.Generator,
        uncertainty: bool = False,
    ) -> None:
        """For so many objects in these pictures."""
        super().__init__()
        if uncertainty and config.head == "flat":
            raise ValueError("network.uncertainty is read from heatmaps, which network.localiser.head=flat has not")
        self.objects = objects
        self.encoders = Encoders(pictures, config, generator, SHARP)
        size = self.encoders.size
        self.affine = nn.Linear(size, 3 * objects)  # cameras see a table nearly as an affine map of it
        self.residual = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, 3 * objects))
        self.uncertainty = None
        if uncertainty:
            peaks = size // 2  # of the heatmaps, one for each keypoint
            self.uncertainty = nn.Sequential(nn.Linear(size + peaks, hidden), nn.ReLU(), nn.Linear(hidden, objects))

    def clipped(self) -> list[list[nn.Parameter]]:
        """The parameters whose gradients are clipped together: those of positions, and of how uncertain they are.

        The likelihood's are steep where an error was not expected, and would leave nothing of the others.
        """
        judging = [] if self.uncertainty is None else [*self.uncertainty.parameters()]
        theirs = {id(parameter) for parameter in judging}
        return [[parameter for parameter in self.parameters() if id(parameter) not in theirs], judging]

    def forward(self, pictures: Mapping[str, Tensor]) -> Tensor:
        """Positions (n, objects, 3) of pictures name -> (n, height, width, 3) uint8.

        (n, objects, 4) with an uncertainty: the log of the squared error, the mean of the three, to be expected.
        """
        if self.uncertainty is None:
            keypoints = torch.cat([self.encoders.found(s.name, pictures[s.name]) for s in self.encoders.pictures], 1)
        else:
            pointed = [self.encoders.pointed(s.name, pictures[s.name]) for s in self.encoders.pictures]
            keypoints, peaks = (torch.cat(some, 1) for some in zip(*pointed, strict=True))
        positions: Tensor = (self.affine(keypoints) + self.residual(keypoints)).unflatten(1, (self.objects, 3))
        if self.uncertainty is None:
            return positions
        seen = torch.cat([keypoints, peaks.log()], 1).detach()  # it does not teach where to look
        return torch.cat([positions, self.uncertainty(seen)[..., None]], 2)
