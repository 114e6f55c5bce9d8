"""Families of intersections: what training draws, and what it never saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from sim.engines.sumo.context import Arm, Context

Rng = np.random.Generator
GREENS = (15.0, 45.0)  # s
LIMITS = (11.2, 13.4, 15.6)  # m/s: 25, 30 and 35 mph, as in Salt Lake City's of IntersectionZoo
LENGTHS = (200.0, 400.0)  # m
LANES = (2, 3)
SATURATION = (0.2, 0.6)  # of what the greens let through
SATURATED = 1400.0  # veh/h and lane while it is green; with turns less than the 1800 of the Highway Capacity Manual
GRADE = 0.03
CHANGES = 10.0  # s per cycle in which nobody starts


def _drawn(
    rng: Rng,
    penetration: float,
    lanes: tuple[int, int] = LANES,
    limits: tuple[float, ...] = LIMITS,
    saturation: tuple[float, float] = SATURATION,
    grade: tuple[float, float] = (0.0, GRADE),
) -> Context:
    """One of a family; the same draws in the same order for all, so that families differ in what they say."""
    arms = 4 if rng.random() < 0.8 else 3
    greens = tuple(float(g) for g in rng.uniform(*GREENS, 2).round())
    protected = rng.random() < 0.3 and lanes[0] > 1
    if protected:
        greens = greens[0], 8.0, greens[1], 8.0
    cycle = sum(greens) + 0.5 * CHANGES * len(greens)
    roads = []
    for k in range(arms):
        green = greens[(k % 2) * (2 if protected else 1)]
        wide = int(rng.integers(lanes[0], lanes[1] + 1))
        inflow = SATURATED * rng.uniform(*saturation) * (wide - protected) * green / cycle
        slope = float(rng.choice([-1.0, 1.0]) * rng.uniform(*grade))
        aside = rng.uniform(0.05, 0.15, 2)
        shares = [aside[0], 1.0 - aside.sum(), aside[1]]
        if arms == 3:  # the straight one of the stem leads nowhere, and so does one turn of the others
            shares = [[aside[0] + 0.1, 0.9 - aside[0], 0.0], [0.5, 0.0, 0.5], [0.0, 0.9 - aside[1], aside[1] + 0.1]][k]
        roads.append((wide, rng.uniform(*LENGTHS), float(rng.choice(limits)), slope, inflow, shares))
    fleet = rng.uniform((0.1, 0.0, 0.0, -10.0), (0.5, 0.2, 0.1, 35.0))
    return Context(
        tuple(Arm(w, float(m), v, s, float(q), tuple(map(float, t))) for w, m, v, s, q, t in roads),  # type: ignore[arg-type]
        greens,
        penetration,
        *(float(share) for share in fleet),
    )


FAMILIES: Mapping[str, Callable[[Rng, float], Context]] = {
    "mixed": _drawn,  # which is learned
    "few_lanes": lambda rng, share: _drawn(rng, share, lanes=(1, 1)),
    "steep": lambda rng, share: _drawn(rng, share, grade=(0.05, 0.08)),
    "busy": lambda rng, share: _drawn(rng, share, saturation=(0.8, 0.95)),
    "fast": lambda rng, share: _drawn(rng, share, limits=(17.9, 20.1)),
}


def draw(family: str, rng: Rng, penetration: float) -> Context:
    """An intersection of a family with that share of vehicles equipped."""
    return FAMILIES[family](rng, penetration)
