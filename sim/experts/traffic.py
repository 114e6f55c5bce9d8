"""Drivers to compare with: nobody is told anything; or a speed that meets the next green (GLOSA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sim.engines.sumo.demand import QUICKEST
from sim.engines.sumo.told import STARTS, YELLOW
from sim.env import Array

if TYPE_CHECKING:
    from sim.tasks.traffic import TrafficEco

EARLY = 1.0  # s: who has to wait for no longer goes on
# m/s^2, and per m/s: from this deceleration on an engine burns nothing, in HBEFA4; uphill it takes more of it.
ROLLING, DRAG, GRAVITY = 0.11, 0.0125, 9.81
SURELY, LEAST = 1.05, 0.02  # times that; and m/s^2 downhill
HARDEST = 2.0  # m/s^2
QUEUED = 2.0  # m/s: who is slower stands in a queue, which others coast up to
STANDING, EACH = 2.0, 7.5  # m between who stands, and that each of them takes of the road


def idm(task: TrafficEco, signals: Mapping[str, Array]) -> dict[str, Array]:
    """All drive as their driver does, the intelligent driver model: the largest acceleration leaves it to him."""
    return {"acceleration": np.full_like(signals["speed"], task.commands[0].high)}


def glosa(task: TrafficEco, signals: Mapping[str, Array]) -> dict[str, Array]:
    """Green-light optimal speed advice: who cannot pass at once coasts so that he arrives when it is his turn.

    After Katsaros et al. 2011 (GLOSA), with the signal's own times in the place of a prediction, and in the place of a
    lower speed the constant deceleration that meets the same time: an engine that is towed burns nothing, one that
    drives slowly does. Until it takes as much deceleration as that, he goes on as fast as he is. It is his turn when
    the queue ahead has passed (`clear`); if he has to stop, then behind it (`ahead`).
    """
    names = ("speed", "distance", "green", "change", "lasts", "limit", "gap", "leader_speed", "grade", "ahead", "clear")
    values = (signals[name].astype(np.float64) for name in names)
    speed, distance, green, change, lasts, limit, gap, leader, grade, ahead, clear = values
    limit = np.maximum(limit, 1.0)
    # From now on as fast as anybody speeds up, to the limit.
    speeding = np.maximum(limit - speed, 0.0) / QUICKEST
    soonest = speeding + np.maximum(distance - 0.5 * speeding * (speed + limit), 0.0) / limit
    turn = np.maximum(soonest, clear)
    passes = (green > 0.5) & (turn <= change + YELLOW)
    opens = np.where(green > 0.5, change + lasts, change) + STARTS
    turn = np.maximum(np.where(passes, turn, np.maximum(turn, opens)), 0.1)
    waits = (distance < task.range) & (turn > soonest + EARLY)
    meets = 2.0 * (speed * turn - distance) / turn**2
    stops = speed**2 / (2.0 * np.maximum(distance - EACH * ahead - STANDING, 0.5))
    closing = np.maximum(speed - leader, 0.0) ** 2 / (2.0 * np.maximum(gap - STANDING, 0.5))
    by_queue = (gap < task.range) & (leader < QUEUED)
    needed = np.maximum(np.where(waits, np.minimum(meets, stops), 0.0), np.where(by_queue, closing, 0.0))
    towed = SURELY * np.maximum(ROLLING + DRAG * speed + GRAVITY * grade, LEAST)
    goes_on = np.where(waits & (meets > 0.0), 0.0, task.commands[0].high)
    told = np.where(needed >= towed, -np.minimum(needed, HARDEST), goes_on)
    return {"acceleration": told.astype(np.float32)}
