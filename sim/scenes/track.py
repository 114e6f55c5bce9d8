"""Race tracks: closed centrelines with walls on either side, random, oval, or read from a file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Double = NDArray[np.float64]
SPACING = 0.1  # m between points of a centreline, about
FEWEST = 8  # points of a file
TEXT, LONGEST = 1 << 22, 2000.0  # of a file: bytes, and m of its track
WIDEST = 20.0  # m from a centreline to its wall
FURTHEST = 1e6  # m that a point may lie away
COLUMN = np.array([1 << 31, 1])  # a cell's place in a grid -> its number
WIDTH = 1.6  # m from wall to wall
HEIGHT = 0.33  # m of walls: ours, about as high as the air ducts around tracks of F1TENTH
APART = 0.3  # m that walls of different parts of a random track keep from one another
TIGHTEST = 1.2  # m: the smallest radius of a random bend
LENGTHS = (40.0, 50.0)  # m of random tracks
WAVES, ROUGHNESS = 6, 0.25  # of the outline of a random track over an angle: how many, and their size
TRIES = 2000
COLUMNS = ("x_m", "y_m", "w_tr_right_m", "w_tr_left_m")


@dataclass(frozen=True, eq=False)
class Track:
    """A closed track. Points are about SPACING apart, all as far; `left` and `right` are walls' distances from them.

    `outlines`: the left and the right wall, closed lines (k, 2) m, where they are not simply as far beside the points.
    """

    name: str
    centre: Double  # (n, 2) m, in the direction of driving
    left: Double  # (n,) m
    right: Double
    outlines: tuple[Double, Double] | None = None

    @property
    def spacing(self) -> float:
        """m from one point to the next."""
        return float(np.linalg.norm(self.centre[1] - self.centre[0]))

    @property
    def length(self) -> float:
        """m along the centreline."""
        return float(np.linalg.norm(np.roll(self.centre, -1, axis=0) - self.centre, axis=1).sum())

    @cached_property
    def heading(self) -> Double:
        """(n, 2): unit vectors along it."""
        along = np.roll(self.centre, -1, axis=0) - np.roll(self.centre, 1, axis=0)
        made: Double = along / np.linalg.norm(along, axis=1, keepdims=True)
        return made

    def wall(self, side: float) -> Double:
        """The points (n, 2) of its left (side 1.0) or right (-1.0) wall."""
        if self.outlines:
            return self.outlines[0 if side > 0.0 else 1]
        normal = np.stack([-self.heading[:, 1], self.heading[:, 0]], axis=1)
        return self.centre + side * (self.left if side > 0.0 else self.right)[:, None] * normal


def area(line: Double) -> float:
    """m^2 inside a closed line (n, 2); negative where it runs to the right."""
    x, y = line.T
    return 0.5 * float(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)))


def spread(points: Double, *beside: Double, step: float = SPACING) -> tuple[Double, ...]:
    """A closed line's points (n, 2), and numbers (n,) beside them, at equal steps of about so many m along it."""
    closed = np.concatenate([points, points[:1]])
    for _ in range(3):  # chords of the points that are found are a little shorter than the way
        steps = np.linalg.norm(np.diff(closed, axis=0), axis=1)
        way = np.concatenate([[0.0], np.cumsum(steps)])
        at = np.linspace(0.0, way[-1], max(FEWEST, round(way[-1] / step)), endpoint=False)
        made = np.stack([np.interp(at, way, closed[:, k]) for k in (0, 1)], axis=1)
        beside = tuple(np.interp(at, way, np.append(values, values[0])) for values in beside)
        closed = np.concatenate([made, made[:1]])
    return (made, *beside)


