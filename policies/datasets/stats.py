"""Statistics for normalisation, as LeRobot writes them: per episode, and of all episodes from those.

Numbers are reduced to their last axis, pictures to their channels, in 0 to 1 and of shape (3, 1, 1). Quantiles of all
episodes are the weighted mean of the episodes', as LeRobot's are. LeRobot 0.4.4's own "std" of pictures is wrong (it
squares in 8 bits); here it is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from policies.datasets.features import Array, DatasetError, Feature, to_numpy

Stats = dict[str, Array]
QUANTILES = {f"q{round(100 * q):02d}": q for q in (0.01, 0.10, 0.50, 0.90, 0.99)}
KEYS = ("min", "max", "mean", "std", "count", *QUANTILES)


def episode_stats(values: Array, feature: Feature) -> Stats:
    """Of one feature (steps, *shape) in one episode."""
    if feature.is_camera:
        return _picture_stats(values)
    flat = values.reshape(-1, values.shape[-1])
    wide = flat.astype(np.float64)
    found = {"min": flat.min(axis=0), "max": flat.max(axis=0), "mean": wide.mean(axis=0), "std": wide.std(axis=0)}
    quantiles = np.quantile(wide, list(QUANTILES.values()), axis=0)
    return found | {"count": np.array([len(values)])} | dict(zip(QUANTILES, quantiles, strict=True))


def _picture_stats(pictures: Array) -> Stats:
    """From the histogram of each channel: exact, and quicker than sorting millions of pixels."""
    counts = np.stack([np.bincount(pictures[..., k].reshape(-1), minlength=256) for k in range(3)])  # (3, 256)
    level, share = np.arange(256) / 255.0, counts / counts.sum(axis=1, keepdims=True)
    mean = share @ level
    std = np.sqrt((share * (level - mean[:, None]) ** 2).sum(axis=1))
    below = np.cumsum(share, axis=1)
    found = {"min": level[(counts > 0).argmax(axis=1)], "max": level[255 - (counts[:, ::-1] > 0).argmax(axis=1)]}
    found |= {"mean": mean, "std": std}
    found |= {key: level[(below >= q - 1e-12).argmax(axis=1)] for key, q in QUANTILES.items()}
    return {key: value.reshape(3, 1, 1) for key, value in found.items()} | {"count": np.array([len(pictures)])}


def stats_in(rows: pa.Table, name: str, feature: Feature) -> Stats:
    """The statistics of a feature in all episodes: key -> (episodes, *shape). DatasetError when the rows have none."""
    size = (3, 1, 1) if feature.is_camera else (feature.shape[-1],)
    try:
        return {key: to_numpy(rows[f"stats/{name}/{key}"], (1,) if key == "count" else size) for key in KEYS}
    except (KeyError, ValueError) as error:
        raise DatasetError(f"meta/episodes has no statistics of {name!r}: {error}") from None


class Totals:
    """Statistics of all episodes so far. Adding episodes one by one or at once gives the same bits."""

    def __init__(self, sums: Mapping[str, Stats] | None = None) -> None:
        self._sums = dict(sums or {})

    def plus(self, stats: Mapping[str, Stats]) -> Totals:
        """With more episodes: feature -> key -> (episodes, *shape)."""
        return Totals({name: _accumulated(self._sums.get(name), more) for name, more in stats.items()})

    def __getitem__(self, name: str) -> Stats:
        """Key -> value, in the order of KEYS."""
        sums = self._sums[name]
        count = sums["count"]
        offset = sums["first"] / count
        std = np.sqrt(np.maximum(sums["second"] / count - offset**2, 0.0))
        found = {"min": sums["min"], "max": sums["max"], "mean": sums["centre"] + offset, "std": std, "count": count}
        return found | {key: sums[key] / count for key in QUANTILES}

    def json(self) -> dict[str, Any]:
        """As meta/stats.json has it."""
        return {name: {key: value.tolist() for key, value in self[name].items()} for name in self._sums}


def _accumulated(old: Stats | None, more: Stats) -> Stats:
    """Sums over episodes, in their order and around the first mean, so that little cancels."""
    centre = more["mean"][0] if old is None else old["centre"]
    offset = more["mean"] - centre
    weight = more["count"].reshape(-1, *[1] * (offset.ndim - 1))
    terms = {"count": more["count"], "first": weight * offset, "second": weight * (more["std"] ** 2 + offset**2)}
    terms |= {key: weight * more[key] for key in QUANTILES} | {key: more[key] for key in ("min", "max")}
    if old is not None:
        terms = {key: np.concatenate([old[key][None], term]) for key, term in terms.items()}
    reduce = {"min": np.minimum, "max": np.maximum}
    return {"centre": centre} | {key: reduce.get(key, np.add).accumulate(term)[-1] for key, term in terms.items()}
