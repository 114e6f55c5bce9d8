"""Features, costs and bounds (`sim.terms`) as tables of numbers over the columns of one array, for compiled code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.vector.rows import ATTITUDE, LOG, NORM, SQUARE
from sim.randomize import Array
from sim.terms import HISTORY, Bound, Cost, Feature

CODES = {"square": SQUARE, "norm": NORM, "log": LOG, "attitude": ATTITUDE}


class Table(NamedTuple):
    """One row per number that a network sees, per cost, or per bound; two arrays, as each costs a compiled call time.

    A feature is (column, subtracted column or -1), (scale, 1 / squash or 0); a cost (first column, how many, first
    subtracted column or -1, shape), (weight, softening squared, offset); a bound (first column, how many, first
    subtracted column or -1), (limit squared).
    """

    places: NDArray[np.int64]
    numbers: Array


def _found(where: Mapping[str, slice], name: str) -> slice:
    if name not in where:
        raise ValueError(f"a feature, cost or bound uses {name!r}, which is not there; there are: {', '.join(where)}")
    return where[name]


def _place(where: Mapping[str, slice], signal: str, minus: str | None) -> tuple[int, int, int]:
    """First column, how many, first subtracted column."""
    at = _found(where, signal)
    return at.start, at.stop - at.start, _found(where, minus).start if minus else -1


def _table(places: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]], widths: tuple[int, int]) -> Table:
    shapes = ((len(places), width) for width in widths)
    kinds = zip((places, numbers), (np.int64, np.float32), shapes, strict=True)
    return Table(*(np.array(values, kind).reshape(shape) for values, kind, shape in kinds))


def feature_table(features: Sequence[Feature], where: Mapping[str, slice]) -> Table:
    """The features of signals that lie there; ValueError for one that does not."""
    places, numbers = [], []
    for feature in features:
        source = _found(where, feature.signal)
        base = _found(where, feature.minus) if feature.minus else None
        for k in range(source.stop - source.start):
            places.append((source.start + k, -1 if base is None else base.start + k % (base.stop - base.start)))
            numbers.append((feature.scale, 1.0 / feature.squash if feature.squash else 0.0))
    return _table(places, numbers, (2, 2))


def feature_runs(features: Sequence[Feature], where: Mapping[str, slice]) -> Table:
    """The same with neighbours that are alike together: (column, subtracted column or -1, place, how many).

    ValueError for a feature of past actions that is more than a factor on them.
    """
    for feature in features:
        if feature.minus == HISTORY or (feature.signal == HISTORY and (feature.minus or feature.squash)):
            raise ValueError("a feature of the history has a scale, but no minus and no squash, nor is it one")
    runs: list[list[int]] = []
    numbers: list[tuple[float, float]] = []
    places, factors = (values.tolist() for values in feature_table(features, where))
    for place, ((column, minus), (scale, inverse)) in enumerate(zip(places, factors, strict=True)):
        last = runs[-1] if runs and numbers[-1] == (scale, inverse) else [0, 0, 0, 0]
        following = last[0] + last[3], last[1] + last[3] if last[1] >= 0 else -1
        if last[3] and (column, minus) == following:
            last[3] += 1
        else:
            runs.append([column, minus, place, 1])
            numbers.append((scale, inverse))
    return _table(runs, numbers, (4, 2))


def cost_table(costs: Sequence[Cost], where: Mapping[str, slice]) -> Table:
    """The costs of signals that lie there; ValueError for one that does not."""
    places = [(*_place(where, c.signal, c.minus), CODES[c.shape]) for c in costs]
    return _table(places, [(c.weight, c.softening**2, c.offset) for c in costs], (4, 3))


def bound_table(bounds: Sequence[Bound], where: Mapping[str, slice]) -> Table:
    """The bounds of signals that lie there; ValueError for one that does not."""
    return _table([_place(where, b.signal, b.minus) for b in bounds], [(b.limit**2,) for b in bounds], (3, 1))
