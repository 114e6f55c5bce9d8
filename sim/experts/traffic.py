"""Drivers to compare with: nobody is told anything; or a speed that meets the next green (GLOSA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sim.engines.sumo.demand import QUICKEST
from sim.env import Array

if TYPE_CHECKING:
    from sim.tasks.traffic import TrafficEco

LATE = 1.0  # s after it turns green that the line is reached: those who stood there are still starting
HURRY = -2.0  # s before it turns yellow that the line is reached at the latest; drivers use most of the yellow, too
ROLLING, DRAG = 0.14, 0.0125  # m/s^2, and per m/s: from this deceleration on an engine burns nothing, in HBEFA4
HARDEST = 2.0  # m/s^2
QUEUED = 2.0  # m/s: who is slower stands in a queue, which others coast up to
STANDING = 2.0  # m between who stands


def idm(task: TrafficEco, signals: Mapping[str, Array]) -> dict[str, Array]:
    """All drive as their driver does, the intelligent driver model: the largest acceleration leaves it to him."""
    return {"acceleration": np.full_like(signals["speed"], task.commands[0].high)}


def glosa(task: TrafficEco, signals: Mapping[str, Array]) -> dict[str, Array]:
    """Green-light optimal speed advice: who cannot pass on this green coasts so that he arrives on the next one.

    After Katsaros et al. 2011 (GLOSA), with the signal's own times in the place of a prediction, and in the place of a
    lower speed the constant deceleration that meets the same time: an engine that is towed burns nothing, one that
    drives slowly does. Until it takes as much deceleration as that, he goes on as fast as he is.
    """
    names = ("speed", "distance", "green", "change", "lasts", "limit", "gap", "leader_speed")
    speed, distance, green, change, lasts, limit, gap, leader = (signals[name].astype(np.float64) for name in names)
    limit = np.maximum(limit, 1.0)
    # From now on as fast as anybody speeds up, to the limit.
    speeding = np.maximum(limit - speed, 0.0) / QUICKEST
    while_speeding = 0.5 * speeding * (speed + limit)
    soonest = speeding + np.maximum(distance - while_speeding, 0.0) / limit
    passes = (green > 0.5) & (soonest <= change - HURRY)
    opens = np.maximum(np.where(green > 0.5, change + lasts, change) + LATE, 0.1)
    meets = 2.0 * (speed * opens - distance) / opens**2
    stops = speed**2 / (2.0 * np.maximum(distance - STANDING, 0.5))
    closing = np.maximum(speed - leader, 0.0) ** 2 / (2.0 * np.maximum(gap - STANDING, 0.5))
    by_signal = (distance < task.range) & ~passes & (soonest < opens)
    by_queue = (gap < task.range) & (leader < QUEUED)
    needed = np.maximum(np.where(by_signal, np.minimum(meets, stops), 0.0), np.where(by_queue, closing, 0.0))
    goes_on = np.where(by_signal & (meets > 0.0), 0.0, task.commands[0].high)
    told = np.where(needed >= ROLLING + DRAG * speed, -np.minimum(needed, HARDEST), goes_on)
    return {"acceleration": told.astype(np.float32)}
