"""A process that steps some of the worlds. It ends with the pipe by which it is asked, whatever ended the other side.

A request is one byte; the answer is one, after which the shared memory is filled. An error is told, and the last word.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
from typing import Any, NamedTuple

import numpy as np

from sim.env import WorldError
from sim.workers.memory import Memory

RESET, STEP, RENDER = b"r", b"s", b"v"
DONE, FAILED = b".", b"!"
LENGTH = struct.Struct("<q")
PICTURE = struct.Struct("<qqq")  # row, height, width
LONGEST = 2000  # characters of an error


class Share(NamedTuple):
    """What a worker is told first."""

    task: Any
    num: int  # rows in all
    first: int  # of its rows, and one more than their last
    last: int
    seed: int


def main() -> None:
    """Take part in the memory, and answer requests until there are no more."""
    requests, answers, descriptor = map(int, sys.argv[1:])
    try:
        _work(requests, answers, descriptor)
    except BrokenPipeError:  # nobody is there who would hear the answer
        pass
    except WorldError as error:
        _say(answers, error.row, error.reason)
    except Exception as error:
        _say(answers, 0, f"{type(error).__name__}: {error}")


def _say(answers: int, row: int, reason: str) -> None:
    os.write(answers, FAILED + json.dumps([row, reason[:LONGEST]]).encode())


def _work(requests: int, answers: int, descriptor: int) -> None:
    share: Share = pickle.loads(_read(requests, LENGTH.unpack(_read(requests, LENGTH.size))[0]))
    memory, rows = Memory(share.task, share.num, descriptor), slice(share.first, share.last)
    env = share.task.open(share.last - share.first, share.seed)
    os.write(answers, DONE)
    while request := os.read(requests, 1):
        if request == RENDER:
            row, height, width = PICTURE.unpack(_read(requests, PICTURE.size))
            picture = env.render(row, height, width).tobytes()
            os.write(answers, DONE)
            while picture:
                picture = picture[os.write(answers, picture) :]
            continue
        if request == RESET:
            begun = np.flatnonzero(memory.begins[rows])
            env.reset(begun.tolist(), memory.episode[rows][begun].tolist())
        else:
            step = env.step({name: array[rows].copy() for name, array in memory.commands.items()})
            memory.reward[rows], memory.success[rows] = step.reward, step.success
            memory.terminated[rows] = step.terminated
        seen = env.observe()
        for name, place in memory.signals.items():
            place[rows] = seen[name]
        os.write(answers, DONE)
    env.close()


def _read(descriptor: int, count: int) -> bytes:
    """So many bytes; BrokenPipeError when there are fewer."""
    read = b""
    while len(read) < count:
        more = os.read(descriptor, count - len(read))
        if not more:
            raise BrokenPipeError
        read += more
    return read
