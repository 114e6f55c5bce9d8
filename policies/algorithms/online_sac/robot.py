"""A robot's control loop in a process of its own (`deploy.remote.online`), and what it tells: transitions."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.remote.online import END, FLIGHT, LARGEST, POLICY, STEPS, Layout
from deploy.remote.online import KEPT as SAFE
from deploy.system.interrupts import LANDING
from deploy.trust import npz
from deploy.trust.interpreter import python
from policies.algorithms import LearningError, LostBaseError

Array = NDArray[Any]
KEPT = "unlearned_{}.npz"  # what a robot's process writes when its learner is gone, by session
LARGEST_KEPT = 1 << 30  # bytes of it: hours of a robot
SILENCE = 60.0  # s without a control step: connecting takes some


@dataclass(frozen=True)
class Told:
    """Of `n` robots: what they saw (n, .), what was then sent (n, .), what they saw next, and marks (n,) of both."""

    signals: Array
    commands: Array
    next_signals: Array
    marks: dict[str, Array]
    next_marks: dict[str, Array]

    @property
    def usable(self) -> NDArray[np.bool_]:
        """(n,): one step of one flight, on good signals."""
        same: NDArray[np.bool_] = self.marks["flight"] == self.next_marks["flight"]
        finite = np.isfinite(self.signals).all(axis=1) & np.isfinite(self.next_signals).all(axis=1)
        return same & (self.marks["usable"] > 0.0) & finite


class Pairs:
    """Puts control steps together: what is told of one is a transition once the next is told."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.last: Array | None = None

    def add(self, rows: Array) -> Told | None:
        """One control step of all robots (n, width)."""
        before, self.last = self.last, rows
        if before is None or before.shape != rows.shape:
            return None
        signals, commands, marks = self.layout.split(before)
        after, _, next_marks = self.layout.split(rows)
        return Told(signals, commands, after, marks, next_marks)


class RobotProcess:
    """The process. LearningError when it does not begin, LostBaseError when it ends before it is told to."""

    def __init__(self, settings: str, policy: bytes, folder: Path, layout: Layout, session: int) -> None:
        """`settings`: of `deploy.run`, as one types them. `folder`: for what nobody has learned from in the end."""
        self.layout, self.flights = layout, list[dict[str, Any]]()
        self.received = 0  # robot steps
        folder.mkdir(parents=True, exist_ok=True)
        first = folder / "first.onnx"
        first.write_bytes(policy)
        ours, theirs = socket.socketpair()
        kept = folder / KEPT.format(session)
        command = [*python(), "-m", "deploy.remote.online", f"link={theirs.fileno()}", f"kept={kept}"]
        command += [f"policy={first}", f"noise_seed={session}", *shlex.split(settings)]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process lives
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C is for the learner, who then brings the robot to rest
        )
        theirs.close()
        self._connection = Connection(ours.detach())

    def steps(self, wait: float) -> Iterator[Array]:
        """The control steps (n, width) that have come, after at most `wait` seconds for the first."""
        while self._poll(wait):
            wait = 0.0
            message = self._receive()
            if message[:1] == STEPS:
                rows = np.frombuffer(message[1:], np.float32).reshape(-1, self.layout.width)
                self.received += len(rows)
                yield rows
            elif message[:1] == FLIGHT:
                self.flights.append(json.loads(message[1:]))

    def _poll(self, wait: float) -> bool:
        try:
            return self._connection.poll(wait)
        except (OSError, EOFError):
            raise self.lost() from None

    def _receive(self) -> bytes:
        try:
            return self._connection.recv_bytes(LARGEST)
        except (OSError, EOFError):
            raise self.lost() from None

    def lost(self, why: str = "") -> LearningError:
        """That it has ended, or why it cannot go on."""
        if why:
            return LostBaseError(f"the robot: {why}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LANDING)
        self._said.seek(0)
        said = self._said.read().strip().splitlines()
        why = said[-1].removeprefix("error: ") if said else f"exit code {self._process.returncode}"
        if not self.received:
            return LearningError(f"the robot: {why}")
        return LostBaseError(f"the robot's control loop has ended: {why}")

    def send(self, policy: bytes, std: float, correlation: float) -> None:
        """A policy to drive by from now on, with exploration of that share of half the commands' ranges."""
        about = json.dumps({"std": std, "correlation": correlation}).encode()
        self._tell(POLICY + about + b"\n" + policy)

    def kept(self, count: int) -> None:
        """So many robot steps are safe."""
        self._tell(SAFE + str(count).encode())

    def _tell(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            raise self.lost() from None

    def close(self) -> None:
        """Bring the robot to rest, and end the process."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(END)
        with contextlib.suppress(OSError, EOFError):
            while self._connection.poll(LANDING):  # what still comes: its threads must not wait for us
                self._connection.recv_bytes(LARGEST)
        try:
            self._process.wait(LANDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()
        self._said.close()


def left_behind(folder: Path, layout: Layout, session: int, known: int) -> tuple[list[Array], int]:
    """What robots did when nobody learned, control step by control step, and the last session of which there is such.

    Of `session` the first `known` robot steps are left out. The files are then moved away. LearningError when one is
    damaged.
    """
    found, last = list[Array](), session
    paths = {int(path.stem.rpartition("_")[2]): path for path in folder.glob(KEPT.format("[0-9]*"))}
    for number in sorted(paths):
        first, rows = _read(paths[number], layout)
        rows = rows[max(0, known - first) if number == session else 0 :]
        edges = np.flatnonzero(np.diff(layout.split(rows)[2]["robot"]) <= 0) + 1  # the first robot again
        found += np.split(rows, edges) if len(rows) else []
        last = max(last, number)
        paths[number].replace(paths[number].with_suffix(".read"))
    return found, last


def _read(path: Path, layout: Layout) -> tuple[int, Array]:
    try:
        kept = npz.read(str(path), LARGEST_KEPT)
        first, rows = int(kept["first"]), np.asarray(kept["rows"], np.float32)
        if rows.ndim != 2 or rows.shape[1] != layout.width or first < 0:
            raise ValueError(f"it holds rows of shape {rows.shape}, not {layout.width} numbers each")
    except (ValueError, KeyError, OSError, OverflowError, TypeError) as error:
        raise LearningError(f"{path}, what the robot did when nobody learned, cannot be read: {error}") from error
    return first, rows
