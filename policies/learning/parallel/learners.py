"""Several learners that share one update: what an algorithm asks for.

Its worlds and each of its minibatches are cut into parts, each with random numbers of its own. A learner has some of
them. What depends on all (gradients, and what is usual of observations, values and advantages) is summed over the
parts, always in the same order: so the result is that of one process that has all parts, whoever has which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from policies.algorithms import LostLearnerError
from policies.learning.parallel.group import Group, current
from policies.learning.parallel.threads import TorchThreads
from policies.runner import checkpoint

State = dict[str, Any]
Loss = Callable[[int, int], tuple[Tensor, Mapping[str, Tensor]]]
T = TypeVar("T")
GO, STATE, END = 1, 2, 3  # what the first one says to the others


class Learners:
    """All learners of `parts`, as this one of them sees it: `mine` are the numbers of its own parts."""

    def __init__(self, parts: int, threads: int = 1, pieces: int = 1, group: Group | None = None) -> None:
        """`threads` work on this learner's parts, or on `pieces` of each. ValueError: fewer parts than learners."""
        self.group = group or current()
        rank, count = self.group.rank, self.group.count
        if parts < count:
            raise ValueError(f"{count} learners need algorithm.parts={count} or more, this run has {parts}")
        edges = [k * parts // count for k in range(count + 1)]
        self.parts, self.mine = parts, range(edges[rank], edges[rank + 1])
        self._order = [(k, place) for k in range(count) for place in range(edges[k + 1] - edges[k])]
        self._places = -(-parts // count)
        self.pieces = pieces
        self._threads = TorchThreads(threads) if parts * pieces > 1 else None

    @property
    def first(self) -> bool:
        """Whether this is the one that evaluates."""
        return self.group.rank == 0

    def seeds(self, seed: int) -> list[int]:
        """Of my parts; the only part has the seed itself."""
        if self.parts == 1:
            return [seed]
        return [int(np.random.SeedSequence([seed, part]).generate_state(1)[0]) for part in self.mine]

    def all(self, own: Sequence[Tensor]) -> Tensor:
        """What each of my parts has, tensors of one shape, of all parts: (parts, ...)."""
        found = self.group.gathered(torch.stack([*own, *[own[0]] * (self._places - len(own))]))
        return torch.stack([found[at] for at in self._order]).to(own[0].device)

    def map(self, work: Callable[[int], T], many: int) -> list[T]:
        """What it returns for 0, 1, ... below `many`, in my threads if I have some."""
        return self._threads.map(work, many) if self._threads else [work(k) for k in range(many)]

    def gradient(self, loss: Loss, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        """Leave in `grad` that of the sum over all parts of `loss`, told the place of one among mine and the piece.

        What `loss` returns besides are single numbers, whose sums these are.
        """
        names: list[str] = []

        def one(unit: int) -> Tensor:
            value, more = loss(*divmod(unit, self.pieces))
            gradients = torch.autograd.grad(value, parameters)
            names[:] = more
            return torch.cat([*(g.reshape(-1) for g in gradients), *(v.detach().reshape(1) for v in more.values())])

        units = self.map(one, len(self.mine) * self.pieces)
        made = [_sum(units[k : k + self.pieces]) for k in range(0, len(units), self.pieces)]
        own = torch.stack([*made, *[torch.zeros_like(made[0])] * (self._places - len(made))])
        total, begin = self.group.summed(own, self._order), 0
        for parameter in parameters:
            # It must lie in memory as the parameter does: torch's fused optimizers are silently wrong otherwise.
            part = total[begin : begin + parameter.numel()].view(parameter.shape)
            parameter.grad = torch.empty_like(parameter).copy_(part)
            begin += parameter.numel()
        return dict(zip(names, total[begin:], strict=True))

    def agree(self, parameters: Sequence[Tensor]) -> None:
        """LostLearnerError unless all have the same weights, to the last bit: each steps by itself."""
        if self.group.count == 1:
            return
        sums = [p.detach().view(torch.int32).sum(dtype=torch.int64).cpu() for p in parameters]
        if len(self.group.gathered(torch.stack(sums)).unique(dim=0)) > 1:
            raise LostLearnerError("the learners' weights are no longer the same: are their processors of one kind?")

    def more(self, wanted: bool, own: Callable[[], list[State]]) -> bool:
        """Whether there is an iteration to do. The first one decides; the others serve it until it has.

        `own`: the states of my parts.
        """
        if self.group.count == 1:
            return wanted
        if self.first:
            if wanted:
                self.group.told(GO)
            return wanted
        while (said := self.group.told()) == STATE:
            self.group.sent(checkpoint.dumps({"parts": own()}))
        return said == GO

    def states(self, own: list[State]) -> list[State]:
        """Of all parts, for the first one, which alone asks, between two iterations or at the end."""
        if self.group.count == 1 or not self.first:
            return own
        self.group.told(STATE)
        for rank in range(1, self.group.count):
            own += checkpoint.loads(self.group.received(rank), f"learner {rank}")["parts"]
        return own


def _sum(values: Sequence[Tensor]) -> Tensor:
    """One after the other."""
    total, *rest = values
    for value in rest:
        total = total + value
    return total


def dismissed(group: Group) -> None:
    """Tell the others that it is over."""
    if group.count > 1 and group.rank == 0:
        group.told(END)
