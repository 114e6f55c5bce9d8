"""A flight in a few numbers: how well it followed its target, how far it leaned, what the guard did."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.guard import PASS, VERDICTS
from deploy.recording.flight_log import Flight

AnyArray = NDArray[Any]


def tracking_error(flight: Flight) -> AnyArray | None:
    """The distance of position and target (steps, robots) in m, NaN where one is unknown; None where there is none."""
    shapes = {s.name: s.shape for s in flight.layout.signals}
    if shapes.get("position") != (3,) or shapes.get("target_position") != (3,):
        return None
    with np.errstate(all="ignore"):
        apart = flight.values("signals.target_position").astype(np.float64) - flight.values("signals.position")
        length = np.sqrt((apart * apart).sum(axis=2))
    seen = np.isfinite(flight.steps["ages.position"]) & np.isfinite(flight.steps["ages.target_position"])
    error: AnyArray = np.where(seen & np.isfinite(length), length, np.nan)
    return error


class Numbers:
    """Gathers them piece by piece."""

    def __init__(self) -> None:
        self.steps = 0
        self._square, self._seen, self._worst, self._last = 0.0, 0, 0.0, np.zeros(0)
        self._tilt = 0.0  # degrees, the largest
        self._verdicts = np.zeros(256, np.int64)
        self._late = 0

    def add(self, flight: Flight) -> None:
        """The next piece of the log."""
        if not len(flight.steps):
            return
        self.steps += len(flight.steps)
        self._verdicts += np.bincount(flight.steps["verdict"].reshape(-1), minlength=256)
        self._late += int((flight.steps["missed"][:, 0] > 0.0).sum())
        error = tracking_error(flight)
        if error is not None and np.isfinite(error).any():
            known = error[np.isfinite(error)]
            self._square += float((known * known).sum())
            self._seen += len(known)
            self._worst = max(self._worst, float(known.max()))
            self._last = error[-1]
        if any(s.name == "rotation" and s.shape == (9,) for s in flight.layout.signals):
            upright = flight.values("signals.rotation")[:, :, 8][np.isfinite(flight.steps["ages.rotation"])]
            upright = upright[np.isfinite(upright)]
            if len(upright):
                self._tilt = max(self._tilt, float(np.degrees(np.arccos(np.clip(upright.min(), -1.0, 1.0)))))

    def lines(self) -> list[str]:
        """What there is to tell."""
        found = []
        if self._seen:
            end = self._last[np.isfinite(self._last)]
            last = f", {end.max():.3f} m at the end" if len(end) else ""
            rms = (self._square / self._seen) ** 0.5
            found.append(f"off the target by {rms:.3f} m (RMS), {self._worst:.3f} m at most{last}")
        if self._tilt:
            found.append(f"tilt at most {self._tilt:.0f} degrees")
        held = [f"{VERDICTS[k]} on {int(self._verdicts[k])}" for k in range(len(VERDICTS)) if self._verdicts[k]]
        if self._verdicts.sum() > self._verdicts[PASS]:
            found.append(f"guard, robot steps: {', '.join(held)}")
        if self._late:
            found.append(f"deadlines missed: {self._late}")
        return found
