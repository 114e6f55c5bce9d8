"""What there is to film: recorded flights, the camera that frames them, and the colours. Shared by the renderers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import Quadrotor
from sim.rotations import normalised, rotation_matrices

Double = NDArray[np.float64]

FIELD_OF_VIEW = 35.0  # degrees, vertical
AZIMUTH, ELEVATION = 112.0, -22.0  # degrees, of the viewing direction
SMALLEST_VIEW = 0.7  # m, radius of what the camera keeps in view
LARGEST_DEPARTURE = 3.0  # m: a vehicle that strays further from all targets leaves the picture
MARGIN = 0.82  # of half a picture, within which all is that is to be seen
VISIBLE_SPAN, SMALLEST_SPAN = 0.21, 0.07  # of the view's diameter: smaller vehicles are drawn larger
TRAIL_S = 1.0  # s of past flight shown behind each vehicle
COLUMNS = (1, 2, 3, 2, 3, 3, 4, 4)  # of a formation of so many vehicles, the first of one
APART = (0.9, 3.5)  # m between neighbours of a formation
SETTLED, STILL = 0.05, 0.2  # m off the target, m/s: nothing moves any more
AFTERWARDS, SHORTEST = 0.8, 2.0  # s that a film goes on then; s that it lasts at least
TURNS = 1.8  # 1/s that a rotor is drawn to turn at its full speed: real ones would stand still in a film, or go back
IDLE = 0.15  # of that, at the command 0

# Linear in the display's values, 0..1.
SKY, HORIZON, GROUND, LINES = (0.52, 0.63, 0.78), (0.84, 0.88, 0.92), (0.72, 0.76, 0.81), (0.87, 0.90, 0.93)
FRAME, FRONT, BACK, TARGET = (0.13, 0.14, 0.17), (0.96, 0.42, 0.10), (0.10, 0.35, 0.85), (0.10, 0.62, 0.36)
SHADOW, GATE, PILLAR = (0.30, 0.33, 0.38), (0.88, 0.36, 0.14), (0.62, 0.56, 0.50)
TRAILS = ((0.12, 0.47, 0.71), (0.84, 0.37, 0.00), (0.46, 0.34, 0.71), (0.00, 0.53, 0.46), (0.80, 0.25, 0.51))


@dataclass(frozen=True)
class Film:
    """Flights sampled at the film's frame rate, and how to look at them."""

    position: Double  # (frames, n, 3), m
    rotation: Double  # (frames, n, 3, 3), body to world
    target: Double  # (frames, n, 3), m
    spin: Double  # (frames, n, rotors), rad that each rotor has turned, counter-clockwise from above
    openings: Double  # (k, 4, 3), m, corners of what is flown through; k may be 0
    due: NDArray[np.int64]  # (frames,), the next one
    pillars: Double  # (m, 3), m, x, y and radius of upright cylinders; m may be 0
    robot: Quadrotor
    fps: int
    width: int
    height: int
    centre: Double  # (3,), m, what the camera looks at
    radius: float  # m, of what it keeps in view
    enlargement: float  # of the vehicles
    ground: float  # m, height of the drawn floor: just below the flight, not at 0, where the physics has none

    @property
    def top(self) -> float:
        """Of pillars, in m: above all vehicles."""
        return float(self.position[..., 2].max()) + 0.2 * self.radius

    @property
    def distance(self) -> float:
        """From the camera to what it looks at, in m."""
        return self.radius / float(np.sin(np.radians(FIELD_OF_VIEW / 2.0)))

    def trail(self, frame: int) -> Double:
        """The last positions (m, n, 3) up to this frame."""
        return self.position[max(0, frame - round(TRAIL_S * self.fps)) : frame + 1]


