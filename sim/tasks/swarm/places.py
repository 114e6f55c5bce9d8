"""Where the vehicles of a swarm begin, and where they are to go."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Double = NDArray[np.float64]

MODES = ("crossing", "sphere", "formation", "mixed")
HEIGHT = 1.5  # m, of circles
UNEVEN = 0.15  # by which share of their spacing vehicles are beside even places, at most
SPACING = 0.5  # m between the places of a formation
APART = 0.5  # m between vehicles that begin anywhere
LOWEST = 0.7  # m
DRIFT = 0.3  # m/s of a formation, at most
CLEAR = 0.5  # m between a pillar's surface and where vehicles begin or are to be
PASSAGE = 0.6  # m between the surfaces of pillars
TRIES = 50  # for a pillar to find its place
FAR = 60.0  # m between groups that know nothing of one another
PATTERNS = ("grid", "ring", "layers")


class Places(NamedTuple):
    """Of n vehicles, m and m/s, world."""

    start: Double  # (n, 3)
    goal: Double  # (n, 3), at first
    drift: Double  # (3,) or (n, 3), with which goals move


def least(mode: str, n: int, radius: float) -> list[float]:
    """m between vehicles where they begin and end, at least, by each rule of the mode; a sphere's lattice is evener."""
    ring = 2.0 * radius * math.sin((1.0 - 2.0 * UNEVEN) * math.pi / n)
    rules = {"crossing": [ring], "sphere": [ring], "formation": [SPACING, APART]}
    return rules.get(mode) or [value for each in rules.values() for value in each]


def draw(mode: str, n: int, radius: float, rng: np.random.Generator) -> Places:
    """Those of one episode."""
    if mode == "mixed":
        mode = str(rng.choice(MODES[:3]))
    return {"crossing": crossing, "sphere": sphere, "formation": formation}[mode](n, radius, rng)


