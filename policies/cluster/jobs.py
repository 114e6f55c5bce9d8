"""Jobs, several at a time: on this machine, or on the nodes of a cluster; what comes of them lies in folders here."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from deploy.system.files import replace_all
from deploy.trust.text import printable
from policies.cluster.job import JUDGED, TOLD, Order, Part, performed
from policies.runner.config import moved
from policies.runner.folder import CHECKPOINT, CONFIG, POLICY
from policies.runner.lock import NAME as LOCK
from policies.runner.lock import BusyError, Lock
from sim.cluster import ClusterError, LostError

if TYPE_CHECKING:
    from sim.cluster.nodes import Nodes

LOSSES = 5  # of nodes or workers under one job, after which something is wrong
# Statuses of a run that somebody ended; and of one that Linux did, when memory ran out.
STOPPED, KILLED = {-signal.SIGTERM, 128 + signal.SIGTERM}, {-signal.SIGKILL, -signal.SIGBUS}
# What is said where memory ran out, in small letters: by Python, by torch (CUDA, CPU), by Ray of a worker.
MEMORY = ("memoryerror", "out of memory", "allocate memory", "not enough memory", "low on memory")
FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT))
Say = Callable[[str], object]


class Trouble(str):
    """What went wrong with this machine, not with the job: once it is mended, the job can go on."""


@dataclass(frozen=True)
class Job:
    """A run of training: the words after `python -m policies.train`, without its folder."""

    words: tuple[str, ...]
    folder: Path  # on this machine
    judged_by: tuple[str, ...] = ()  # words after `python -m policies.evaluate policy=...`: then it is judged, too
    cpus: int = 1
    gpus: int = 0

    @property
    def done(self) -> bool:
        """Whether its folder has all that was wanted."""
        return (self.folder / POLICY).is_file() and (not self.judged_by or (self.folder / JUDGED).is_file())


class Where(Protocol):
    """Who carries jobs out."""

    def perform(self, job: Job, order: Order, kept: Mapping[str, bytes]) -> Iterator[Part]:
        """See `policies.cluster.job.performed`. LostError when whoever does it is gone."""

    def cancel(self) -> None:
        """End all that is under way, and what waits for a place."""


class Here:
    """Processes of this machine, which has so many CPUs; each job waits until as many as it needs are free."""

    def __init__(self, cpus: int) -> None:
        self._cpus = self._free = cpus
        self._over, self._changed = False, threading.Condition()

    def perform(self, job: Job, order: Order, kept: Mapping[str, bytes]) -> Iterator[Part]:
        needed = min(job.cpus, self._cpus)
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._free >= needed)
            self._free -= needed
        try:
            if not self._over:
                yield from performed(order, kept)
        finally:
            with self._changed:
                self._free += needed
                self._changed.notify_all()

    def cancel(self) -> None:
        """Nobody waits any more; those under way end as nobody listens."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


