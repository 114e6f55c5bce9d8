"""Learning a world from recorded episodes: ensembles of perceptrons, of what changes and of what success looks like.

Each member draws its own samples, so that members agree where there were many (PETS, Chua et al. 2018). Changes are
learned in their own deviations, and by a loss that grows linearly: a contact that was missed counts, but not squared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policies.learning import cosine
from policies.learning.networks import Ensemble
from policies.models.controller import normalised
from sim import spec
from sim.engines.learned import Pairs, Perceptrons, in_deviations, seen
from sim.rollout import Episode
from sim.spec import Group
from sim.tasks import Task

Array = NDArray[np.float32]

SMALLEST_CHANGE = 1e-5  # deviation of a change that is told from none
SMALLEST_INPUT = 1e-3  # the same of what is seen: 1 mm
REPORT = 200  # updates


@dataclass
class Fitting:
    """Settings of the learning."""

    members: int = 5
    hidden: int = 192  # units in each of two layers
    updates: int = 4000
    batch_size: int = 128  # per member
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    jitter: float = 0.01  # of what is seen, in its deviations

    def __post_init__(self) -> None:
        if self.members < 2 or min(self.hidden, self.updates, self.batch_size) < 1 or self.jitter < 0.0:
            raise ValueError("needs members >= 2, hidden, updates and batch_size >= 1 and jitter >= 0")


@dataclass
class Moments:
    """One episode: states (n, m) before each command, commands (n, k) in [-1, 1], and whether a state is success."""

    state: Array
    action: Array
    success: NDArray[np.bool_]

    @classmethod
    def of(cls, episode: Episode, told: Group, task: Task) -> Moments:
        """ValueError names an episode that is not finite."""
        state = spec.pack(told, episode.signals)
        action = np.clip(normalised(task.commands, episode.commands), -1.0, 1.0).astype(np.float32)
        if not (np.isfinite(state).all() and np.isfinite(action).all()):
            raise ValueError(f"episode {episode.number} holds a value that is not finite")
        return cls(state, action, np.concatenate([[False], episode.success[:-1]]))  # a step's success is seen after it

    @property
    def last(self) -> Array:
        """How each state (n, m) differs from the one before."""
        return np.diff(self.state, axis=0, prepend=self.state[:1])


class Learner:
    """One ensemble in training, on inputs (n, i) and targets (n, o)."""

    def __init__(self, inputs: Array, targets: Array, fitting: Fitting, seed: int) -> None:
        self.fitting, self.generator = fitting, torch.Generator().manual_seed(seed)
        self.shift = inputs.mean(axis=0)
        self.scale = np.maximum(inputs.std(axis=0), np.float32(SMALLEST_INPUT))
        self._x = torch.from_numpy((inputs - self.shift) / self.scale)
        self._y = torch.from_numpy(targets)
        sizes = [inputs.shape[1], fitting.hidden, fitting.hidden]
        self.network = Ensemble(fitting.members, sizes, self.generator, outputs=targets.shape[1])

    def learn(self, loss: nn.Module, groups: Sequence[Tensor]) -> Iterator[dict[str, float]]:
        """Batches are drawn from each of the groups of rows alike."""
        fitting, total = self.fitting, torch.zeros(())
        optimizer = torch.optim.AdamW(
            self.network.parameters(), fitting.learning_rate, weight_decay=fitting.weight_decay
        )
        share = max(1, fitting.batch_size // len(groups))
        for update in range(1, fitting.updates + 1):
            optimizer.param_groups[0]["lr"] = cosine(update / fitting.updates, fitting.learning_rate, 0.0)
            rows = torch.cat([self._drawn(group, share) for group in groups], 1)
            x = self._x[rows]
            x = x + fitting.jitter * torch.randn(x.shape, generator=self.generator)
            found = fitting.members * loss(self.network.each(x), self._y[rows])
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            total += found.detach()
            if update % REPORT == 0 or update == fitting.updates:
                since = REPORT if update % REPORT == 0 else update % REPORT
                yield {"progress": update / fitting.updates, "loss": float(total) / since / fitting.members}
                total = torch.zeros(())

    def _drawn(self, group: Tensor, count: int) -> Tensor:
        return group[torch.randint(len(group), (self.fitting.members, count), generator=self.generator)]

    def exported(self) -> Perceptrons:
        """Copies as numpy data, that take inputs as they are."""
        weights, biases = (
            tuple(p.detach().numpy().copy() for p in some) for some in (self.network.weights, self.network.biases)
        )
        return Perceptrons(self.shift, self.scale, weights, biases)


def moves(episodes: Sequence[Moments], pairs: Pairs, fitting: Fitting, seed: int) -> tuple[Learner, Array]:
    """Who will learn what changes, and the deviation (m,) of what does in a control step."""
    change = np.concatenate([np.diff(e.state, axis=0) for e in episodes])
    deviation = change.std(axis=0)
    deviation = np.where(deviation > SMALLEST_CHANGE, deviation, np.float32(0.0))
    parts = ([seen(pairs, e.state[:-1]), in_deviations(e.last[:-1], deviation), e.action[:-1]] for e in episodes)
    before = np.concatenate([np.concatenate(some, axis=1) for some in parts])
    return Learner(before, in_deviations(change, deviation), fitting, seed), deviation


def learn_success(episodes: Sequence[Moments], pairs: Pairs, fitting: Fitting, seed: int) -> Perceptrons:
    """Who knows success; as many moments with it as without are drawn. ValueError unless there are both."""
    state = np.concatenate([e.state for e in episodes])
    success = np.concatenate([e.success for e in episodes])
    if success.all() or not success.any():
        raise ValueError(
            "no recorded moment shows success, or all do: record on after it, with python -m policies.collect linger=10"
        )
    learner = Learner(seen(pairs, state), success[:, None].astype(np.float32), fitting, seed)
    sides = [torch.from_numpy(np.flatnonzero(success == side)) for side in (False, True)]
    for _ in learner.learn(nn.BCEWithLogitsLoss(), sides):
        pass
    return learner.exported()


def learn_moves(learner: Learner) -> Iterator[dict[str, float]]:
    """Until it has learned."""
    yield from learner.learn(nn.SmoothL1Loss(), [torch.arange(len(learner._x))])
