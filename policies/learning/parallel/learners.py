"""Several learners that share one update: what an algorithm asks for.

Each of its minibatches is cut into parts. A learner has some of them. Gradients are summed over the parts, always in
the same order: so the result is that of one process that has all parts, whoever has which. There are two ways to that.
Either worlds are cut, too, each part has random numbers of its own, and what is usual of observations, values and
advantages is summed as well. Or all learners do the same, draw the same, and `cut` their batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the size of a number
GO, STATE, END = 1, 2, 3  # what the first one says to the others


class DismissedError(Exception):
    """The first learner says that it is over."""


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

    def cut(self, batch: Mapping[str, Tensor], place: int) -> tuple[dict[str, Tensor], float]:
        """The rows (n, ...) of a batch that are of one of my parts, and their share of it.

        All learners have the whole batch. Where it has fewer rows than parts, some have another's row, as none of it.
        """
        count, part = len(next(iter(batch.values()))), self.mine[place]
        first, end = part * count // self.parts, (part + 1) * count // self.parts
        rows = slice(first, end) if end > first else slice(0, 1)
        return {name: values[rows] for name, values in batch.items()}, (end - first) / count

    def all(self, own: Sequence[Tensor]) -> Tensor:
        """What each of my parts has, tensors of one shape, of all parts: (parts, ...)."""
        found = self.group.gathered(torch.stack([*own, *[own[0]] * (self._places - len(own))]))
        return torch.stack([found[at] for at in self._order]).to(own[0].device)

    def map(self, work: Callable[[int], T], many: int) -> list[T]:
        """What it returns for 0, 1, ... below `many`, in my threads if I have some."""
        return self._threads.map(work, many) if self._threads else [work(k) for k in range(many)]

    def gradient(self, loss: Loss, parameters: Sequence[Tensor], pieces: int = 0) -> dict[str, Tensor]:
        """Leave in `grad` that of the sum over all parts of `loss`, told the place of one among mine and the piece.

        What `loss` returns besides are single numbers, whose sums these are. `pieces`: of each part here, if not as
        many as usual; without threads one after the other, whose gradients are not all kept.
        """
        pieces = pieces or self.pieces
        if not self._threads:
            return _alone(loss, parameters, pieces)
        names: list[str] = []
        used: list[Tensor] = []

        def one(unit: int) -> Tensor:
            value, more = loss(*divmod(unit, pieces))
            gradients = torch.autograd.grad(value, parameters, allow_unused=True)
            found = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
            names[:], used[:] = more, [p for p, _ in found]
            return torch.cat([*(g.reshape(-1) for _, g in found), *(v.detach().reshape(1) for v in more.values())])

        units = self._threads.each(one, len(self.mine) * pieces)
        made = [_sum(itertools.islice(units, pieces)) for _ in self.mine]
        own = torch.stack([*made, *[torch.zeros_like(made[0])] * (self._places - len(made))])
        total, begin = self.group.summed(own, self._order), 0
        for parameter in parameters:
            parameter.grad = None
        for parameter in used:
            # It must lie in memory as the parameter does: torch's fused optimizers are silently wrong otherwise.
            part = total[begin : begin + parameter.numel()].view(parameter.shape)
            parameter.grad = torch.empty_like(parameter).copy_(part)
            begin += parameter.numel()
        return dict(zip(names, total[begin:], strict=True))

    def agree(self, values: Sequence[Tensor]) -> None:
        """LostLearnerError unless all have the same weights and data, to the last bit: each steps by itself."""
        if self.group.count == 1:
            return
        sums = [v.detach().reshape(-1).view(BITS[v.element_size()]).sum(dtype=torch.int64).cpu() for v in values]
        if len(self.group.gathered(torch.stack(sums)).unique(dim=0)) > 1:
            raise LostLearnerError("the learners are no longer the same: are their processors of one kind?")

    def more(self, wanted: bool, own: Callable[[], list[State]] | None = None) -> bool:
        """Whether there is an iteration to do. The first one decides. DismissedError: it is over, for another.

        `own`: the states of my parts, which the others give to the first one when it asks, also after the last
        iteration; None where it knows all.
        """
        if self.group.count == 1 or (not own and not wanted):
            return wanted
        if self.first:
            if wanted:
                self.group.told(GO)
            return wanted
        while (said := self.group.told()) == STATE and own:
            self.group.sent(checkpoint.dumps({"parts": own()}))
        if said != GO:
            raise DismissedError
        return True

    def states(self, own: list[State]) -> list[State]:
        """Of all parts, for the first one, which alone asks, between two iterations or at the end."""
        if self.group.count == 1 or not self.first:
            return own
        self.group.told(STATE)
        for rank in range(1, self.group.count):
            own += checkpoint.loads(self.group.received(rank), f"learner {rank}")["parts"]
        return own


def _alone(loss: Loss, parameters: Sequence[Tensor], pieces: int) -> dict[str, Tensor]:
    """`Learners.gradient` of the only part: the same bits, without copies."""
    told: dict[str, Tensor] = {}
    for parameter in parameters:
        parameter.grad = None
    for piece in range(pieces):
        value, more = loss(0, piece)
        value.backward()
        told = {name: shown.detach() + told.get(name, 0.0) for name, shown in more.items()}
    return told


def _sum(values: Iterator[Tensor]) -> Tensor:
    """One after the other."""
    total = next(values)
    for value in values:
        total = total + value
    return total


def dismissed(group: Group) -> None:
    """Tell the others that it is over."""
    if group.count > 1 and group.rank == 0:
        group.told(END)


def waited(group: Group) -> None:
    """Until the first one says that."""
    while group.told() != END:
        pass
