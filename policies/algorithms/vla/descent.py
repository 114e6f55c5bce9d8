"""One update of a network, whose gradient is worked out a micro-batch at a time, and by several learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from policies.learning.buffers import Batch
from policies.learning.parallel.learners import Learners
from policies.learning.vla.memory import enough

STEEPEST = 1.0  # norm of a gradient


def descend(
    learners: Learners,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    pieces: Sequence[Tensor],
    drawn: Callable[[Tensor], Batch],
    losses: Callable[[Batch], dict[str, Tensor]],
    clipped: Sequence[Sequence[Tensor]] = (),
) -> dict[str, Tensor]:
    """One update with these samples, by their numbers (n,) in each micro-batch; the means over all of `losses`.

    "loss" among them is gone down. Each learner draws all that is random; the gradients are of the rows of its shares.
    `clipped`: the parameters whose gradients are clipped together; all, if not told.
    """
    count = sum(map(len, pieces))
    with enough():
        batches = (drawn(rows) for rows in pieces)
        every = [*batches] if learners.parts > 1 else []  # the only part takes each as it comes, once

        def own(place: int, piece: int) -> tuple[Tensor, dict[str, Tensor]]:
            batch, share = learners.cut(every[piece] if every else next(batches), place)
            share *= len(pieces[piece]) / count
            told = {name: value * share for name, value in losses(batch).items()}
            return told["loss"], told

        whole = learners.gradient(own, parameters, len(pieces))
        for some in clipped or [parameters]:
            torch.nn.utils.clip_grad_norm_(some, STEEPEST)
        optimizer.step()
    return whole
