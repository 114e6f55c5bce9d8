"""Gate tracks: rectangular openings that are flown through in order, random, fixed, or read from a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Double = NDArray[np.float64]
Floats = NDArray[np.floating]
COLUMNS = ("x_m", "y_m", "z_m", "yaw_deg", "pitch_deg", "width_m", "height_m")
MOST, BYTES = 64, 64_000  # gates of a track, and bytes of a file, at most
FARTHEST = 1000.0  # m of a gate from the origin
SIZES = (0.3, 10.0)  # m of an opening
BAR = 0.15  # m: how thick the bars around an opening are, and how deep; ours
SIDE = 1.5  # m of an opening, as in Kaufmann et al. 2023, "Champion-level drone racing" (Nature 620)
# Of random tracks: gates, m from one to the next, degrees between a gate's heading and the ways to it and from it,
# m of heights, the steepest way from gate to gate (rise over run), and m of the circle that they are scattered around.
COUNT, APART, TURN, HEIGHTS, STEEPEST, RADIUS = (6, 9), (5.0, 12.0), 60.0, (1.3, 4.0), 0.5, (6.0, 9.0)
TRIES = 5000


@dataclass(frozen=True, eq=False)
class GateTrack:
    """Gates in order; after the last comes the first. A gate is flown through along its x axis.

    Its axes: x the direction of flight, y to the left, z up. Yaw is from world x to the left, pitch above the horizon.
    """

    name: str
    centre: Double  # (n, 3) m, world
    yaw: Double  # (n,) rad
    pitch: Double  # (n,) rad: 0 upright, positive where it is flown upward
    size: Double  # (n, 2) m: width and height of the opening

    @cached_property
    def axes(self) -> Double:
        """(n, 3, 3): a gate's axes in its columns, world."""
        cy, sy, cp, sp = np.cos(self.yaw), np.sin(self.yaw), np.cos(self.pitch), np.sin(self.pitch)
        ahead, left = np.stack([cp * cy, cp * sy, sp], axis=1), np.stack([-sy, cy, 0.0 * cy], axis=1)
        return np.stack([ahead, left, np.cross(ahead, left)], axis=2)

    @cached_property
    def corners(self) -> Double:
        """(n, 4, 3) m, world, of the opening: upper left, upper right, lower right, lower left, as it is flown."""
        signs = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
        off = 0.5 * self.size[:, None] * signs  # (n, 4, 2)
        made: Double = self.centre[:, None] + np.einsum("nij,nkj->nki", self.axes[:, :, 1:], off)
        return made

    @property
    def length(self) -> float:
        """m from centre to centre, once around."""
        return float(np.linalg.norm(np.roll(self.centre, -1, axis=0) - self.centre, axis=1).sum())


class Openings(NamedTuple):
    """What a flight passes: openings' corners (n, 4, 3) m, world, the first one first, and how many passes it takes."""

    corners: Double
    passes: int

    def due(self, passed: Floats) -> NDArray[np.int64]:
        """The next one (steps,) when these shares (steps,) of the passes are behind it."""
        done = np.round(np.nan_to_num(np.asarray(passed, np.float64)) * self.passes).astype(np.int64)
        made: NDArray[np.int64] = done.clip(0, self.passes - 1) % len(self.corners)
        return made


def frame_distance(place: Floats, size: Floats) -> Double:
    """m (...,) from points (..., 3), in a gate's axes, to the bars around its opening (..., 2); 0 inside a bar."""
    depth = np.maximum(np.abs(place[..., 0]) - 0.5 * BAR, 0.0)
    off = np.abs(place[..., 1:]) - 0.5 * size  # beyond the edges of the opening
    beyond = np.maximum(off - BAR, 0.0)
    inside = np.maximum(-off.max(axis=-1), 0.0)  # of the opening: to its nearest edge
    made: Double = np.sqrt(depth**2 + (beyond**2).sum(axis=-1) + inside**2)
    return made


def crossing(before: Floats, after: Floats, size: Floats, radius: float) -> NDArray[np.bool_]:
    """Whether a sphere that flies from one point (..., 3) to another, in a gate's axes, passes it: (...,).

    Its centre crosses the gate's plane in the direction of flight, at least `radius` m inside the opening (..., 2).
    """
    x, ahead = before[..., 0], after[..., 0]
    share = np.clip(x / np.where(x < ahead, x - ahead, -1.0), 0.0, 1.0)[..., None]
    at = (before + share * (after - before))[..., 1:]
    clear = (np.abs(at) <= 0.5 * size - radius).all(axis=-1)
    return np.asarray((x < 0.0) & (ahead >= 0.0) & clear)


def track_of(name: str, rows: Sequence[Sequence[float]]) -> GateTrack:
    """A track of `COLUMNS` for each gate; ValueError that begins with `name` where that is none."""
    if not 2 <= len(rows) <= MOST:
        raise ValueError(f"{name}: a track needs 2 to {MOST} gates, got {len(rows)}")
    table = np.array(rows, np.float64)
    if not np.isfinite(table).all():
        raise ValueError(f"{name}: holds what is not a finite number")
    if (np.abs(table[:, :3]) > FARTHEST).any():
        raise ValueError(f"{name}: gates lie within {FARTHEST:g} m of the origin")
    if (np.abs(table[:, 3]) > 360.0).any() or (np.abs(table[:, 4]) > 90.0).any():
        raise ValueError(f"{name}: yaw is -360 to 360 degrees, pitch -90 to 90")
    size = table[:, 5:]
    if size.min() < SIZES[0] or size.max() > SIZES[1]:
        raise ValueError(f"{name}: openings are {SIZES[0]:g} to {SIZES[1]:g} m wide and high")
    made = GateTrack(name, table[:, :3], np.radians(table[:, 3]), np.radians(table[:, 4]), size)
    lowest = made.corners[:, :, 2].min(axis=1)
    if lowest.min() < 0.0:
        raise ValueError(f"{name}: the opening of gate {int(lowest.argmin()) + 1} reaches below the ground")
    for k in range(len(table)):
        place = (made.centre - made.centre[k]) @ made.axes[k]
        near = frame_distance(place, made.size[k]) < BAR
        if near.any():
            raise ValueError(f"{name}: gate {int(near.argmax()) + 1} stands in the frame of gate {k + 1}")
    following = np.linalg.norm(np.roll(made.centre, -1, axis=0) - made.centre, axis=1)
    if following.min() < 0.5:
        raise ValueError(f"{name}: gate {int(following.argmin()) + 1} is less than 0.5 m from the next")
    return made


