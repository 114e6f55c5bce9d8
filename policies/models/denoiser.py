"""Other bases than a trained sampler: one that overstates what its goal changes, and one that makes no jump.

Classifier-free guidance (Ho & Salimans 2022): a base that was trained with its goal dropped now and then can be asked
with and without it. The guided network is (1 + g) times the one that sees the goal minus g times the one that does not,
at every step of the sampler. Both are written as one network of twice the width, so that a guided base is a `Denoiser`
like any other.

`Onward` has no network. Its noise says how actions change, so that no command jumps, whatever the noise.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from policies.models.chunking import Denoiser
from policies.models.networks import Array, Layer
from policies.models.vision import ObservationEncoder
from sim import spec
from sim.tasks import Task
from sim.terms import HISTORY

if TYPE_CHECKING:
    from policies.models.graph import Graph


def goal(task: Task, observed: int) -> NDArray[np.bool_]:
    """Which of the `observed` numbers that a policy of the task sees are its goal."""
    where: NDArray[np.bool_] = np.zeros(observed, bool)
    slices = spec.slices(spec.numbers(task.policy))
    if task.goal in slices:
        where[slices[task.goal]] = True
    return where


def guided(base: Denoiser, goal: NDArray[np.int64], unseen: Array, guidance: float) -> Denoiser:
    """The base, guided. When it does not see its `goal`, these of the numbers, `unseen` (h,) enters its first layer."""
    blind, bias = base.see.copy(), base.bias + unseen
    blind[:, goal] = 0.0
    *inner, (weight, last) = base.layers
    both = np.concatenate([np.float32(1.0 + guidance) * weight, np.float32(-guidance) * weight], axis=1)
    return dataclasses.replace(
        base,
        see=np.concatenate([base.see, blind]),
        look=np.concatenate([base.look, base.look]),
        bias=np.concatenate([base.bias, bias], axis=1),
        layers=[*map(_twice, inner), (both, last)],
    )


def _twice(layer: Layer) -> Layer:
    """Two of the same, side by side."""
    weight, bias = layer
    zero = np.zeros_like(weight)
    return np.block([[weight, zero], [zero, weight]]), np.concatenate([bias, bias])


def last_action(task: Task) -> tuple[list[int], Array, Array]:
    """Where the numbers that a policy of the task sees say what it did last: columns (k,); and what is -1 and 1 of it.

    In its own past actions, or in signals `last_NAME` of its commands. ValueError where it is not told.
    """
    where, count = spec.slices(spec.numbers(task.policy)), spec.size(task.commands)
    if HISTORY in where:
        first = where[HISTORY].start
        return [*range(first, first + count)], np.full(count, -1.0, np.float32), np.ones(count, np.float32)
    if missing := [s.name for s in task.commands if f"last_{s.name}" not in where]:
        raise ValueError(
            f"{task.name} does not tell its policy which {missing[0]} it told last, so that nobody can say how far the "
            "next one may be from it: set algorithm.base.change=0"
        )
    columns = [k for s in task.commands for k in range(where[f"last_{s.name}"].start, where[f"last_{s.name}"].stop)]
    return columns, *spec.limits(task.commands)


@dataclass
class Onward:
    """No base: each action is the one before and `change` times its noise, which is cut off at 1."""

    horizon: int
    observed: int
    change: float  # of an action in [-1, 1], at most, per control step
    last: list[int]  # where of an observation the last action is
    low: Array  # (actions,) what -1 is in there
    high: Array
    eye: ObservationEncoder | None = None

    @property
    def actions(self) -> int:
        return len(self.last)

    @property
    def noise_size(self) -> int:
        return self.horizon * self.actions

    def sample(self, observation: Array, noise: Array) -> Array:
        made = [self._before(observation)]
        for part in np.split(np.clip(noise, -1.0, 1.0), self.horizon, axis=1):
            made.append(np.clip(made[-1] + np.float32(self.change) * part, -1.0, 1.0))
        chunk: Array = np.concatenate(made[1:], axis=1)
        return chunk

    def chosen(self, observation: Array, chunk: Array) -> Array:
        """The noise (n, k) that makes these chunks, or goes toward them as far as it can."""
        before = np.concatenate([self._before(observation), chunk[:, : -self.actions]], axis=1)
        noise: Array = np.clip((chunk - before) / np.float32(self.change), -1.0, 1.0)
        return noise

    def _before(self, observation: Array) -> Array:
        """The last action (n, actions), in [-1, 1]."""
        half = np.float32(0.5) * (self.high - self.low)
        action: Array = np.clip((observation[:, self.last] - self.low) / half - np.float32(1.0), -1.0, 1.0)
        return action

    def write(self, graph: Graph, observation: str, noise: str) -> str:
        bounds = graph.constant(-1.0), graph.constant(1.0)
        told = graph.join([graph.columns(observation, k, k + 1) for k in self.last])
        half = np.float32(0.5) * (self.high - self.low)
        told = graph.add("Div", graph.add("Sub", told, graph.constant(self.low)), graph.constant(half))
        made = [graph.add("Clip", graph.add("Sub", told, graph.constant(1.0)), *bounds)]
        cut = graph.add("Clip", noise, *bounds)
        for k in range(self.horizon):
            part = graph.columns(cut, k * self.actions, (k + 1) * self.actions)
            part = graph.add("Mul", part, graph.constant(self.change))
            made.append(graph.add("Clip", graph.add("Add", made[-1], part), *bounds))
        return graph.join(made[1:])
