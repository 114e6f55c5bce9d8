"""What a vehicle emits according to a small network that learned it from SUMO: `policies.train_emissions numbers=FILE`.

One file of numbers (`.npz`, nothing in it runs) for one emission class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.archive import Archive
from sim.registry import check_named
from sim.terms import Feature

Array = NDArray[np.float32]

SURROGATE = ".npz"  # how such a file's name ends
KIND, VERSION = "sim2metal emissions", 1
LARGEST = 2**20  # bytes
CO2 = "CO2"
NAMES = ("speed", "acceleration", "grade")
# The speed twice: below half a metre per second SUMO's engines are not dragged along, so much happens there.
FEATURES = (Feature("speed"), Feature("speed", squash=0.5), Feature("acceleration"), Feature("grade"))


class SurrogateError(ValueError):
    """A file that holds no such network, or one for vehicles that are not there."""


NO = "no model of emissions"
FILE = Archive(KIND, VERSION, LARGEST, "model of emissions", NO, "policies.train_emissions", SurrogateError)


def features(where: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the network sees (n, 4) of moments (n, 3): NAMES."""
    values = {name: where[:, k : k + 1] for k, name in enumerate(NAMES)}
    return np.concatenate([feature.evaluate(values) for feature in FEATURES], axis=1)


def shares(layers: list[tuple[Array, Array]], low: Array, high: Array, seen: Array) -> Array:
    """Of the largest amounts (n, q), 0..1, for features (n, 4): layers with tanh between them, amounts, then gates.

    Features beyond `low` and `high` (4,) are taken for the edge. Where a gate is below 0 nothing is emitted.
    """
    x = np.clip(seen, low, high)
    for weight, bias in layers[:-1]:
        x = np.tanh(x @ weight.T + bias)
    weight, bias = layers[-1]
    amount, gate = np.split(x @ weight.T + bias, 2, axis=-1)
    share: Array = np.where(gate > 0.0, np.clip(amount, np.float32(0.0), np.float32(1.0)), np.float32(0.0))
    return share


@dataclass(frozen=True)
class Surrogate:
    """A network for vehicles of one emission class of SUMO."""

    emission_class: str
    quantities: tuple[str, ...]
    most: Array  # (q,) g/s, the largest amounts
    low: Array  # (4,) of features
    high: Array
    layers: list[tuple[Array, Array]]

    def co2(self, where: NDArray[np.float64]) -> NDArray[np.float64]:
        """g/s (n,) at moments (n, 3): m/s, m/s^2, rise over run."""
        k = self.quantities.index(CO2)
        share = shares(self.layers, self.low, self.high, features(where).astype(np.float32))[:, k]
        return share.astype(np.float64) * float(self.most[k])

    def content(self) -> bytes:
        """The file."""
        about = {"class": self.emission_class, "quantities": [*self.quantities]}
        arrays = {"most": self.most, "low": self.low, "high": self.high}
        for k, (weight, bias) in enumerate(self.layers):
            arrays |= {f"w{k}": weight, f"b{k}": bias}
        return FILE.content(about, arrays)

    @classmethod
    def load(cls, path: str | Path) -> Surrogate:
        """From its file; SurrogateError says what is wrong with it."""
        return FILE.load(
            path, lambda about, arrays: cls._of(about, {name: v.astype(np.float32) for name, v in arrays.items()})
        )

    @classmethod
    def _of(cls, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> Surrogate:
        quantities, wide = tuple(map(str, about["quantities"])), len(FEATURES)
        layers = [(arrays[f"w{k}"], arrays[f"b{k}"]) for k in range(sum(name.startswith("w") for name in arrays))]
        for weight, bias in layers:
            if weight.shape != (len(bias), wide):
                raise ValueError(f"a layer of shape {weight.shape} is told {wide} numbers")
            wide = len(bias)
        fits = wide == 2 * len(quantities) and arrays["most"].shape == (len(quantities),)
        edges = arrays["low"].shape == arrays["high"].shape == (len(FEATURES),)
        if not (layers and fits and edges and all(np.isfinite(values).all() for values in arrays.values())):
            raise ValueError("its arrays do not fit, or are not finite")
        if CO2 not in quantities:
            raise ValueError(f"it tells {', '.join(quantities)}, not {CO2}")
        return cls(str(about["class"]), quantities, arrays["most"], arrays["low"], arrays["high"], layers)


def surrogates(files: str, fleets: Mapping[str, Mapping[str, str]]) -> tuple[str, dict[str, Surrogate]]:
    """Which of the fleets (kind of vehicle -> emission class) these files FILE,FILE are of; and theirs, by that kind.

    SurrogateError for a class that no fleet has, or that no fleet has together with the others'.
    """
    check_named("emissions", files)
    found = [Surrogate.load(name) for name in files.split(",")]
    classes = [one.emission_class for one in found]
    for fleet, kinds in fleets.items():
        if {*classes} <= {*kinds.values()} and len({*classes}) == len(classes):
            return fleet, {kind: one for kind, name in kinds.items() for one in found if one.emission_class == name}
    known = "; ".join(f"{fleet}: {', '.join(kinds.values())}" for fleet, kinds in fleets.items())
    raise SurrogateError(f"emissions={files} is of {', '.join(classes)}, which vehicles of no fleet are: {known}")
