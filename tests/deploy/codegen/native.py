"""The generated C on this machine, as tests look at it: its state can be read and set."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.codegen.host import library, state_size
from deploy.codegen.structs import packed, unpacked
from deploy.policy_file import PolicyFile
from deploy.trust.content import content_of


class Native:
    """One robot's controller in compiled C."""

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


def spoiled(folder: Path, scratch: Path) -> Path:
    """A copy of an export whose C computes wrongly: the first constant is another."""
    changed = scratch / "spoiled"
    shutil.copytree(folder, changed)
    text = (changed / "policy.c").read_text()
    wrong = re.sub(r"(static const float \w+\[\d*\] = \{\s*)(-?[\d.]+)", r"\g<1>9.0f + \2", text, count=1)
    assert wrong != text
    (changed / "policy.c").write_text(wrong)
    return changed
