"""The generated C on this machine, compiled and loaded."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy.codegen import toolchain
from deploy.codegen.source import Source
from deploy.policy_file import PolicyFile


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