def parted(mode: str, n: int, fewest: int, radius: float, rng: np.random.Generator) -> Places:
    """Those of n vehicles, of all together or of groups of at least `fewest`, far apart.

    Together are 58 % of the airspaces of 16 vehicles and groups of 2 or more, 63 % of 8, 83 % of 4: in one half it is
    drawn, and in the other half the first group may be of all, too.
    """
    sizes: list[int] = []
    left = n
    while left:
        size = n if not sizes and rng.random() < 0.5 else int(rng.integers(min(fewest, left), left + 1))
        sizes.append(left if left - size < fewest else size)
        left -= sizes[-1]
    groups = [draw(mode, size, radius, rng) for size in sizes]
    centre = np.repeat(np.arange(len(sizes)), sizes)
    away = FAR * np.stack([centre % 3, centre // 3, 0 * centre], axis=1)
    start, goal = (np.concatenate([getattr(g, k) for g in groups]) + away for k in ("start", "goal"))
    return Places(start, goal, np.repeat([g.drift for g in groups], sizes, axis=0))


def crossing(n: int, radius: float, rng: np.random.Generator) -> Places:
    """Around a horizontal circle; each is to go to the point across from it."""
    angle = (np.arange(n) + rng.uniform(-UNEVEN, UNEVEN, n)) * 2.0 * math.pi / n + rng.uniform(0.0, 2.0 * math.pi)
    height = HEIGHT + rng.uniform(-0.1, 0.1, n)
    start = np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)
    return Places(start, start * (-1.0, -1.0, 1.0), np.zeros(3))


def sphere(n: int, radius: float, rng: np.random.Generator) -> Places:
    """The same over a sphere, whose points are those of a Fibonacci lattice, turned anyhow."""
    z = 1.0 - (2.0 * np.arange(n) + 1.0) / n
    angle = np.arange(n) * math.pi * (3.0 - math.sqrt(5.0))
    flat = np.sqrt(1.0 - z * z)
    points = np.stack([flat * np.cos(angle), flat * np.sin(angle), z], axis=1)
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    start, centre = radius * points @ turn, np.array([0.0, 0.0, LOWEST + radius])
    return Places(centre + start, centre - start, np.zeros(3))


def pillars(
    m: int, size: float, radius: float, start: Double, goal: Double, drift: Double, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Pillars (m, 3), x, y and radius `size`, m, beside where vehicles begin, and where goals (n, 3) are until the end.

    `drift` (n, 3), m, is how far goals move until then. Each is somewhere on the disc of that radius around the middle
    between a vehicle's start and its goal; (0, 0, 0) is one for which there is no room.
    """
    middle = 0.5 * (start + goal)[:, :2]
    found = np.zeros((m, 3), np.float32)
    for k in range(m):
        for _ in range(TRIES):
            angle, away = rng.uniform(0.0, 2.0 * math.pi), radius * math.sqrt(rng.uniform())
            at = middle[rng.integers(len(middle))] + away * np.array([math.cos(angle), math.sin(angle)])
            near = min(distance(at, start, start), distance(at, goal, goal + drift))
            others = np.linalg.norm(found[:k, :2] - at, axis=1)[found[:k, 2] > 0.0]
            if near > CLEAR + size and (others > PASSAGE + 2.0 * size).all():
                found[k] = *at, size
                break
    return found


def distance(at: Double, a: Double, b: Double) -> float:
    """m from a point (2,) to the nearest of the straight ways from a (n, 3) to b, seen from above."""
    a, along = a[:, :2], (b - a)[:, :2]
    share = ((at - a) * along).sum(axis=1) / np.maximum((along**2).sum(axis=1), 1e-12)
    return float(np.linalg.norm(a + np.clip(share, 0.0, 1.0)[:, None] * along - at, axis=1).min())


def formation(n: int, radius: float, rng: np.random.Generator) -> Places:
    """From anywhere to the places of a formation, which moves; who goes to which place is drawn."""
    wide = max(radius, 0.45 * math.sqrt(n))  # room for all
    start = scattered(n, np.array([wide, wide, 1.0]), rng) + np.array([0.0, 0.0, LOWEST + 1.0])
    angle = rng.uniform(0.0, 2.0 * math.pi)
    slots = pattern(str(rng.choice(PATTERNS)), n)
    turned = slots @ np.array([[np.cos(angle), np.sin(angle), 0.0], [-np.sin(angle), np.cos(angle), 0.0], [0, 0, 1]])
    way, speed = rng.uniform(0.0, 2.0 * math.pi), rng.uniform(0.0, DRIFT)
    drift = speed * np.array([math.cos(way), math.sin(way), 0.0])
    return Places(start, rng.permutation(turned) + np.array([0.0, 0.0, HEIGHT]), drift)


def pattern(name: str, n: int) -> Double:
    """The places (n, 3) of a formation around its centre: a square grid, a ring, or two grids, one twice as
    far above the other.
    """
    if name == "ring":
        radius = max(0.5 * SPACING / math.sin(math.pi / n), 0.5 * SPACING)
        angle = np.arange(n) * 2.0 * math.pi / n
        return np.stack([radius * np.cos(angle), radius * np.sin(angle), np.zeros(n)], axis=1)
    layers = 2 if name == "layers" else 1
    each = -(-n // layers)
    side = math.ceil(math.sqrt(each))
    k = np.arange(n) % each
    at = np.stack([k % side, k // side, 2 * (np.arange(n) // each)], axis=1) * SPACING
    made: Double = at - at.mean(axis=0)
    return made


def scattered(n: int, half: Double, rng: np.random.Generator) -> Double:
    """Points (n, 3) within +- `half` (3,), APART from one another seen from above: nobody begins in another's jet."""
    found = np.empty((0, 3))
    while len(found) < n:
        point = rng.uniform(-half, half)
        if not len(found) or np.linalg.norm((found - point)[:, :2], axis=1).min() > APART:
            found = np.concatenate([found, point[None]])
    return found
