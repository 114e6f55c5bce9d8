"""One run of training as a job: what a node does for it, in a process and a folder of its own.

The folder's new files are handed on whenever there is a new checkpoint, so whoever asked can have the job continued
elsewhere when this node is lost: at most the time since then is lost, and the result is the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from policies.runner.folder import CHECKPOINT, POLICY, continued, quoted
from policies.runner.lock import NAME as LOCK

JUDGED = "evaluation.json"  # in the folder: what `policies.evaluate` says of the policy, where that is asked for
LOOK_S = 0.2  # s between two looks at the folder
SIGN_S = 2.0  # s between two signs of life, on which whoever asked may stop listening
PATIENCE = 5.0  # s that a run may take to end when nobody wants it any more
TOLD = ("SOURCE_DATE_EPOCH", "SIM2METAL_TRACEBACK")  # of the environment, whoever asks
# The process ends with whoever began it, for its input then does: a run that nobody waits for takes somebody's place.
BEGIN = (
    "import json, os, runpy, sys, threading; "
    "threading.Thread(target=lambda: os.read(0, 1) or os._exit(143), daemon=True).start(); "
    "sys.path[:] = json.loads(sys.argv.pop(1)); runpy.run_module('{}', run_name='__main__', alter_sys=True)"
)


class Order(NamedTuple):
    """What a node is told: the words after `python -m policies.train`, and after `policies.evaluate`, if any."""

    words: tuple[str, ...]
    judged_by: tuple[str, ...] = ()
    where: str = "."  # the folder in which they were typed, for files that they name
    environment: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()  # where whoever asks finds modules, such as the task's


class Part(NamedTuple):
    """Files of the run's folder that are new, by name, perhaps none; at the end what it said last, and its status."""

    files: dict[str, bytes]
    status: int | None = None  # None: it goes on
    said: str = ""


def performed(order: Order, kept: Mapping[str, bytes]) -> Iterator[Part]:
    """Train on this machine, from the checkpoint among the files `kept` on if there is one."""
    with tempfile.TemporaryDirectory(prefix="sim2metal-") as place:
        folder = Path(place) / "run"
        for name, content in kept.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        words = [*order.words, f"out={quoted(folder)}"]
        if CHECKPOINT in kept:
            words = [*continued(folder, order.words), *_resumable(order.words)]
        seen = times(folder)
        status, said = 0, ""
        if POLICY not in kept:
            status, said = yield from watched("policies.train", words, folder, order, seen)
        if status == 0 and order.judged_by:
            words = [f"policy={folder / POLICY}", *order.judged_by, f"json={folder / JUDGED}"]
            status, said = yield from watched("policies.evaluate", words, folder, order, seen)
        yield Part(_new(folder, seen), status, said)


def _resumable(words: Sequence[str]) -> list[str]:
    """The words that may be said again of a run that is continued."""
    return [word for word in words if word.startswith(("report=", "evaluation_episodes=", "checkpoint_s="))]


def watched(
    module: str, words: Sequence[str], folder: Path, order: Order, seen: dict[str, int]
) -> Generator[Part, None, tuple[int, str]]:
    """Run a command of ours; yield what is new whenever there is a checkpoint, and a sign of life in between.

    Its status, and what it said last.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "OMP_NUM_"))}
    said = folder.parent / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", BEGIN.format(module), json.dumps([*sys.path, *order.path]), *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=order.where if os.path.isdir(order.where) else None,
            env={**environment, **dict(order.environment)},
            process_group=0,  # Ctrl-C is for whoever asked
        )
    heard = time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(LOOK_S)
            if times(folder).get(CHECKPOINT, 0) != seen.get(CHECKPOINT, 0):
                yield Part(_new(folder, seen))
            elif time.monotonic() - heard > SIGN_S:
                yield Part({})
            else:
                continue
            heard = time.monotonic()
    finally:
        _end(process)
    return process.returncode, said.read_text(errors="replace")[-2000:].strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdin is not None
    process.stdin.close()


def times(folder: Path) -> dict[str, int]:
    """When each file was written, ns; what is half written has another name, which is left out."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.name != LOCK and not path.name.endswith((".part", ".tmp")):
                found[path.relative_to(folder).as_posix()] = path.stat().st_mtime_ns
    return found


def _new(folder: Path, seen: dict[str, int]) -> dict[str, bytes]:
    """The files that are not as they were `seen`, which then says how they are."""
    files = {}
    for name, when in times(folder).items():
        with contextlib.suppress(FileNotFoundError):
            if seen.get(name) != when:
                files[name] = (folder / name).read_bytes()
                seen[name] = when
    return files
