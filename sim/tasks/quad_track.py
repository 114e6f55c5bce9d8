"""Follow a moving target with direct motor commands: a figure-eight and smooth random paths, with a short preview.

The figure-eight of "Learning to Fly in Seconds" (Eschmann et al. 2024): 1 m, period 5.5 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sim.randomize import Array
from sim.robots.quadrotors import GRAVITY
from sim.spec import Group, Signal
from sim.tasks import Recipes, targets
from sim.tasks.quad_hover import POSITION_SCALE, RATE_SCALE, VELOCITY_SCALE, HoverConfig, QuadHover
from sim.terms import Cost, Feature, namespace

WAVES = 3
PATHS = ("figure_eight", "random", "both")


@dataclass
class TrackConfig(HoverConfig):
    """Settings of quad_track: those of quad_hover, with starts near the path, and the path."""

    episode_s: float = 6.0
    position: float = 0.2
    tilt: float = 20.0
    velocity: float = 0.3
    guidance: float = 0.0
    path: str = "both"
    size: float = 1.0  # m, half the length of the figure-eight
    period: float = 5.5  # s
    preview: float = 0.1  # s between previewed points
    preview_points: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path not in PATHS:
            raise ValueError(f"path {self.path!r} is not one of {', '.join(PATHS)}")


class QuadTrack(QuadHover):
    """Score: RMS tracking error in m after the first second. Success: below `close` throughout."""

    Config = TrackConfig
    name = "quad_track"
    recipes: ClassVar[Recipes] = {
        "apg": {
            "default": {"algorithm.updates": 3000, "algorithm.hidden": [32, 32]},
            "high": {"algorithm.updates": 10000},
        }
    }
    scores = {"success": "1", "tracking_error": "m", "largest_error": "m", "control_effort": "1"}

    def __init__(self, config: TrackConfig) -> None:
        super().__init__(config)
        self.path = config
        points = config.preview_points
        self.policy: Group = (
            *self.policy,
            Signal("target_velocity", (3,), "m/s", "world", max_age=1.0),
            Signal("target_preview", (3 * points,), "m", "world", max_age=1.0),
        )
        self.features = (
            Feature("position", minus="target_position", squash=POSITION_SCALE),
            Feature("rotation"),
            Feature("linear_velocity", squash=VELOCITY_SCALE),
            Feature("linear_velocity", minus="target_velocity", squash=VELOCITY_SCALE),
            Feature("angular_velocity", scale=RATE_SCALE),
            Feature("target_preview", minus="target_position", squash=POSITION_SCALE),
            Feature("history"),
        )
        self.costs = (
            Cost("position", "position", 1.0, "norm", minus="target_position", softening=0.01),
            Cost("velocity", "linear_velocity", 0.05, minus="target_velocity"),
            Cost("body_rate", "angular_velocity", 0.002),
            Cost("attitude", "rotation", 0.02, "attitude"),
            Cost("action_change", "action_change", 0.05),
        )

    def _motions(self, rng: np.random.Generator, n: int) -> Array:
        c = self.path
        centre = np.tile(np.array([0.0, 0.0, 1.5], np.float32), (n, 1))
        eight = targets.widen(targets.figure_eight(rng, n, c.size, c.period, centre), WAVES)
        # Half of the horizontal acceleration that the airframe has to spare above its weight.
        acceleration = 0.5 * GRAVITY * np.sqrt(max(self.robot.thrust_to_weight**2 - 1.0, 0.0))
        smooth = targets.smooth_random(rng, n, 3.0, float(acceleration), WAVES, centre)
        is_eight = {"figure_eight": np.ones(n, bool), "random": np.zeros(n, bool), "both": rng.random(n) < 0.5}[c.path]
        return np.where(is_eight[:, None, None], eight, smooth)

    def reset(self, rng: np.random.Generator, n: int) -> dict[str, Array]:
        state = super().reset(rng, n)
        targets.move_start(state, self._motions(rng, n))
        return state

    def reference(self, motion_: Any, time: Any) -> dict[str, Any]:
        c = self.path
        ahead = [targets.position_at(motion_, time + (k + 1) * c.preview) for k in range(c.preview_points)]
        return {
            "target_position": targets.position_at(motion_, time),
            "target_velocity": targets.velocity_at(motion_, time),
            "target_preview": namespace(ahead[0]).concatenate(ahead, -1),
        }

    def score(self, flight: Mapping[str, Array]) -> dict[str, Array]:
        error = np.linalg.norm(flight["position"] - flight["target_position"], axis=-1)
        error = np.where(np.isfinite(error), error, np.inf)[round(self.rate_hz) :]
        return {
            "success": (error.max(axis=0) < self.close).astype(np.float32),
            "tracking_error": np.sqrt((error**2).mean(axis=0)).astype(np.float32),
            "largest_error": error.max(axis=0).astype(np.float32),
            "control_effort": np.abs(np.diff(flight["motor_command"], axis=0)).mean(axis=(0, 2)).astype(np.float32),
        }