def _crossing(line: Double, other: Double) -> Double | None:
    """Where a closed line crosses another, or itself, if it does; parts that follow one another do not count.

    Only pieces in the same or neighbouring cells of a grid are compared, whose cells are as large as the longest piece.
    """
    a, b = line, np.roll(line, -1, axis=0)
    c, d = other, np.roll(other, -1, axis=0)

    def side(p: Double, q: Double, r: Double) -> Double:
        """Of r from lines p to q, all (n, 2): (n,)."""
        made: Double = (q[:, 0] - p[:, 0]) * (r[:, 1] - p[:, 1]) - (q[:, 1] - p[:, 1]) * (r[:, 0] - p[:, 0])
        return made

    size = max(np.abs(b - a).max(), np.abs(d - c).max())
    ours, theirs = (np.floor(0.5 * (p + q) / size).astype(np.int64) for p, q in ((a, b), (c, d)))
    key = theirs @ COLUMN
    order = np.argsort(key, kind="stable")
    key = key[order]
    found: list[int] = []
    for step in np.stack(np.meshgrid((-1, 0, 1), (-1, 0, 1)), axis=-1).reshape(-1, 2):
        wanted = (ours + step) @ COLUMN
        first, last = np.searchsorted(key, wanted, "left"), np.searchsorted(key, wanted, "right")
        count = last - first
        one = np.repeat(np.arange(len(a)), count)
        two = order[np.arange(len(one)) + np.repeat(first - np.cumsum(count) + count, count)]
        across = (side(a[one], b[one], c[two]) * side(a[one], b[one], d[two]) < 0.0) & (
            side(c[two], d[two], a[one]) * side(c[two], d[two], b[one]) < 0.0
        )
        if line is other:
            near = np.abs(one - two)
            across &= (near > 1) & (near < len(a) - 1)
        found += one[across].tolist()
    return a[min(found)] if found else None


def track_of(name: str, points: Double, left: Double, right: Double) -> Track:
    """A track along points (n, 2) m; ValueError that begins with `name` where that is none."""
    if not (np.isfinite(points).all() and np.isfinite(left).all() and np.isfinite(right).all()):
        raise ValueError(f"{name}: holds what is not a finite number")
    if np.abs(points).max(initial=0.0) > FURTHEST:
        raise ValueError(f"{name}: holds a point further than {FURTHEST:g} m away")
    if len(points) > 1 and np.allclose(points[0], points[-1], atol=1e-6):  # said twice
        points, left, right = points[:-1], left[:-1], right[:-1]
    if len(points) < FEWEST:
        raise ValueError(f"{name}: a track needs at least {FEWEST} points, got {len(points)}")
    if min(left.min(), right.min()) <= 0.0:
        raise ValueError(f"{name}: distances from the centreline to the walls must be positive")
    if max(left.max(), right.max()) > WIDEST:
        raise ValueError(
            f"{name}: a wall is {max(left.max(), right.max()):.4g} m from the centreline, at most {WIDEST:g}"
        )
    steps = np.linalg.norm(np.roll(points, -1, axis=0) - points, axis=1)
    if not steps.sum() <= LONGEST:
        raise ValueError(f"{name}: is {steps.sum():.4g} m long, more than {LONGEST:g}: a 1:10 car's are 50 m, scale it")
    if steps.min() <= 0.0:
        raise ValueError(f"{name}: two points that follow one another are the same, {points[steps.argmin()].tolist()}")
    if steps[-1] > 3.0 * np.max(steps[:-1]):
        raise ValueError(
            f"{name}: is not closed: its last point is {steps[-1]:.2f} m from the first, others are at most "
            f"{np.max(steps[:-1]):.2f} m apart"
        )
    centre, left, right = spread(points, left, right)
    made = Track(name, centre, left, right)
    if (place := _crossing(made.centre, made.centre)) is not None:
        raise ValueError(f"{name}: crosses itself near x {place[0]:.2f} m, y {place[1]:.2f} m")
    one, other = made.wall(1.0), made.wall(-1.0)
    for wall in (one, other):
        back = ((np.roll(wall, -1, axis=0) - wall) * made.heading).sum(axis=1) <= 0.0
        if back.any():
            place = made.centre[back.argmax()]
            raise ValueError(
                f"{name}: its walls cross near x {place[0]:.2f} m, y {place[1]:.2f} m: a bend is narrower than that"
            )
    for first, second in ((one, one), (other, other), (one, other)):
        if (place := _crossing(first, second)) is not None:
            raise ValueError(
                f"{name}: its walls cross near x {place[0]:.2f} m, y {place[1]:.2f} m: "
                "it is too wide for what is beside it"
            )
    return made


