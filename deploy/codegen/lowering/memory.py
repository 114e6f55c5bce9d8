"""Statements that read and write blocks of memory, and where those live: static memory whose parts are used again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Step:
    """Statements, with what they read and write: the names and sizes of blocks of memory."""

    reads: set[str]
    writes: dict[str, int]
    lines: Callable[[], list[str]]
    cycles: float  # estimated, on a Cortex-M4F
    rounds: dict[str, int] = field(default_factory=dict)  # rounded inputs of products, in a memory of their own: words


def allocated(
    steps: Sequence[Step], written: Sequence[Mapping[str, int]], ends: Collection[str]
) -> tuple[dict[str, int], int]:
    """A place for every block that is `written`, per step, where nothing else lives at that time; the memory's size.

    `ends`: the blocks that are still read after the last step.
    """
    last = {name: index for index, step in enumerate(steps) for name in (*step.reads, *step.writes, *step.rounds)}
    last |= dict.fromkeys(ends, len(steps))
    where: dict[str, int] = {}
    living: list[tuple[int, int, int]] = []  # start, stop, last step
    most = 0
    for index, blocks in enumerate(written):
        living = [block for block in living if block[2] >= index]
        for name, size in blocks.items():
            start = 0
            for begin, stop, _ in sorted(living):
                if start + size <= begin:
                    break
                start = max(start, stop)
            where[name] = start
            living.append((start, start + size, last[name]))
            most = max(most, start + size)
    return where, most
