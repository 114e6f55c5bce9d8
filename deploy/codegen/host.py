"""The generated C on this machine, for `deploy.runtimes` and for tests."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen import toolchain
from deploy.codegen.source import Source
from deploy.codegen.structs import packed, unpacked
from deploy.policy_file import PolicyFile, content_of


def library(
    policy: PolicyFile, content: bytes, compiler: str = "auto", flags: Sequence[str] = (), weights: str = "float32"
) -> tuple[ctypes.CDLL, float]:
    """Generate, compile, load, self-test: the functions of policy.h, and the share of the tolerance that was used.

    `content` is the policy file's. Raises GraphError or ToolchainError.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, text in Source(policy, content, weights).files().items():
            (Path(folder) / name).write_text(text)
        made = ctypes.CDLL(str(toolchain.host_library(Path(folder), compiler, flags)))
    made.policy_selftest.restype = ctypes.c_float
    made.policy_step.restype = ctypes.c_bool
    used = float(made.policy_selftest((ctypes.c_float * state_size(policy))()))
    if not used <= 1.0:
        raise toolchain.ToolchainError(f"{policy.path}: compiled, but its self-test fails: {used:.3g} tolerances")
    return made, used


def state_size(policy: PolicyFile) -> int:
    """The numbers in a `policy_state`, which C does not let be empty."""
    return max(1, sum(s.initial.size for s in policy.state))


class Native:
    """One robot's controller in compiled C, as tests look at it: its state can be read and set."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        compiler: str = "auto",
        flags: Sequence[str] = (),
        weights: str = "float32",
    ) -> None:
        """Check, generate, compile, load, self-test. Raises PolicyFileError, GraphError or ToolchainError."""
        content = content_of(os.fspath(path))
        self.policy = PolicyFile.from_bytes(content, os.fspath(path))
        self.library, self.selftest = library(self.policy, content, compiler, flags, weights)
        self._sizes = {s.name: s.initial.size for s in self.policy.state}
        self._state = (ctypes.c_float * state_size(self.policy))()
        self._commands = (ctypes.c_float * sum(s.size for s in self.policy.outputs))()
        self.reset()

    def reset(self) -> None:
        """Begin a flight."""
        self.library.policy_reset(self._state)

    def step(self, signals: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]] | None:
        """Commands (*shape) for signals (*shape); None when something is not finite: the state is then unchanged."""
        data = packed(self.policy, signals)
        if not self.library.policy_step(self._state, data, self._commands):
            return None
        return unpacked(self.policy, bytes(self._commands))

    @property
    def state(self) -> dict[str, NDArray[np.float32]]:
        """The present state by name (k,): views, which may be written to."""
        whole, views, start = np.ctypeslib.as_array(self._state), {}, 0
        for name, size in self._sizes.items():
            views[name] = whole[start : start + size]
            start += size
        return views
