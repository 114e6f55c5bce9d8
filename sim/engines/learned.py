"""A learned world: an ensemble that says what a command changes, another that says what success looks like.

Made by `policies.train_world` from recorded episodes, and one file of numbers (`.npz`, nothing in it runs). The members
of an ensemble learned the same from other weights and samples: where they disagree, nothing near was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.archive import Archive
from sim.spec import Group, place_pairs, slices

Array = NDArray[np.float32]

KIND = "learned world"
VERSION = 1
LARGEST = 256 * 2**20  # bytes of a file
MEMBERS = 64  # of an ensemble, at most
MOST = 64.0  # deviations from what was recorded, beyond which nothing is told apart


class WorldFileError(ValueError):
    """The file is not a learned world, is damaged, or is of another task."""


FILE = Archive(KIND, VERSION, LARGEST, "learned world", "not a learned world", "policies.train_world", WorldFileError)


@dataclass(frozen=True)
class Perceptrons:
    """Several perceptrons of the same shape: ReLU between the layers, inputs normalised before."""

    shift: Array  # (inputs,)
    scale: Array  # (inputs,)
    weights: tuple[Array, ...]  # (members, in, out)
    biases: tuple[Array, ...]  # (members, 1, out)

    def __call__(self, x: Array) -> Array:
        """Of inputs (n, inputs), or of one such array for each member: (members, n, outputs)."""
        y: Array = np.clip((x - self.shift) / self.scale, -MOST, MOST)
        y = y if y.ndim == 3 else y[None]
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            y = y @ weight + bias
            if layer < last:
                np.maximum(y, 0.0, out=y)
        return y

    def check(self, inputs: int, outputs: int) -> None:
        """ValueError when shapes do not fit, or a number is not finite or a scale not positive."""
        sizes = [inputs, *(w.shape[-1] for w in self.weights)]
        members = self.weights[0].shape[0] if self.weights else 0
        fits = self.shift.shape == self.scale.shape == (inputs,) and sizes[-1] == outputs and 0 < members <= MEMBERS
        for weight, bias, before, after in zip(self.weights, self.biases, sizes[:-1], sizes[1:], strict=True):
            fits &= weight.shape == (members, before, after) and bias.shape == (members, 1, after)
        finite = all(np.isfinite(a).all() for a in (self.shift, self.scale, *self.weights, *self.biases))
        if not (fits and finite and (self.scale > 0.0).all()):
            raise ValueError("shapes do not fit, or a number is not finite")


Pairs = list[tuple[int, int, int]]


def differences(group: Group) -> Pairs:
    """Which places are also told as seen from one another: both first elements, and how many follow."""
    where = slices(group)
    return [(where[b].start, where[a].start, where[a].stop - where[a].start) for a, b in place_pairs(group)]


def seen(pairs: Pairs, state: Array) -> Array:
    """What the ensembles see of states (n, m): the numbers, and where things are and how far, seen from one another."""
    apart = [state[:, a : a + n] - state[:, b : b + n] for a, b, n in pairs]
    return np.concatenate([state, *apart, *(np.linalg.norm(one, axis=1, keepdims=True) for one in apart)], axis=1)


def in_deviations(change: Array, deviation: Array) -> Array:
    """Changes (n, m) in their deviations (m,), where these are not 0."""
    scaled: Array = (change / np.where(deviation > 0.0, deviation, 1.0)).astype(np.float32)
    return scaled


def believed(judges: Perceptrons, x: Array) -> Array:
    """What perceptrons with one output say of inputs (n, inputs): their mean minus their deviation (n,)."""
    said = judges(x)[..., 0]
    value: Array = said.mean(axis=0) - said.std(axis=0)
    return value


@dataclass(frozen=True)
class LearnedWorld:
    """What was learned, and moments that were recorded, from which episodes begin."""

    task: str  # whose episodes were recorded
    names: tuple[str, ...]  # of the state's signals, in their order
    moves: Perceptrons  # of what is seen, how it changed last, and the command: the next change; in its deviations
    change: Array  # (m,) deviation of the change in a control step; 0: of what never changes
    success: Perceptrons  # of what is seen: the logit of success
    bar: float  # of that logit's mean minus its deviation, above which success is believed
    frames: int  # in a row that have to be above it
    cut: float  # disagreement beyond which an episode ends
    moments: Array  # (frames, m), recorded
    changes: Array  # (frames, m), how they had changed in the control step before
    first: NDArray[np.int64]  # which of them began an episode
    low: Array  # (m,) what was recorded at least, at most: nothing is predicted far beyond
    high: Array
    pairs: Pairs
    report: Mapping[str, Any]  # what it is worth on episodes that were held out

    def after(self, state: Array, last: Array, action: Array, member: NDArray[np.int64]) -> tuple[Array, Array]:
        """From states (n, m), their last changes and actions (n, k) in [-1, 1]: the next, as that member (n,) says.

        And the disagreement (n,).

        Disagreement is the largest deviation of the members' changes, in those of a control step.
        """
        changes = self.moves(
            np.concatenate([seen(self.pairs, state), in_deviations(last, self.change), action], axis=1)
        )
        own = changes[member, np.arange(len(state))]
        apart: Array = changes.std(axis=0).max(axis=1)
        moved: Array = np.clip(state + self.change * own, self.low, self.high)
        return moved, apart

    def apart(self, states: Array, lasts: Array, action: Array) -> Array:
        """From states (members, n, m), one for each member, and their last changes: the next, as each says itself."""
        told = [seen(self.pairs, state) for state in states], [in_deviations(last, self.change) for last in lasts]
        x = [np.concatenate([*both, action], axis=1) for both in zip(*told, strict=True)]
        moved: Array = np.clip(states + self.change * self.moves(np.stack(x)), self.low, self.high)
        return moved

    def believed(self, state: Array) -> Array:
        """How much states (n, m) look like success: the logit's mean minus its deviation (n,)."""
        return believed(self.success, seen(self.pairs, state))

    def content(self) -> bytes:
        """The file."""
        about = {"task": self.task, "names": [*self.names], "bar": self.bar, "cut": self.cut}
        about["frames"] = self.frames
        about["report"] = dict(self.report)
        arrays: dict[str, NDArray[Any]] = {}
        for name, net in (("moves", self.moves), ("success", self.success)):
            arrays |= {f"{name}.shift": net.shift, f"{name}.scale": net.scale}
            arrays |= {f"{name}.w{k}": weight for k, weight in enumerate(net.weights)}
            arrays |= {f"{name}.b{k}": bias for k, bias in enumerate(net.biases)}
        arrays |= {"change": self.change, "moments": self.moments, "changes": self.changes, "first": self.first}
        arrays |= {"low": self.low, "high": self.high}
        return FILE.content(about, arrays)

    @classmethod
    def load(cls, path: str | Path, group: Group, actions: int) -> LearnedWorld:
        """Of a world with these signals and so many numbers in a command; WorldFileError says what is wrong."""
        return FILE.load(path, lambda about, arrays: cls._of(about, arrays, group, actions))

    @classmethod
    def _of(cls, about: dict[str, Any], arrays: dict[str, Any], group: Group, actions: int) -> LearnedWorld:
        names, m = tuple(s.name for s in group), sum(s.size for s in group)
        if (told := tuple(about["names"])) != names:
            raise WorldFileError(f"it was learned of {', '.join(told)}, not of {', '.join(names)}")
        pairs, nets = differences(group), {}
        sees = m + sum(n + 1 for *_, n in pairs)
        for name, inputs, outputs in (("moves", sees + m + actions, m), ("success", sees, 1)):
            depth = sum(key.startswith(f"{name}.w") for key in arrays)
            shift, scale = (arrays[f"{name}.{part}"].astype(np.float32) for part in ("shift", "scale"))
            weights, biases = (
                tuple(arrays[f"{name}.{part}{k}"].astype(np.float32) for k in range(depth)) for part in ("w", "b")
            )
            nets[name] = Perceptrons(shift, scale, weights, biases)
            nets[name].check(inputs, outputs)
        moments, changes = (arrays[name].astype(np.float32) for name in ("moments", "changes"))
        first = arrays["first"].astype(np.int64)
        rows = {name: arrays[name].astype(np.float32) for name in ("change", "low", "high")}
        shaped = moments.shape == changes.shape == (len(moments), m) and all(r.shape == (m,) for r in rows.values())
        inside = first.ndim == 1 and len(first) and first.min() >= 0 and first.max() < len(moments)
        if not (shaped and inside and all(np.isfinite(a).all() for a in (moments, changes, *rows.values()))):
            raise ValueError("recorded moments do not fit, or are not finite")
        frames, bar, cut = int(about.get("frames", 1)), float(about["bar"]), float(about["cut"])  # once without frames
        if frames < 1 or np.isnan(bar) or np.isnan(cut):
            raise ValueError(f"frames, bar and cut are {frames}, {bar} and {cut}")
        report = about["report"]
        if not isinstance(report, dict):
            raise ValueError("its description is not one")
        return cls(
            task=str(about["task"]),
            names=names,
            moves=nets["moves"],
            change=rows["change"],
            success=nets["success"],
            bar=bar,
            frames=frames,
            cut=cut,
            moments=moments,
            changes=changes,
            first=first,
            low=rows["low"],
            high=rows["high"],
            pairs=pairs,
            report=report,
        )