class There:
    """The nodes of a cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def perform(self, job: Job, order: Order, kept: Mapping[str, bytes]) -> Iterator[Part]:
        self._nodes.room(job.cpus, job.gpus, " ".join(job.words))
        return self._nodes.stream(performed, order, dict(kept), cpus=job.cpus, gpus=job.gpus)

    def cancel(self) -> None:
        self._nodes.cancel()


class Jobs:
    """Runs them, `together` at a time; `cancel` ends all that is under way."""

    def __init__(self, where: Where, together: int, say: Say = print) -> None:
        self._where, self._together, self._say = where, together, say
        self._over = threading.Event()

    def run(self, jobs: Sequence[Job]) -> dict[Path, str]:
        """Do them all; folder -> what went wrong, for those that failed. A job that is done already is not done again.

        A job whose node or worker is lost is continued elsewhere, from its last checkpoint; so is one that was killed.
        Where it is the machine that fails (a full disk, nodes that are lost) what went wrong is a `Trouble`. For whom
        memory runs out twice at the same checkpoint is not tried again, and has failed: its settings take too much.
        """
        failed: dict[Path, str] = {}
        with ThreadPoolExecutor(self._together) as pool:
            waiting: dict[Future[str], Job] = {pool.submit(self._one, job): job for job in jobs}
            try:
                while waiting:
                    for finished in wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        job = waiting.pop(finished)
                        if error := finished.result():
                            failed[job.folder] = error
            except BaseException:
                self._over.set()
                for future in waiting:
                    future.cancel()
                self._where.cancel()
                raise
        return failed

    def _one(self, job: Job) -> str:
        """Do it; what went wrong, if something did."""
        if job.done:
            return ""
        try:
            job.folder.mkdir(parents=True, exist_ok=True)
            with Lock(job.folder):
                return self._continued(job)
        except (BusyError, ClusterError) as error:
            return Trouble(error)
        except OSError as error:
            return Trouble(f"cannot write {error.filename or job.folder}: {error.strerror or error}")

    def _continued(self, job: Job) -> str:
        told = tuple((name, os.environ[name]) for name in TOLD if name in os.environ)
        order, losses = Order(job.words, job.judged_by, os.getcwd(), told, tuple(sys.path)), 0
        full: list[int] = []  # when the checkpoints were written after which memory ran out
        while not self._over.is_set():
            try:
                last = self._received(job, self._where.perform(job, order, _kept(job.folder)))
                if last.status in KILLED | STOPPED or (last.status and _memory(_reason(last))):
                    raise LostError(_reason(last))
            except LostError as lost:
                losses += 1
                said = f"{losses} workers or nodes were lost under it, one after the other: {lost}"
                if _memory(str(lost)):
                    full.append(_written(job.folder / CHECKPOINT))
                    if full[-1] in full[:-1]:
                        return said
                if losses >= LOSSES:
                    return said if full else Trouble(said)
                way = "continues from its checkpoint" if (job.folder / CHECKPOINT).is_file() else "begins anew"
                self._say(f"{job.folder.name}: its worker or node was lost ({lost}); it {way}")
                continue
            if last.status == 0 and job.done:
                self._say(f"policy: {job.folder / POLICY}")
                return ""
            reason = _reason(last)
            return Trouble(reason) if any(full in reason for full in FULL) else reason
        return "ended before it was done"

    def _received(self, job: Job, parts: Iterator[Part]) -> Part:
        """Write what comes, until the last part."""
        part = Part({})
        with contextlib.closing(parts) as coming:  # type: ignore[type-var]  # a generator
            for part in coming:
                names = sorted(part.files, key=lambda name: name == CHECKPOINT)  # whoever reads it finds the rest there
                replace_all([(_inside(job.folder, name), part.files[name]) for name in names])
                if CONFIG in part.files:
                    moved(job.folder / CONFIG)
                if self._over.is_set():
                    break
        return part


def _kept(folder: Path) -> dict[str, bytes]:
    """What a run needs to be continued: all of its folder, once there is a checkpoint or a policy; else nothing."""
    if not any((folder / name).is_file() for name in (CHECKPOINT, POLICY)):
        return {}
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _memory(reason: str) -> bool:
    """Whether it was lost, or failed, as memory ran out: so it says, or it was killed."""
    said = reason.lower()
    return any(phrase in said for phrase in MEMORY) or reason in {_by_signal(status) for status in KILLED}


def _written(path: Path) -> int:
    """When (ns); 0: not yet."""
    return path.stat().st_mtime_ns if path.is_file() else 0


def _by_signal(status: int) -> str:
    return f"ended by signal {-status}"


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder; ClusterError for a name from another machine that leads out of it."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ClusterError(f"a node sends a file {printable(name, 100)!r}, which is outside of the run's folder")
    return path


def _reason(last: Part) -> str:
    """Why a run failed: what it said last, where that is an error, or the signal that ended it."""
    if last.status is not None and last.status < 0:
        return _by_signal(last.status)
    lines = [line for line in last.said.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("error: ")), (lines or [""])[-1])
    return printable(said.removeprefix("error: "), 2000) or f"left with status {last.status}"
