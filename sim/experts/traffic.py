"""Drivers to compare with: nobody is told anything; or a speed that meets the next green (GLOSA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sim.env import Array

if TYPE_CHECKING:
    from sim.tasks.traffic import TrafficEco

SLOWEST = 4.0  # m/s: who would have to be slower to meet the green drives on, and stops
LATE = 2.0  # s after it turns green that the line is reached: those who stood there are still starting
HURRY = 1.0  # s before it turns red that the line is reached at the latest
REACT = 1.5  # s in which the advised speed is reached
GENTLE = 1.5  # m/s^2 at most, by which speed is taken away


def idm(task: TrafficEco, signals: Mapping[str, Array]) -> dict[str, Array]:
    """All drive as their driver does, the intelligent driver model: the largest acceleration leaves it to him."""
    return {"acceleration": np.full_like(signals["speed"], task.commands[0].high)}


def glosa(task: TrafficEco, signals: Mapping[str, Array]) -> dict[str, Array]:
    """Green-light optimal speed advice: who cannot pass on this green drives so slowly that it is green again.

    After Katsaros et al. 2011 (GLOSA), with the signal's own times in the place of a prediction.
    """
    names = ("speed", "distance", "green", "change", "lasts", "limit", "gap", "leader_speed")
    speed, distance, green, change, lasts, limit, gap, leader = (signals[name].astype(np.float64) for name in names)
    high = task.commands[0].high
    # From now on at the largest acceleration up to the limit.
    speeding = np.maximum(limit - speed, 0.0) / high
    while_speeding = speeding * 0.5 * (speed + limit)
    soonest = np.where(distance > while_speeding, speeding + (distance - while_speeding) / limit, speeding)
    passes = (green > 0.5) & (soonest <= change - HURRY)
    opens = np.where(green > 0.5, change + lasts, change) + LATE
    advised = distance / np.maximum(opens, 1e-3)
    approaches = distance < task.range
    slower = approaches & ~passes & (soonest < opens) & (advised > SLOWEST)
    wanted = np.clip((np.minimum(advised, limit) - speed) / REACT, -GENTLE, high)
    return {"acceleration": np.where(slower, wanted, high).astype(np.float32)}
