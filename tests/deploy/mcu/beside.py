"""A policy with a residual that learns beside it, compiled on this machine: the source that the chip runs."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from deploy.codegen import toolchain
from deploy.codegen.host import state_size
from deploy.codegen.source import Source
from deploy.codegen.structs import packed, unpacked
from deploy.mcu.residual import Residual
from deploy.policy_file import PolicyFile

# For tests: what `residual.c` keeps to itself, by address.
PROBE = """
void *probe_learner(void) { return &learner; }
int probe_size(void) { return sizeof learner; }
float probe_action(void) { return action; }
void probe_tell(residual_report *report) { *report = residual_tell(); }
"""


class Beside:
    """For `deploy.loop.run`: one robot."""

    def __init__(self, policy: PolicyFile, folder: Path, residual: Residual | None = None, steps: int = 0) -> None:
        """`steps`: of learning, in every flight."""
        for name, text in (Source(policy, policy.content()).files() | (residual or Residual()).files(policy)).items():
            (folder / name).write_text(text + PROBE * (name == "residual.c"))
        self.library: Any = ctypes.CDLL(str(toolchain.host_library(folder)))
        self.library.probe_learner.restype = ctypes.c_void_p
        self.library.residual_step.restype = ctypes.c_bool
        self.library.probe_action.restype = ctypes.c_float
        self.policy, self.steps, self.seed = policy, steps, 0
        self.path, self.robot, self.rate_hz, self.vectors = policy.path, policy.robot, policy.rate_hz, policy.vectors
        self.inputs, self.outputs = policy.inputs, policy.outputs
        self._state = (ctypes.c_float * state_size(policy))()
        self._commands = (ctypes.c_float * sum(s.size for s in policy.outputs))()

    def reset(self, n: int = 1) -> None:
        self.library.policy_reset(self._state)
        self.library.residual_reset()
        if self.steps:
            self.library.residual_begin(ctypes.c_uint32(self.seed), ctypes.c_uint32(self.steps))

    def step(self, signals: Any) -> dict[str, np.ndarray]:
        """Commands (1, *shape), NaN where the policy refuses."""
        if not self.library.residual_step(self._state, packed(self.policy, signals), self._commands):
            return {s.name: np.full((1, *s.shape), np.nan, np.float32) for s in self.outputs}
        return {name: value[None] for name, value in unpacked(self.policy, bytes(self._commands)).items()}

    def learner(self) -> np.ndarray:
        """The floats of the `stream_learner`, which may be written to."""
        count = self.library.probe_size() // 4
        return np.ctypeslib.as_array((ctypes.c_float * count).from_address(self.library.probe_learner()))
