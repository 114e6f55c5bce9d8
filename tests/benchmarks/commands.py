"""The project's commands, run as a user runs them, with what they cost."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import ROOT


class FailedError(Exception):
    """A command failed; the message has the exit code, then on further lines the command and its last words."""


def run(command: list[str], folder: Path = ROOT, **environment: str) -> tuple[dict[str, float], str]:
    """What a command run in `folder` cost (seconds of wall clock and of CPU, peak memory in MB), and what it said.

    FailedError when it fails.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as on a user's machine
    with tempfile.TemporaryFile("w+") as said:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, stdout=said, stderr=subprocess.STDOUT, env={**inherited, **environment}
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    if process.returncode:
        raise FailedError(f"failed with exit code {process.returncode}\n{' '.join(command)}\n{text[-2000:]}")
    return {"wall_s": wall, "cpu_s": used.ru_utime + used.ru_stime, "memory_mb": used.ru_maxrss / 1024}, text


def train(folder: Path, *arguments: str, **environment: str) -> dict[str, float]:
    """`policies.train` into `folder`: what it cost, and its own account of the seconds to the verified file."""
    command = [sys.executable, "-m", "policies.train", "report=false", f"out={folder}", *arguments]
    used, _ = run(command, **environment)
    laps = json.loads((folder / "timing.json").read_text())
    return {**used, "seconds": laps["total"], "training_s": laps["training"]}


def learned(folder: Path, *arguments: str) -> dict[str, float]:
    """What `train` cost, now, or when it was run before into this folder."""
    path = folder / "cost.json"
    if not path.exists():
        path.write_text(json.dumps(train(folder, *arguments)))
    cost: dict[str, float] = json.loads(path.read_text())
    return cost


def evaluate(folder: Path, *arguments: str) -> dict[str, Any]:
    """The report of `policies.evaluate` on the policy file in `folder`."""
    path = folder / "evaluation.json"
    run([sys.executable, "-m", "policies.evaluate", f"policy={folder / 'policy.onnx'}", f"json={path}", *arguments])
    report: dict[str, Any] = json.loads(path.read_text())
    return report
