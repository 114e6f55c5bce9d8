"""Arrays over a pipe between two interpreters: a line of JSON with type and shape, then the bytes."""

import json
import math
from typing import Any, BinaryIO

import numpy as np


def send(stream: BinaryIO, *arrays: Any) -> None:
    """Write arrays, numbers or texts, and flush."""
    for values in arrays:
        array = np.asarray(values)
        stream.write(json.dumps([array.dtype.str, array.shape]).encode() + b"\n" + array.tobytes())
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """The next array; None when the other side has closed the pipe."""
    line = stream.readline()
    if not line:
        return None
    kind, shape = json.loads(line)
    content = stream.read(math.prod(shape) * np.dtype(kind).itemsize)
    return np.frombuffer(content, kind).reshape(shape)
