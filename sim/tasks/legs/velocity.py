"""Walk as told, or stand: any legged robot, from its MJCF or URDF file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sim.env import Array, outcome_scores
from sim.tasks.legs.legged import Legged, LeggedConfig
from sim.tasks.legs.walking import LOADED, Walking

TREMBLE = 0.01  # of a command's range: the noise of a mediocre expert's legs


class Velocity(Legged):
    """Success: an episode without a fall, in which the velocity was `error` (0.25 m/s) off at most, on average."""

    name = "velocity"
    scores = {"success": "%", "duration": "s", "velocity_error": "m/s", "fallen": "%", "distance": "m", "swing": "s"}

    def __init__(self, config: LeggedConfig | None = None) -> None:
        super().__init__(config)
        self.corruption: dict[str, float] = {s.name: TREMBLE * (s.high - s.low) for s in self.commands}

    def expert(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """Stands, whatever it is told: nobody here can walk with every robot."""
        rows = len(signals["height"])
        return {s.name: np.zeros((rows, *s.shape), np.float32) for s in self.commands}

    def open(self, num: int, seed: int) -> Walking:
        return Walking(self, num, seed)

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        return outcome_scores(flight, self.rate_hz) | walked(flight, self.rate_hz)


def walked(flight: Mapping[str, Array], rate_hz: float) -> dict[str, Array]:
    """How well robots walked (n,), before they fell or were there; see `Velocity.scores`."""
    fell, there = (flight[name][..., 0] > 0.0 for name in ("terminated", "success"))
    ended = fell | there
    alive = (ended.cumsum(axis=0) == ended) & ~fell  # what comes after the end says nothing
    error = np.linalg.norm(flight["linear_velocity"][..., :2] - flight["target_velocity"], axis=-1)
    air = (flight["foot_load"] <= LOADED) & alive[..., None]  # (steps, n, feet)
    steps = air & ~np.concatenate([np.zeros_like(air[:1]), air[:-1]])
    found = {
        "velocity_error": np.where(alive, error, 0.0).sum(axis=0) / np.maximum(alive.sum(axis=0), 1),
        "fallen": fell.any(axis=0),
        "distance": np.where(alive, flight["linear_velocity"][..., 0], 0.0).sum(axis=0) / rate_hz,
        "swing": air.sum(axis=(0, 2)) / np.maximum(steps.sum(axis=(0, 2)), 1) / rate_hz,  # s in the air, of each step
    }
    return {name: np.asarray(values, np.float32) for name, values in found.items()}
