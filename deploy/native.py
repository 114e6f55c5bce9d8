"""The generated C on this machine: the on-board controller of simulated vehicles, and what tests compare."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy import toolchain
from deploy.c_source import Source
from deploy.measure import packed, unpacked
from deploy.policy_file import PolicyFile, content_of


class Native:
    """One robot's controller in compiled C. Several may share one library: each has its own state."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        compiler: str = "auto",
        flags: Sequence[str] = (),
        weights: str = "float32",
    ) -> None:
        """Verify, generate, compile, load, self-test. Raises PolicyFileError, GraphError or ToolchainError."""
        content = content_of(os.fspath(path))
        self.policy = PolicyFile.from_bytes(content, os.fspath(path))
        with tempfile.TemporaryDirectory() as folder:
            for name, text in Source(self.policy, content, weights).files().items():
                (Path(folder) / name).write_text(text)
            self.library = ctypes.CDLL(str(toolchain.host_library(Path(folder), compiler, flags)))
        self.library.policy_selftest.restype = ctypes.c_float
        self.library.policy_step.restype = ctypes.c_bool
        self._sizes = {s.name: s.initial.size for s in self.policy.state}
        self._state = (ctypes.c_float * max(1, sum(self._sizes.values())))()
        self._commands = (ctypes.c_float * sum(s.size for s in self.policy.outputs))()
        self.selftest = float(self.library.policy_selftest(self._state))  # share of the tolerance
        if not self.selftest <= 1.0:
            raise toolchain.ToolchainError(f"{path}: compiled, but its self-test fails: {self.selftest:.3g} tolerances")

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
