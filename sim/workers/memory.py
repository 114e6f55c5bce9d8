"""Memory that processes share: one step's commands, signals, rewards and flags of all rows."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.spec import Group
from sim.tasks import Task

Array = NDArray[Any]
LINE = 64  # bytes of a cache line: where an array begins


def nameless() -> int:
    """The descriptor of a file without a name: it is gone with the last process that has it open."""
    if hasattr(os, "memfd_create"):  # Linux
        return os.memfd_create("worlds")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Memory:
    """Arrays (num, ...) of a task, in a file that other processes see through the same descriptor."""

    def __init__(self, task: Task, num: int, descriptor: int) -> None:
        self._end = 0
        places = [*((s.dtype, s.shape) for s in (*task.commands, *_seen(task)))]
        places += [("float32", ()), ("bool", ()), ("bool", ()), ("int64", ()), ("bool", ())]
        begins = [self._place(np.dtype(dtype), (num, *shape)) for dtype, shape in places]
        os.ftruncate(descriptor, max(self._end, os.fstat(descriptor).st_size))
        self._map = mmap.mmap(descriptor, self._end)
        arrays = [
            np.ndarray((num, *shape), dtype, self._map, begin)
            for begin, (dtype, shape) in zip(begins, places, strict=True)
        ]
        self.commands: dict[str, Array] = {s.name: arrays.pop(0) for s in task.commands}
        self.signals: dict[str, Array] = {s.name: arrays.pop(0) for s in _seen(task)}
        self.reward, self.success, self.terminated = arrays[:3]
        self.episode, self.begins = arrays[3:]  # the number of each row's, and whether it is to begin

    def _place(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
        begin = self._end
        self._end += -(-dtype.itemsize * int(np.prod(shape)) // LINE) * LINE
        return begin


def _seen(task: Task) -> Group:
    return (*task.policy, *task.privileged)
