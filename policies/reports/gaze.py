"""What robots with a camera that turns looked at in evaluated episodes: active perception."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.models.networks import Array
from sim.env import HasGaze, in_view, undecided

MOVING = 0.1  # rad/s: a camera that turns more slowly looks at one place


@dataclass(frozen=True)
class Gaze:
    """Of every control step of some episodes, (steps, n) each; steps after an episode's end do not count."""

    sought: str
    view: float  # degrees
    rate_hz: float
    look: Array  # rad from ahead to the left
    bearing: Array  # rad, of what is sought
    shown: NDArray[np.bool_]  # it lies in the picture
    ahead: NDArray[np.bool_]  # it would, had the camera looked ahead
    counted: NDArray[np.bool_]

    @classmethod
    def of(cls, task: HasGaze, flight: Mapping[str, Array]) -> Gaze:
        """Of a recorded flight."""
        look, bearing = flight[task.gaze][..., 0], task.bearing(flight)
        shown, ahead = in_view(task, flight, look), in_view(task, flight, np.zeros_like(look))
        return cls(task.sought, task.view, task.rate_hz, look, bearing, shown, ahead, undecided(flight))

    @classmethod
    def joined(cls, parts: Sequence[Gaze]) -> Gaze:
        """The episodes of all, which need not be equally long."""
        steps = max(len(part.look) for part in parts)

        def padded(name: str) -> Any:
            arrays = [getattr(part, name) for part in parts]
            return np.concatenate([np.pad(a, ((0, steps - len(a)), (0, 0))) for a in arrays], axis=1)

        names = ("look", "bearing", "shown", "ahead", "counted")
        one = parts[0]
        return cls(one.sought, one.view, one.rate_hz, **{name: padded(name) for name in names})

    @property
    def speed(self) -> NDArray[np.float64]:
        """rad/s (steps - 1, n) at which the camera turns against the body; NaN where it does not count."""
        turned = np.abs(np.diff(self.look.astype(np.float64), axis=0)) * self.rate_hz
        found: NDArray[np.float64] = np.where(self.counted[1:], turned, np.nan)
        return found

    def share(self, shown: NDArray[np.bool_]) -> float:
        """Of the time."""
        return float((shown & self.counted).sum() / max(1, self.counted.sum()))

    def over_time(self, shown: NDArray[np.bool_], window: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times (k,) in s, and the share of the episodes that still run then, means of so many steps each."""
        steps = len(shown) // window * window or len(shown)
        count = self.counted[:steps].reshape(-1, min(window, steps), self.counted.shape[1]).sum(axis=(1, 2))
        found = (shown & self.counted)[:steps].reshape(-1, min(window, steps), shown.shape[1]).sum(axis=(1, 2))
        kept = count > 0
        times = (np.arange(len(count)) + 0.5) * min(window, steps) / self.rate_hz
        return times[kept], found[kept] / count[kept]

    def json(self) -> dict[str, float]:
        """The numbers, ready for JSON."""
        speed = self.speed[np.isfinite(self.speed)]
        moving = float((speed > MOVING).mean()) if len(speed) else 0.0
        return {
            "in_view": self.share(self.shown),
            "in_view_looking_ahead": self.share(self.ahead),
            "head_motion": float(speed.mean()) if len(speed) else 0.0,  # rad/s
            "moving": moving,
        }
