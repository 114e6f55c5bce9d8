"""What there is to film: recorded flights, the camera that frames them, and the colours. Shared by the renderers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import Quadrotor
from sim.rotations import normalised, rotation_matrices

Double = NDArray[np.float64]

FIELD_OF_VIEW = 35.0  # degrees, vertical
AZIMUTH, ELEVATION = 125.0, -24.0  # degrees, of the viewing direction
SMALLEST_VIEW = 0.7  # m, radius of what the camera keeps in view
LARGEST_DEPARTURE = 3.0  # m: a vehicle that strays further from all targets leaves the picture
VISIBLE_SPAN = 0.17  # of the view's diameter: smaller vehicles are drawn larger
TRAIL_S = 1.5  # s of past flight shown behind each vehicle

# Linear in the display's values, 0..1.
SKY, HORIZON, GROUND, LINES = (0.80, 0.87, 0.95), (0.93, 0.95, 0.97), (0.90, 0.91, 0.92), (0.74, 0.77, 0.80)
FRAME, FRONT, BACK, TARGET = (0.16, 0.17, 0.20), (0.93, 0.38, 0.16), (0.30, 0.42, 0.56), (0.12, 0.62, 0.38)
TRAILS = ((0.12, 0.47, 0.71), (0.84, 0.37, 0.00), (0.46, 0.34, 0.71), (0.00, 0.53, 0.46), (0.80, 0.25, 0.51))


@dataclass(frozen=True)
class Film:
    """Flights sampled at the film's frame rate, and how to look at them."""

    position: Double  # (frames, n, 3), m
    rotation: Double  # (frames, n, 3, 3), body to world
    target: Double  # (frames, n, 3), m
    robot: Quadrotor
    fps: int
    width: int
    height: int
    centre: Double  # (3,), m, what the camera looks at
    radius: float  # m, of what it keeps in view
    enlargement: float  # of the vehicles
    ground: (
        float  # m, height of the drawn floor, for the shadows: just below the flight, not at 0 (the physics has none)
    )

    @property
    def distance(self) -> float:
        """From the camera to what it looks at, in m."""
        return self.radius / float(np.sin(np.radians(FIELD_OF_VIEW / 2.0)))

    def trail(self, frame: int) -> Double:
        """The last positions (m, n, 3) up to this frame."""
        return self.position[max(0, frame - round(TRAIL_S * self.fps)) : frame + 1]


def film(
    position: NDArray[np.floating],
    quaternion: NDArray[np.floating],
    target: NDArray[np.floating],
    robot: Quadrotor,
    rate_hz: float,
    fps: int,
    size: tuple[int, int],
) -> Film:
    """A film of `n` vehicles from recordings (steps, n, k) at `rate_hz`, in frames of `size` (width, height) pixels.

    A vehicle whose state becomes NaN stays where it was last.
    """
    steps, n = position.shape[:2]
    if position.shape != (steps, n, 3) or quaternion.shape != (steps, n, 4) or target.shape != (steps, n, 3):
        shapes = f"{position.shape}, {quaternion.shape} and {target.shape}"
        raise ValueError(
            f"position, quaternion and target must be (steps, n, 3), (steps, n, 4), (steps, n, 3), got {shapes}"
        )
    if steps < 1 or n < 1 or fps < 1 or not rate_hz > 0.0:
        raise ValueError(f"a film needs steps, vehicles, fps and rate_hz, got {steps}, {n}, {fps} and {rate_hz}")
    pose = _last_finite(np.concatenate([position, quaternion], axis=2).astype(np.float64))
    frames = np.minimum((np.arange(max(1, int(steps * fps / rate_hz))) * rate_hz / fps).astype(int), steps - 1)
    pose, goal = pose[frames], np.asarray(target, np.float64)[frames]
    near = np.clip(pose[:, :, :3], goal.min((0, 1)) - LARGEST_DEPARTURE, goal.max((0, 1)) + LARGEST_DEPARTURE)
    seen = np.concatenate([near, goal]).reshape(-1, 3)
    centre = (seen.min(0) + seen.max(0)) / 2.0
    radius = max(SMALLEST_VIEW, 1.05 * float(np.linalg.norm(seen - centre, axis=1).max()))
    span = 2.0 * (float(np.linalg.norm(robot.rotor_position, axis=1).max()) + robot.propeller_radius)
    return Film(
        position=pose[:, :, :3],
        rotation=rotation_matrices(normalised(pose[:, :, 3:])),
        target=goal,
        robot=robot,
        fps=fps,
        width=size[0],
        height=size[1],
        centre=centre,
        radius=radius,
        enlargement=max(1.0, VISIBLE_SPAN * 2.0 * radius / span),
        ground=float(seen[:, 2].min()) - 0.3 * radius,
    )


def _last_finite(pose: Double) -> Double:
    """Poses (steps, n, 7) in which each NaN is replaced by the vehicle's last finite pose."""
    finite = np.asarray(np.isfinite(pose).all(axis=2))
    if not finite[0].all():
        raise ValueError("a recording must begin with finite positions and quaternions")
    last = np.maximum.accumulate(np.where(finite, np.arange(len(pose))[:, None], 0), axis=0)
    return np.take_along_axis(pose, last[:, :, None], axis=0)
