"""How the structs of the generated C hold signals and commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.elementwise import number
from deploy.codegen.onnx_graph import GraphError
from deploy.policy_file import PolicyFile
from sim.spec import Signal

MOST = float(np.finfo(np.float32).max)
WHOLE = 2**24  # up to here each is a float32


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


def check_limits(policy: PolicyFile) -> None:
    """GraphError when the file's own vectors command what its limits forbid, or tokens are more than C tells apart."""
    for s in policy.inputs:
        if s.dtype == "int64" and max(-s.low, s.high) > WHOLE:
            raise GraphError(
                f"{policy.path}: {s.name} goes from {s.low:.0f} to {s.high:.0f}; "
                f"C tells whole numbers apart from -{WHOLE} to {WHOLE}"
            )
    for s in policy.outputs:
        values, spare = policy.vectors.outputs[s.name], policy.vectors.tolerance * policy.vectors.span(s)
        if values.min() < s.low - spare or values.max() > s.high + spare:
            raise GraphError(
                f"{policy.path}: its test vectors command {s.name} {values.min():g} to {values.max():g}, beyond its "
                f"limits of {s.low:g} to {s.high:g}, which C keeps to: export it again, with them in the graph"
            )


def clipped(command: Signal, values: NDArray[Any]) -> NDArray[Any]:
    """A command as C gives it: what a file promises of it, its graph need not keep."""
    made: NDArray[Any] = np.clip(values, *_limits(command))
    return made


def limited(command: Signal) -> str:
    """The same as C: of element i of what is computed at {}."""
    low, high = _limits(command)
    return "({})[i]" if (low, high) == (-MOST, MOST) else f"policy_clip(({{}})[i], {number(low)}, {number(high)})"


def _limits(command: Signal) -> tuple[float, float]:
    return max(command.low, -MOST), min(command.high, MOST)