def oval(straight: float = 8.0, radius: float = 3.0, width: float = WIDTH) -> Track:
    """Two straights and two half circles, driven to the left."""
    turn = np.linspace(-0.5 * math.pi, 0.5 * math.pi, 200)
    half = np.stack([0.5 * straight + radius * np.cos(turn), radius * np.sin(turn)], axis=1)
    line = np.linspace(-0.5, 0.5, 200)[1:-1] * straight
    lower = np.stack([line, np.full(len(line), -radius)], axis=1)
    points = np.concatenate([lower, half, -lower, -half])
    wide = np.full(len(points), 0.5 * width)
    return track_of("oval", points, wide, wide)


def _outline(rng: np.random.Generator, count: int) -> Double:
    """A closed line (count, 2) around the origin: a circle with waves."""
    angle = np.arange(count) / count * 2.0 * math.pi
    waves = np.arange(2, 2 + WAVES)
    size = ROUGHNESS * rng.normal(size=(WAVES, 2)) / waves[:, None]
    radius = 1.0 + size[:, 0] @ np.cos(np.outer(waves, angle)) + size[:, 1] @ np.sin(np.outer(waves, angle))
    made: Double = np.maximum(radius, 0.05)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return made


def _roomy(points: Double, width: float) -> bool:
    """Whether a track along these points, some 0.3 m apart, has room: no bend is too tight, no part near another."""
    before, after = np.roll(points, 1, axis=0) - points, np.roll(points, -1, axis=0) - points
    area = np.abs(before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0])
    sides = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1) * np.linalg.norm(after - before, axis=1)
    if (2.0 * area * TIGHTEST > sides).any():
        return False
    step = np.linalg.norm(after, axis=1).mean()
    away = np.linalg.norm(points[:, None] - points[None], axis=-1)
    apart = np.abs(np.subtract.outer(np.arange(len(points)), np.arange(len(points))))
    apart = np.minimum(apart, len(points) - apart) * step
    return bool((away[apart > 0.5 * math.pi * (width + APART)] > width + APART).all())


def random_track(seed: int | tuple[int, ...], width: float = WIDTH) -> Track:
    """A closed track that never comes near itself, LENGTHS long; the seed decides it, and its direction."""
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        points = _outline(rng, 600)
        length = rng.uniform(*LENGTHS)
        way = np.linalg.norm(np.roll(points, -1, axis=0) - points, axis=1).sum()
        (made,) = spread(points * length / way)
        if rng.random() < 0.5:
            made = made[::-1] * 1.0
        if _roomy(made[::3], width):
            wide = np.full(len(made), 0.5 * width)
            return Track(f"random {seed}", made, wide, wide)
    raise ValueError(f"found no track of {width} m width in {TRIES} tries: it is too wide")


def read_track(path: str | Path) -> Track:
    """A CSV file with columns x_m, y_m, w_tr_right_m, w_tr_left_m, as those of TUM's racetrack-database.

    Lines that begin with # are comments. ValueError that names the file where it holds no track.
    """
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(TEXT + 1)
        lines = content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as a track: {error}") from None
    if len(content) > TEXT:
        raise ValueError(f"{path}: has more than {TEXT} bytes")
    rows: list[list[float]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            row = [float(part) for part in line.replace(";", ",").split(",")]
        except ValueError:
            if not rows and set("".join(line.split()).split(",")) == set(COLUMNS):
                continue  # their names
            raise ValueError(f"{path}, line {number}: {line[:80]!r} holds something else than numbers") from None
        if len(row) != len(COLUMNS):
            raise ValueError(f"{path}, line {number}: needs {len(COLUMNS)} numbers ({', '.join(COLUMNS)})")
        rows.append(row)
    if len(rows) < FEWEST:
        raise ValueError(f"{path}: a track needs at least {FEWEST} points, got {len(rows)}")
    table = np.array(rows)
    return track_of(str(path), table[:, :2], table[:, 3], table[:, 2])
