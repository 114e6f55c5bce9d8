"""Where a policy file came from: versions, commit, command line. Collected beside training, in a thread."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sim.tasks import Task, varied

DISTRIBUTIONS = ("sim2metal", "numpy", "numba", "torch", "onnx", "onnxruntime", "mujoco", "pybullet")
LATER = ("rich.progress", "policies.models.export", "onnx", "onnxruntime")  # imports that training does not need
EPOCH = "SOURCE_DATE_EPOCH"  # reproducible-builds.org/specs/source-date-epoch
SWITCH_S = 1e-4  # the training thread, back from a kernel, waits no longer than this for the interpreter


class Background(threading.Thread):
    """Imports what is needed after training, and asks git, while the kernels (which release the interpreter) run.

    As a context it is waited for: Python aborts when it ends while a daemon thread is inside of a library's C++.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bar_ready = threading.Event()
        self.commit: str | None = None

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_alive():
            self.join()

    def run(self) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            with contextlib.suppress(ImportError):  # whoever needs it will say so
                for name in LATER:
                    importlib.import_module(name)
                    self.bar_ready.set()
            self.commit = git_commit()
        finally:
            sys.setswitchinterval(before)


def git_commit() -> str | None:
    """The commit of this checkout, with "+changes" when files differ from it; None when this is no checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None  # installed into a folder that happens to lie inside somebody's checkout
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def made_at() -> str:
    """Now, in ISO 8601; that time where SOURCE_DATE_EPOCH (s since 1970) is set: the same run gives the same bytes.

    Raises ValueError when it is set to something else.
    """
    epoch = os.environ.get(EPOCH)
    if not epoch:
        return datetime.now().astimezone().isoformat(timespec="seconds")
    try:
        return datetime.fromtimestamp(int(epoch), UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{EPOCH}={epoch}: it needs whole seconds since 1970") from None


def lasting(about: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a policy in its file: not where it lay, nor, where SOURCE_DATE_EPOCH is set, how long it took."""
    left_out = {"policy", "seconds"} if os.environ.get(EPOCH) else {"policy"}
    return {key: value for key, value in about.items() if key not in left_out}


def versions() -> dict[str, str]:
    """Of python and of the packages that are in use."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        if name == "sim2metal" or name in sys.modules:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def randomisation(task: Task) -> dict[str, Any]:
    """What varied in simulation: parameters of the robot, and the imperfections of each signal and command."""
    return {
        "vary": [dataclasses.asdict(v) for v in varied(task)],
        "signals": {
            s.name: [{"kind": type(i).__name__, **dataclasses.asdict(i)} for i in s.imperfections]
            for s in (*task.policy, *task.commands)
            if s.imperfections
        },
    }
