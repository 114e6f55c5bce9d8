"""How the structs of the generated C hold signals and commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile


def struct_type(policy: PolicyFile) -> np.dtype[Any]:
    """The memory layout of `policy_signals`."""
    fields = [(s.name, np.dtype(policy.types[s.name]).newbyteorder("<"), (s.size,)) for s in policy.inputs]
    return np.dtype(fields, align=True)


def packed(policy: PolicyFile, signals: Mapping[str, NDArray[Any]]) -> bytes:
    """Signals of one robot as the bytes of a `policy_signals`. Raises ValueError for a value that does not fit."""
    struct = np.zeros((), struct_type(policy))
    for signal in policy.inputs:
        struct[signal.name] = np.asarray(signals[signal.name]).reshape(signal.size)
    return struct.tobytes()


def unpacked(policy: PolicyFile, data: bytes) -> dict[str, NDArray[np.float32]]:
    """The bytes of a `policy_commands` as commands (*shape) by name."""
    values, commands, start = np.frombuffer(data, "<f4"), {}, 0
    for signal in policy.outputs:
        commands[signal.name] = values[start : start + signal.size].reshape(signal.shape).astype(np.float32)
        start += signal.size
    return commands
