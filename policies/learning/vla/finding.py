"""Where things are, found in pictures before anything is cloned, by eyes that do nothing else.

Words tell them nothing, and pictures are not moved under them: a clone's are, by some pixels, and a pixel may be a
centimetre on the table. Channels point (keypoints), and a perceptron makes places of where they point.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from policies.learning.encoders import SHARP, Encoders
from policies.models.vision import EncoderConfig
from sim.spec import Group


class Finder(nn.Module):
    """From pictures to places, in any unit. Its convolutions are drawn from a generator, the rest from torch's own."""

    def __init__(
        self, pictures: Group, things: int, config: EncoderConfig, hidden: int, generator: torch.Generator
    ) -> None:
        """For so many things in these pictures."""
        super().__init__()
        self.things = things
        self.eyes = Encoders(pictures, config, generator, SHARP)
        self.flat = nn.Linear(self.eyes.size, 3 * things)  # cameras see a table nearly as an affine map of it
        self.bent = nn.Sequential(nn.Linear(self.eyes.size, hidden), nn.ReLU(), nn.Linear(hidden, 3 * things))

    def forward(self, pictures: Mapping[str, Tensor]) -> Tensor:
        """(n, things, 3) of pictures name -> (n, height, width, 3) uint8."""
        points = torch.cat([self.eyes.found(s.name, pictures[s.name]) for s in self.eyes.pictures], 1)
        places: Tensor = (self.flat(points) + self.bent(points)).unflatten(1, (self.things, 3))
        return places
