"""What a detector gets wrong, and the numbers of `sim.tasks.soccer.detection.Errors` that say the same.

Spreads are mean absolute deviations, scaled as if they were normal, so that few wild ones do not decide; how they grow
is a weighted regression on them (Glejser 1969). Errors are taken as independent from picture to picture; a real
detector's are alike for some time, so a part of them is found as errors of a whole game.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.learning.detection.pictures import Frames
from policies.models.networks import Array
from sim.tasks.soccer.detection import Errors

Double = NDArray[np.float64]

APART = 0.35  # rad between a thing and what is told of it, from which on something else is told
DISTANCES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)  # m, of the rows of a table
TURNINGS = (0.0, 1.0, 3.0, 6.0, 9.0, 14.0)  # rad/s
ROUNDS = 30  # of reweighting
NORMAL = math.sqrt(math.pi / 2.0)  # from a mean absolute deviation to a normal's standard deviation


class Answers(NamedTuple):
    """Of all things that were there to be seen (m,): which thing, in which game, how far away (m), how fast the camera
    turned (rad/s), whether they were told, and errors: of the bearing (rad), of the distance's logarithm; NaN if not.

    And of all that were not: how many there were, and how many were told all the same, of nothing that is near.
    """

    thing: NDArray[np.int64]
    game: NDArray[np.int64]
    distance: Double
    turning: Double
    told: NDArray[np.bool_]
    bearing: Double
    share: Double
    absent: int
    imagined: int


def compared(frames: Frames, told: Array, counts: Sequence[int]) -> Answers:
    """What is told (n, things, 3) beside what is so; of several of a kind each with what is told nearest to it."""
    there, n = frames.there, len(frames.game)
    free = told[..., 0] > 0.0  # not yet taken for anything
    found, off, share = np.zeros_like(there), np.full(there.shape, np.nan), np.full(there.shape, np.nan)
    near = np.zeros_like(there)  # told near to something that is hidden, or just outside of the picture
    rows, first = np.arange(n), 0
    for count in counts:
        kind = slice(first, first + count)
        for wanted, found_by in ((there, found), (~there, near)):
            for thing in range(first, first + count):
                apart = np.where(free[:, kind], np.abs(told[:, kind, 1] - frames.bearing[:, thing, None]), np.inf)
                slot = first + apart.argmin(axis=1)
                hit = wanted[:, thing] & (apart.min(axis=1) < APART)
                free[rows[hit], slot[hit]] = False
                found_by[hit, thing] = True
                if found_by is found:
                    off[hit, thing] = told[rows[hit], slot[hit], 1] - frames.bearing[hit, thing]
                    away = np.maximum(told[rows[hit], slot[hit], 2], 1e-3)
                    share[hit, thing] = np.log(away / np.maximum(frames.distance[hit, thing], 1e-3))
        first += count
    row, things = np.nonzero(there)
    absent = int((~found).sum()) - int(near.sum())
    turning = np.abs(frames.turning)[row]
    return Answers(
        things,
        frames.game[row],
        frames.distance[there],
        turning,
        found[there],
        off[there],
        share[there],
        absent,
        int(free.sum()),
    )


def fitted(answers: Answers) -> Errors:
    """The errors of `task.perception=detector` that are most like these. ValueError when too little is told."""
    told = answers.told
    games = np.unique(answers.game[told])
    if told.sum() < 100 or len(games) < 4:
        raise ValueError(f"errors need 100 things told in 4 games, got {told.sum()} in {len(games)}")
    game, distance, turning = answers.game[told], answers.distance[told], answers.turning[told]
    (bearing, growth), aside = _spread(answers.bearing[told], turning, game)
    (near, far), scale = _spread(answers.share[told], distance, game)
    missed, faint = _line(answers.distance, 1.0 - told.astype(np.float64), lambda p: np.clip(p * (1.0 - p), 1e-4, None))
    values = (bearing, growth, near, far, missed, faint, answers.imagined / max(1, answers.absent), aside, scale)
    return Errors(*(float(value) for value in values))


def _spread(errors: Double, by: Double, game: NDArray[np.int64]) -> tuple[Double, float]:
    """Standard deviation within games as a line over `by` (n,), and that of what whole games share."""
    _, index = np.unique(game, return_inverse=True)
    count = np.bincount(index)
    means = np.bincount(index, errors) / count
    left = NORMAL * np.abs(errors - means[index]) / np.sqrt(1.0 - 1.0 / np.maximum(count[index], 2))
    line = _line(by, left, lambda s: np.maximum(s, 1e-6) ** 2)
    chance = np.bincount(index, (line[0] + line[1] * by) ** 2) / count**2
    enough = count >= 10
    beyond = float(np.median((means[enough] - np.median(means[enough])) ** 2)) / 0.4549 - float(
        np.median(chance[enough])
    )
    return line, math.sqrt(max(0.0, beyond))  # 0.4549: the median of a normal's square


def _line(x: Double, y: Double, variance: Any) -> Double:
    """Start and slope (2,), none below 0, of a line through (x, y), whose variance (n,) depends on its height."""
    line = np.array([max(float(y.mean()), 1e-6), 0.0])
    for _ in range(ROUNDS):
        weight = 1.0 / variance(line[0] + line[1] * x)
        one, mean, square = weight.sum(), (weight * x).sum(), (weight * x * x).sum()
        height, along = (weight * y).sum(), (weight * x * y).sum()
        spread = one * square - mean * mean
        slope = (one * along - mean * height) / spread if spread > 1e-12 * one * square else 0.0
        start = (height - slope * mean) / one
        if slope < 0.0:
            start, slope = height / one, 0.0
        elif start < 0.0:
            start, slope = 0.0, along / square
        line = np.array([start, slope])
    return line


def rows(answers: Answers, by: Double, edges: Sequence[float]) -> list[dict[str, float]]:
    """Of what lies between each two edges: how many there were, how many were missed, and the spread of the errors."""
    made = []
    for low, high in itertools.pairwise(edges):
        some = (by >= low) & (by < high)
        told = some & answers.told
        if told.sum() < 20:
            continue
        numbers = {"from": low, "to": high, "things": int(some.sum()), "missed": float(1.0 - answers.told[some].mean())}
        for name, errors in (("bearing", answers.bearing[told]), ("distance", answers.share[told])):
            middle = float(np.median(errors))
            numbers[name] = NORMAL * float(np.abs(errors - middle).mean())
            numbers[f"{name}_off"] = middle
        made.append({name: float(value) for name, value in numbers.items()})
    return made


def tables(answers: Answers, names: Sequence[str]) -> dict[str, list[dict[str, float]]]:
    """By distance, by how fast the camera turned, and of each thing by itself."""
    found = {
        "distance": rows(answers, answers.distance, DISTANCES),
        "turning": rows(answers, answers.turning, TURNINGS),
    }
    for k, name in enumerate(names):
        some = answers.thing == k
        alone = answers._replace(**{f: getattr(answers, f)[some] for f in answers._fields[:7]})
        found[name] = rows(alone, alone.distance, (0.0, 100.0))
    return found


def text(found: dict[str, list[dict[str, float]]]) -> str:
    """For people."""
    lines = ["  of what is there           things   missed   bearing   distance"]
    for name, some in found.items():
        for row in some:
            unit = {"distance": "m", "turning": "rad/s"}.get(name, "")
            where = f"{name} {row['from']:g} to {row['to']:g} {unit}" if unit else name
            shares = f"{100 * row['missed']:6.1f} %   {row['bearing']:.3f}   {100 * row['distance']:6.1f} %"
            lines.append(f"  {where:24} {row['things']:8.0f} {shares}")
    return "\n".join(lines)
