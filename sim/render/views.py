"""Where things are in the pictures of a free camera."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPENING = 45.0  # degrees from the lower edge to the upper one, of MuJoCo's free camera


def seen_from(view: Mapping[str, Any], positions: NDArray[Any]) -> NDArray[np.float64]:
    """Where positions (..., 3), m, are in a square picture (..., 2): right and down, -1 to 1 from edge to edge.

    `view` is what `sim.render.camera.Camera.see` takes.
    """
    azimuth, elevation = np.radians([view["azimuth"], view["elevation"]])
    flat = np.array([np.cos(azimuth), np.sin(azimuth), 0.0])
    ahead = np.cos(elevation) * flat + np.array([0.0, 0.0, np.sin(elevation)])
    right = np.array([flat[1], -flat[0], 0.0])
    away = np.asarray(positions, np.float64) - (np.asarray(view["lookat"]) - view["distance"] * ahead)
    half = away @ ahead * np.tan(np.radians(OPENING) / 2.0)  # m to the edge, so far away
    return np.stack([away @ right / half, away @ np.cross(ahead, right) / half], axis=-1)