def read_gates(path: str | Path) -> GateTrack:
    """A CSV file with a gate in each line: `COLUMNS`, whose names may stand first. Lines with # are comments.

    ValueError that names the file, and the line, where it holds no track.
    """
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as a track of gates: {error}") from None
    if len(content) > BYTES:
        raise ValueError(f"{path}: a track of gates has at most {BYTES} bytes")
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [part.strip() for part in line.split(",")]
        if not rows and tuple(parts) == COLUMNS:
            continue
        if len(parts) != len(COLUMNS):
            raise ValueError(f"{path}, line {number}: needs {len(COLUMNS)} numbers ({', '.join(COLUMNS)})")
        try:
            rows.append([float(part) for part in parts])
        except ValueError:
            raise ValueError(f"{path}, line {number}: {line[:80]!r} holds something else than numbers") from None
    return track_of(str(path), rows)


def write_gates(track: GateTrack, path: str | Path) -> None:
    """The same file of a track."""
    angles = np.degrees(np.stack([track.yaw, track.pitch], axis=1))
    table = np.concatenate([track.centre, angles, track.size], axis=1)
    lines = [",".join(COLUMNS), *(",".join(f"{value:.6g}" for value in row) for row in table)]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _flyable(centre: Double, ahead: Double) -> bool:
    """Whether gates that are flown through along `ahead` (n, 3) are spaced, and turned, as `random_gates` says."""
    way = np.roll(centre, -1, axis=0) - centre
    run, length = np.linalg.norm(way[:, :2], axis=1), np.linalg.norm(way, axis=1)
    if length.min() < APART[0] or length.max() > APART[1] or (np.abs(way[:, 2]) > STEEPEST * run).any():
        return False
    least = math.cos(math.radians(TURN))
    out, back = (way * ahead).sum(axis=1) / length, (way * np.roll(ahead, -1, axis=0)).sum(axis=1) / length
    apart = np.linalg.norm(centre[:, None] - centre[None], axis=-1) + 1e9 * np.eye(len(centre))
    return bool(min(out.min(), back.min()) > least and apart.min() > 0.8 * APART[0])


def random_gates(seed: int | tuple[int, ...], size: float = SIDE) -> GateTrack:
    """Upright gates around a loop, none too near to another, none too sharply turned; the seed decides them."""
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        n = int(rng.integers(COUNT[0], COUNT[1] + 1))
        angle = 2.0 * math.pi * (np.arange(n) + rng.uniform(-0.35, 0.35, n)) / n
        radius = rng.uniform(*RADIUS) * rng.uniform(0.6, 1.4, n)
        centre = np.stack([radius * np.cos(angle), radius * np.sin(angle), rng.uniform(*HEIGHTS, n)], axis=1)
        if rng.random() < 0.5:
            centre = centre[::-1]
        along = np.roll(centre, -1, axis=0) - np.roll(centre, 1, axis=0)
        yaw = np.arctan2(along[:, 1], along[:, 0]) + np.radians(rng.uniform(-25.0, 25.0, n))
        ahead = np.stack([np.cos(yaw), np.sin(yaw), np.zeros(n)], axis=1)
        if _flyable(centre, ahead):
            return GateTrack(f"random {seed}", centre, yaw, np.zeros(n), np.full((n, 2), size))
    raise ValueError(f"found no track of gates in {TRIES} tries")


def figure_eight(size: float = SIDE) -> GateTrack:
    """Eight gates along a lemniscate, 16 m long; where it crosses itself one way is 2 m above the other."""
    angle = 2.0 * math.pi * (np.arange(8) + 0.5) / 8.0
    x, y, z = 8.0 * np.sin(angle), 5.0 * np.sin(2.0 * angle), 2.5 + np.cos(angle)
    yaw = np.arctan2(10.0 * np.cos(2.0 * angle), 8.0 * np.cos(angle))
    rows = np.stack([x, y, z, np.degrees(yaw), 0.0 * x, size + 0.0 * x, size + 0.0 * x], axis=1)
    return track_of("figure_eight", rows.tolist())


def split_s(size: float = SIDE) -> GateTrack:
    """Seven gates, two of them above each other: the upper is flown one way, the lower back (split-S)."""
    rows = (
        (0.0, 0.0, 1.8, 0.0),
        (8.0, 0.0, 2.5, 0.0),
        (15.0, 0.0, 5.0, 0.0),
        (15.0, 0.0, 1.8, 180.0),
        (8.0, 4.0, 2.0, 150.0),
        (0.0, 7.0, 2.0, 180.0),
        (-6.0, 3.5, 1.8, 270.0),
    )
    return track_of("split_s", [(*row, 0.0, size, size) for row in rows])


FIXED = {"figure_eight": figure_eight, "split_s": split_s}
