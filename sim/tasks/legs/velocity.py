"""Walk as told, or stand: any legged robot, from its MJCF or URDF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.env import Array, outcome_scores
from sim.tasks.legs.legged import Legged, LeggedConfig
from sim.tasks.legs.walking import LOADED, SLOWEST, Walking

# Of who walks. `swing`: how long a foot is in the air, in each step; `clearance`: how high its sole is then at most;
# `bounces`: how often each foot leaves the floor for less than SHORTEST; `height`: the base's.
SCORES = {
    "success": "%",
    "duration": "s",
    "velocity_error": "m/s",
    "fallen": "%",
    "distance": "m",
    "swing": "s",
    "clearance": "m",
    "bounces": "1/s",
    "height": "m",
}
SHORTEST = 0.08  # s: in the air for less, a foot makes no step
TREMBLE = 0.01  # of a command's range: the noise of a mediocre expert's legs


# With a rhythm these as well, or instead of the usual: else it is kept on the spot, and low.
AHEAD = {"velocity": 2.5, "turn_rate": 1.0, "height": -10.0}
WIDER = 0.5  # of the fastest that is told: the error of which the reward is 1/e then


@dataclass
class VelocityConfig(LeggedConfig):
    """Settings of velocity."""

    gait: bool = True


class Velocity(Legged):
    """Success: an episode without a fall, in which the velocity was `error` (0.25 m/s) off at most, on average."""

    Config = VelocityConfig
    name = "velocity"
    scores = SCORES

    def __init__(self, config: LeggedConfig | None = None) -> None:
        super().__init__(config)
        self.corruption: dict[str, float] = {s.name: TREMBLE * (s.high - s.low) for s in self.commands}

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """Stands, whatever it is told: nobody here can walk with every robot."""
        rows = len(signals["height"])
        return {s.name: np.zeros((rows, *s.shape), np.float32) for s in self.commands}

    def open(self, num: int, seed: int) -> Walking:
        return Told(self, num, seed)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        return outcome_scores(flight, self.rate_hz) | walked(flight, self.rate_hz)


class Told(Walking):
    """Worlds of `Velocity`."""

    def __init__(self, task: Legged, num: int, seed: int, threads: int | None = None) -> None:
        super().__init__(task, num, seed, threads)
        config = task.config
        if config.gait:
            self.weights = self.weights | AHEAD
            self._width = WIDER * max(*np.abs(config.forward), config.sideways, SLOWEST)


def walked(flight: Mapping[str, Array], rate_hz: float) -> dict[str, Array]:
    """How well robots walked (n,), before they fell or were there; see `SCORES`."""
    fell, there = (flight[name][..., 0] > 0.0 for name in ("terminated", "success"))
    ended = fell | there
    alive = (ended.cumsum(axis=0) == ended) & ~fell  # what comes after the end says nothing
    lasted = np.maximum(alive.sum(axis=0), 1)
    error = np.linalg.norm(flight["linear_velocity"][..., :2] - flight["target_velocity"], axis=-1)
    air = (flight["foot_load"] <= LOADED) & alive[..., None]  # (steps, n, feet)
    high, since = np.zeros((2, *air.shape[1:]))  # m and control steps, of each foot's time in the air so far
    steps, bounces, swings, lifts = np.zeros((4, air.shape[1]))
    for now, height in zip(air, flight["foot_height"], strict=True):
        ended, long = ~now & (since > 0), since >= SHORTEST * rate_hz
        steps += (ended & long).sum(axis=1)
        bounces += (ended & ~long).sum(axis=1)
        swings += np.where(ended & long, since, 0.0).sum(axis=1)
        lifts += np.where(ended & long, high, 0.0).sum(axis=1)
        high, since = np.where(now, np.maximum(high, height), 0.0), np.where(now, since + 1.0, 0.0)
    found = {
        "velocity_error": np.where(alive, error, 0.0).sum(axis=0) / lasted,
        "fallen": fell.any(axis=0),
        "distance": np.where(alive, flight["linear_velocity"][..., 0], 0.0).sum(axis=0) / rate_hz,
        "swing": swings / np.maximum(steps, 1.0) / rate_hz,
        "clearance": lifts / np.maximum(steps, 1.0),
        "bounces": bounces / lasted / air.shape[2] * rate_hz,
        "height": np.where(alive, flight["height"][..., 0], 0.0).sum(axis=0) / lasted,
    }
    return {name: np.asarray(values, np.float32) for name, values in found.items()}
