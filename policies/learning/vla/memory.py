"""Where memory runs out, which setting to lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from policies.algorithms import LearningError

SAID = ("out of memory", "can't allocate memory")  # by torch, of a GPU's and of the CPU's


@contextmanager
def enough(*more: str) -> Iterator[None]:
    """LearningError, one sentence, where there was not; `more`: what may be lowered besides."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        out = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not out and not any(said in str(error) for said in SAID):
            raise
        lower = " or ".join(("micro_batch", *more))
        raise LearningError(
            f"out of memory: of the settings of vla, lower {lower}, or let less learn: pretrained.lora_rank=16, "
            "pretrained.precision=bfloat16"
        ) from error
