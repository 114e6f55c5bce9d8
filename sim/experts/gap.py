"""Follow the gap (Sezer and Gokasan 2012), softly: steer to where a lidar sees furthest, and no faster than it is free.

It needs neither map nor pose. All of it is data, a few sums over what the beams say, so that it can be exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.env import Array
from sim.spec import limits, unpack

if TYPE_CHECKING:
    from sim.tasks.race import CarRace

SIDE = 1.3  # rad: where beams look aside
NEVER = -30.0  # how much a direction is liked in which nobody can go


@dataclass(frozen=True)
class Gap:
    """Commands in [-1, 1] from beams (n, b), each 0 to 3: m / sqrt(1 + (m / 3)^2).

    The direction is the mean of the beams' own, weighted by exp(sharpness * what they say + liking).
    """

    angles: Array  # (b,) rad to the left of ahead
    liking: Array  # (b,) of directions
    ahead: Array  # (b,) weights of what counts as free ahead, 1 in all
    aside: Array  # (b,) weights of what is free to the left, less what is to the right
    # The fastest without a touch of 41 sets drawn at random, 24 laps each, as in training.
    sharpness: float = 7.5
    turning: float = 1.1  # per rad of the direction
    centring: float = 0.36
    slowest: float = -0.76
    free: float = 0.33  # of the speed, for what is free ahead
    bend: float = 0.48  # of the speed, less for each rad of the direction

    def act(self, beams: Array) -> Array:
        """Steering and speed (n, 2)."""
        said = np.float32(self.sharpness) * beams + self.liking
        weight = np.exp(said - said.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        where = weight @ self.angles
        steering = np.float32(self.turning) * where + np.float32(self.centring) * (beams @ self.aside)
        speed = self.slowest + self.free * (beams @ self.ahead) - self.bend * np.abs(where)
        made: Array = np.clip(np.stack([steering, speed], axis=1), -1.0, 1.0).astype(np.float32)
        return made


def gap(angles: Array, widest: float = 1.6, straight: float = 0.85, narrow: float = 0.18) -> Gap:
    """The one for beams that look there: nothing beyond `widest` rad is steered for, and rather straight on."""
    liking = np.where(np.abs(angles) < widest, -((angles / straight) ** 2), NEVER).astype(np.float32)
    ahead = np.exp(-((angles / narrow) ** 2)).astype(np.float32)
    beside = np.exp(-(((np.abs(angles) - SIDE) / (0.25 * SIDE)) ** 2)) * np.sign(angles)
    return Gap(angles, liking, ahead / ahead.sum(), (beside / np.abs(beside).sum()).astype(np.float32))


def follow_gap(task: CarRace, signals: Mapping[str, Array]) -> dict[str, Array]:
    """Commands for signals (n, k), `lidar` among them."""
    low, high = limits(task.commands)
    action = task.gap.act(task.features[0].evaluate({"lidar": signals["lidar"]}).astype(np.float32))
    return unpack(task.commands, low + np.float32(0.5) * (action + np.float32(1.0)) * (high - low))
