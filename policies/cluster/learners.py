"""`learners=N`: this process and N - 1 others that learn together, on this machine or on the nodes of a cluster.

The others are begun here, do what `policies.cluster.follower` says, and end with this process. They write nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.trust.text import printable
from policies.algorithms import LostLearnerError
from policies.cluster.job import TOLD, Order, Part, times, watched
from policies.learning.parallel.group import Meeting, gpus, joined, listening
from policies.learning.parallel.learners import dismissed
from policies.runner import config
from policies.runner.config import Settings
from policies.runner.folder import CHECKPOINT, CONFIG, modules_of
from sim.cluster import ClusterError, LostError, current

if TYPE_CHECKING:
    from sim.cluster.nodes import Nodes

FOLLOWER = "policies.cluster.follower"
ENDING = 30.0  # s that one may take to end
NEWS = 10.0  # s in which it is heard which learner is gone


@contextmanager
def together(settings: Settings) -> Iterator[None]:
    """Inside, an algorithm's `Learners` are so many processes, and this is the first. LostLearnerError: one is gone."""
    count, nodes = settings.options.learners, current()
    if nodes:
        _check_room(nodes, settings)
    with tempfile.TemporaryDirectory(prefix="sim2metal-") as place:
        meeting, order, files = _meeting(settings, place, nodes), _order(), _files(settings, Path(place))
        others: list[Follower] = []
        try:
            for rank in range(1, count):
                told = meeting._replace(rank=rank, listening=-1, device=_device(settings, rank, meeting.nccl))
                words = json.dumps({"meeting": told._asdict(), "modules": modules_of(settings)})
                others.append(Follower(rank, _begun(nodes, settings, words, order, files)))
            with joined(meeting, lambda: _check(others, count), lambda: _news(others, count)) as group:
                yield
                with contextlib.suppress(LostLearnerError):  # after an error they wait for something else
                    dismissed(group)
        finally:
            if nodes:  # one may wait for a CPU that is not there
                nodes.cancel()
            for other in others:
                other.end()


class Follower:
    """One of the others, as this process sees it."""

    def __init__(self, rank: int, parts: Iterator[Part]) -> None:
        self.rank, self.ended = rank, ""  # why it is gone, once it is
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(parts,), daemon=True)
        self._thread.start()

    def _watch(self, parts: Iterator[Part]) -> None:
        try:
            with contextlib.closing(parts) as coming:  # type: ignore[type-var]  # a generator
                for part in coming:
                    if part.status is not None:
                        self.ended = _why(part)
                    if self._over.is_set():
                        return
        except (LostError, ClusterError, OSError) as error:
            self.ended = str(error)

    def end(self) -> None:
        """It is not needed any more."""
        self._over.set()
        self._thread.join(ENDING)


def followed(words: str, order: Order, files: Mapping[str, bytes]) -> Iterator[Part]:
    """Have a follower learn on this machine, given the run's files; signs of life, then how it ended."""
    with tempfile.TemporaryDirectory(prefix="sim2metal-") as place:
        folder = Path(place) / "run"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        status, said = yield from watched(FOLLOWER, [words, str(folder)], folder, order, times(folder))
        yield Part({}, status, said)


def _begun(
    nodes: Nodes | None, settings: Settings, words: str, order: Order, files: Mapping[str, bytes]
) -> Iterator[Part]:
    if nodes is None:
        return followed(words, order, files)
    cpus, gpus = _needs(settings)
    return nodes.stream(followed, words, order, files, cpus=cpus, gpus=gpus)


def _needs(settings: Settings) -> tuple[int, int]:
    """CPUs and GPUs of each of the others."""
    return int(vars(settings.algorithm_config).get("threads", 1)), int(settings.options.device != "cpu")


def _check_room(nodes: Nodes, settings: Settings) -> None:
    """ClusterError when the others would wait for ever for a place."""
    others, (cpus, gpus) = settings.options.learners - 1, _needs(settings)
    nodes.room(cpus, gpus, f"each of learners={others + 1}", others)


def _order() -> Order:
    told = tuple((name, os.environ[name]) for name in TOLD if name in os.environ)
    return Order((), (), os.getcwd(), told, tuple(sys.path))


def _files(settings: Settings, place: Path) -> dict[str, bytes]:
    """What the others need: the settings, and the checkpoint of a run that is continued."""
    config.write(settings, place / CONFIG)
    files = {CONFIG: (place / CONFIG).read_bytes()}
    if settings.options.resume:
        with contextlib.suppress(FileNotFoundError):  # `policies.train` says so
            files[CHECKPOINT] = (Path(settings.options.resume) / CHECKPOINT).read_bytes()
    return files


def _meeting(settings: Settings, place: str, nodes: Nodes | None) -> Meeting:
    nccl = _nccl(settings, nodes)
    meeting = Meeting(0, settings.options.learners, device=_device(settings, 0, nccl), nccl=nccl)
    if nodes is None or not nodes.place.address:  # all on this machine: nothing listens to others
        return meeting._replace(file=str(Path(place) / "meeting"))
    host = nodes.host()
    port, socket = listening(host)
    return meeting._replace(host=host, port=port, listening=socket)


def _nccl(settings: Settings, nodes: Nodes | None) -> bool:
    """Whether each learner has a GPU of its own, of this machine: over a cluster's nodes nccl has never run."""
    return settings.options.device != "cpu" and nodes is None and gpus() >= settings.options.learners


def _device(settings: Settings, rank: int, nccl: bool) -> str:
    """Of that learner; "cuda" is one for all, or on a cluster the GPU that a node gave it."""
    return f"cuda:{rank}" if nccl else settings.options.device


def _check(others: list[Follower], count: int) -> None:
    """LostLearnerError when one is gone."""
    for other in others:
        if other.ended:
            raise LostLearnerError(f"learner {other.rank} of {count} (0 is this one) is gone: {other.ended}")


def _news(others: list[Follower], count: int) -> str:
    """Which learner is gone, and why."""
    until = time.monotonic() + NEWS
    while time.monotonic() < until:
        try:
            _check(others, count)
        except LostLearnerError as error:
            return str(error)
        time.sleep(0.05)
    return f"one of {count} learners does not answer any more"


def _why(part: Part) -> str:
    """How a follower ended: what it said last, or by which signal."""
    if part.status is not None and part.status < 0:
        return f"signal {-part.status}"
    lines = [line for line in part.said.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("error: ")), (lines or [""])[-1])
    return printable(said.removeprefix("error: "), 1000) or f"it left with status {part.status}"