def apart(position: Double, target: Double) -> tuple[Double, Double]:
    """Vehicles of worlds of their own as a formation: the same flights (steps, n, 3), moved beside one another.

    The middle of each one's targets is at its place in the grid, at one height.
    """
    n = position.shape[1]
    columns = COLUMNS[n - 1] if n <= len(COLUMNS) else int(np.ceil(np.sqrt(n)))
    middle = 0.5 * (target.min(axis=0) + target.max(axis=0))
    reach = np.abs(np.concatenate([position, target]) - middle)[..., :2].max(axis=(0, 2))  # m, of each
    spacing = float(np.clip(1.7 * np.median(reach), *APART))
    row, column = np.divmod(np.arange(n), columns)
    rows = -(-n // columns)
    # Seen from the camera: columns from left to right, rows behind each other; the last one may be short.
    inside = np.where(row == rows - 1, n - columns * (rows - 1), columns)
    across, away = spacing * (column - 0.5 * (inside - 1)), 1.5 * spacing * (row - 0.5 * (rows - 1))
    look = np.radians(AZIMUTH)
    right, forward = np.array([np.sin(look), -np.cos(look)]), np.array([np.cos(look), np.sin(look)])
    place = np.zeros((n, 3))
    place[:, :2] = across[:, None] * right + away[:, None] * forward
    return position - middle + place, target - middle + place


def decided(position: Double, target: Double, rate_hz: float) -> int:
    """Control steps until nothing moves any more, and a little: of a flight (steps, n, 3) to targets that stand."""
    if len(position) < 2 or np.ptp(target, axis=0).max() > 1e-6:
        return len(position)
    speed = np.linalg.norm(np.diff(position, axis=0, append=position[-1:]), axis=2) * rate_hz
    busy = np.flatnonzero(((np.linalg.norm(position - target, axis=2) > SETTLED) | (speed > STILL)).any(axis=1))
    last = (int(busy[-1]) if len(busy) else 0) + round(AFTERWARDS * rate_hz)
    return min(len(position), max(last, round(SHORTEST * rate_hz)))


def turned(motors: NDArray[np.floating] | None, robot: Quadrotor, steps: int, n: int, rate_hz: float) -> Double:
    """rad (steps, n, rotors) of rotors under commands (steps, n, rotors) from 0 to 1: slowly enough to be seen."""
    count = len(robot.rotor_position)
    told = np.full((steps, n, count), robot.hover_command) if motors is None else np.nan_to_num(motors)
    rate = TURNS * (IDLE + (1.0 - IDLE) * np.clip(told, 0.0, 1.0)) * -np.sign(robot.rotor_direction)
    angle: Double = 2.0 * np.pi * np.cumsum(rate, axis=0) / rate_hz
    return angle


def film(
    position: NDArray[np.floating],
    quaternion: NDArray[np.floating],
    target: NDArray[np.floating],
    robot: Quadrotor,
    rate_hz: float,
    fps: int,
    size: tuple[int, int],
    motors: NDArray[np.floating] | None = None,
    openings: Double | None = None,
    due: NDArray[np.int64] | None = None,
    pillars: Double | None = None,
) -> Film:
    """A film of `n` vehicles from recordings (steps, n, k) at `rate_hz`, in frames of `size` (width, height) pixels.

    They share a world; `quaternion` is (steps, n, 4), or a rotation matrix (steps, n, 9). `motors` (steps, n, rotors),
    0 to 1, turn their rotors. Of `openings` (k, 4, 3) in m the one of the number `due` (steps,) is flown through next.
    `pillars` (m, 3), x, y and radius in m, stand around. A vehicle whose state becomes NaN stays where it was last.
    """
    steps, n = position.shape[:2]
    if (
        position.shape != (steps, n, 3)
        or quaternion.shape not in ((steps, n, 4), (steps, n, 9))
        or target.shape != (steps, n, 3)
    ):
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
    gates = np.zeros((0, 4, 3)) if openings is None else openings
    seen = np.concatenate([near.reshape(-1, 3), goal.reshape(-1, 3), gates.reshape(-1, 3)])
    centre = (seen.min(0) + seen.max(0)) / 2.0
    span = 2.0 * robot.extent
    radius = max(SMALLEST_VIEW, _framed(seen - centre, size))
    return Film(
        position=pose[:, :, :3],
        rotation=_turns(pose[:, :, 3:]),
        target=goal,
        spin=turned(motors, robot, steps, n, rate_hz)[frames],
        openings=gates,
        due=np.zeros(len(frames), np.int64) if due is None else due[frames],
        pillars=np.zeros((0, 3)) if pillars is None else pillars,
        robot=robot,
        fps=fps,
        width=size[0],
        height=size[1],
        centre=centre,
        radius=radius,
        enlargement=_larger(pose[:, :, :3], span, 2.0 * radius),
        ground=0.0 if len(gates) else float(seen[:, 2].min()) - 0.3 * radius,
    )


def axes() -> Double:
    """The camera's right, down and forward as rows (3, 3), world."""
    azimuth, elevation = np.radians(AZIMUTH), np.radians(ELEVATION)
    forward = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    return np.stack([right, -np.cross(right, forward), forward])


def _framed(points: Double, size: tuple[int, int]) -> float:
    """m: a film's radius with which all points (m, 3), from its centre, lie within MARGIN of a picture of that size."""
    slope = MARGIN * np.tan(np.radians(FIELD_OF_VIEW / 2.0)) * np.array([size[0] / size[1], 1.0])
    local = points @ axes().T
    needed = (np.abs(local[:, :2]) / slope - local[:, 2:]).max()
    return float(needed * np.sin(np.radians(FIELD_OF_VIEW / 2.0)))


def _larger(position: Double, span: float, view: float) -> float:
    """By how much vehicles (frames, n, 3) of that span (m) are drawn larger: never so that apart they seem to touch."""
    wanted, n = VISIBLE_SPAN * view / span, position.shape[1]
    if n > 1:
        first, second = np.triu_indices(n, 1)
        nearest = float(np.linalg.norm(position[:, first] - position[:, second], axis=2).min())
        wanted = min(wanted, max(nearest / span, SMALLEST_SPAN * view / span))
    return max(1.0, wanted)


def _turns(turn: Double) -> Double:
    """Matrices (..., 3, 3) of quaternions (..., 4) or of rows of matrices (..., 9)."""
    if turn.shape[-1] == 9:
        return turn.reshape(*turn.shape[:-1], 3, 3)
    return rotation_matrices(normalised(turn))


def _last_finite(pose: Double) -> Double:
    """Poses (steps, n, k) in which each NaN is replaced by the vehicle's last finite pose."""
    finite = np.asarray(np.isfinite(pose).all(axis=2))
    if not finite[0].all():
        raise ValueError("a recording must begin with finite positions and quaternions")
    last = np.maximum.accumulate(np.where(finite, np.arange(len(pose))[:, None], 0), axis=0)
    return np.take_along_axis(pose, last[:, :, None], axis=0)
