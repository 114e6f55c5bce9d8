"""The process in which an adviser works. It ends with the socket by which it is asked, and with who began it.

It is told the task and the settings, pickled, then one question after the other; see `policies.advisers.process`.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import threading
import time
from typing import NamedTuple

import numpy as np

from policies.advisers import Adviser, Array, make

LENGTH = struct.Struct("<q")  # of what follows
SHAPE = struct.Struct("<qq")
READY, ANSWER, FAILED = b"r", b"a", b"!"
LONGEST = 2000  # characters of an error
WATCH = 1.0  # s between looks at whether who began it is still there


class Question(NamedTuple):
    """About the transitions with these numbers, n of them."""

    serial: Array  # (n,) int64
    signals: dict[str, Array]  # (n, *shape)
    done: Array  # (n, k) in [-1, 1]


def main() -> None:
    """Answer until there are no more questions."""
    threading.Thread(target=_watch, args=(int(sys.argv[2]),), daemon=True).start()
    with socket.socket(fileno=int(sys.argv[1])) as line:
        try:
            _work(line)
        except (BrokenPipeError, ConnectionResetError):  # nobody is there who would hear the answer
            pass
        except Exception as error:
            _say(line, FAILED + _reason(error))


def _work(line: socket.socket) -> None:
    adviser = make(*pickle.loads(_read(line)))
    adviser.open()
    _say(line, READY)
    while told := _read(line):
        _say(line, _answered(adviser, pickle.loads(told)))


def _answered(adviser: Adviser, question: Question) -> bytes:
    """The answer as a matrix, whatever its shape, or what went wrong: who asked looks at what comes."""
    try:
        action, weight, score = adviser.advise(question.signals, question.done)
        columns = (np.asarray(action), np.reshape(weight, (-1, 1)), np.reshape(score, (-1, 1)))
        found = np.concatenate(columns, axis=1, dtype=np.float32, casting="unsafe")
        return ANSWER + SHAPE.pack(*found.shape) + found.tobytes()
    except Exception as error:
        return FAILED + _reason(error)


def framed(message: bytes) -> bytes:
    """Its length first."""
    return LENGTH.pack(len(message)) + message


def _reason(error: Exception) -> bytes:
    return f"{type(error).__name__}: {error}"[:LONGEST].encode()


def _say(line: socket.socket, message: bytes) -> None:
    line.sendall(framed(message))


def _read(line: socket.socket) -> bytes:
    """The next message; empty when there is none any more."""
    head = _exactly(line, LENGTH.size)
    return _exactly(line, LENGTH.unpack(head)[0]) if head else b""


def _exactly(line: socket.socket, count: int) -> bytes:
    read = bytearray()
    while len(read) < count:
        more = line.recv(min(count - len(read), 1 << 20))
        if not more:
            return b""
        read += more
    return bytes(read)


def _watch(parent: int) -> None:
    """End with who began this, even in the midst of an answer."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)
