"""What computes a policy's commands: onnxruntime, the generated C on this machine, or a microcontroller."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.host import library, state_size
from deploy.codegen.structs import struct_type
from deploy.loop import Policy
from deploy.policy_file import PolicyFile

CONTROLLERS = ("onnxruntime", "c", "emulated")  # or the serial device of a board
FASTEST = ("-O3", "-march=native")  # it is compiled where it runs


class CompiledPolicy:
    """A policy as compiled C, for `deploy.loop.run`: the same contract as the file's, a fraction of its time."""

    def __init__(self, policy: PolicyFile, weights: str = "float32", flags: Sequence[str] = FASTEST) -> None:
        """Generate with such `weights`, compile, self-test. Raises PolicyFileError, GraphError or ToolchainError."""
        self.path, self.robot, self.rate_hz = policy.path, policy.robot, policy.rate_hz
        self.inputs, self.outputs, self.vectors = policy.inputs, policy.outputs, policy.vectors
        self._library, _ = library(policy, policy.content(), flags=flags, weights=weights)
        self._state_size, self._type = state_size(policy), struct_type(policy)
        self.reset()

    def reset(self, n: int = 1) -> None:
        self.n = n
        self._state = np.zeros((n, self._state_size), np.float32)
        self._signals = np.zeros(n, self._type)
        self._fed = [(s.name, self._signals[s.name].reshape(n, *s.shape)) for s in self.inputs]
        sizes = np.cumsum([0, *(s.size for s in self.outputs)])
        self._commands = np.zeros((n, sizes[-1]), np.float32)
        self._returned = [
            (s.name, self._commands[:, at : at + s.size], (n, *s.shape))
            for s, at in zip(self.outputs, sizes, strict=False)
        ]
        arrays = (self._state, self._signals, self._commands)
        self._pointers = [tuple(ctypes.c_void_p(a[k : k + 1].ctypes.data) for a in arrays) for k in range(n)]
        self.restart(np.ones(n, bool))

    def restart(self, robots: NDArray[np.bool_]) -> None:
        """Begin anew with the robots in the mask (n,), while the others go on."""
        for k in np.flatnonzero(robots):
            self._library.policy_reset(self._pointers[k][0])

    def step(self, signals: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """Commands (n, *shape) by name for signals (n, *shape) by name; NaN where something is not finite."""
        for name, place in self._fed:
            place[...] = signals[name]
        for k, pointers in enumerate(self._pointers):
            if not self._library.policy_step(*pointers):
                self._commands[k] = np.nan
        return {name: values.reshape(shape).copy() for name, values, shape in self._returned}


@runtime_checkable
class Connected(Protocol):
    """A controller at the other end of a line, to a chip."""

    def close(self) -> None:
        """Hang up."""


def controller(policy: PolicyFile, kind: str) -> Policy:
    """The policy, computed by that kind of controller; ValueError lists the choices."""
    if kind == "onnxruntime":
        return policy
    if kind == "c":
        return CompiledPolicy(policy)
    if kind == "emulated" or kind.startswith("/dev/"):
        from deploy.hil import connect

        return connect(policy, kind)[0]
    raise ValueError(f"unknown controller {kind!r}; choices: {', '.join(CONTROLLERS)}, or a board's serial device")
