"""Processes that learn together, and what they tell each other: torch.distributed, gloo on CPUs and nccl on GPUs."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed

from policies.algorithms import LostLearnerError

JOINING = 120.0  # s that a learner may take to begin
PATIENCE = 1800.0  # s that learners wait for one that evaluates, or is stuck without being gone
LOOK_S = 0.05  # s between two looks for who has come
INTERFACE = "GLOO_SOCKET_IFNAME"  # in the environment: where gloo listens
BOTH = "cpu:gloo,cuda:nccl"  # nccl: each has a GPU of its own
T = TypeVar("T")


def gone() -> str:
    """Why, as far as this learner knows."""
    return "another learner is gone"


@dataclass(frozen=True)
class Group:
    """This learner among all; the first, rank 0, alone writes, evaluates and exports. By itself: the only one."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"  # where what they sum has to be: cuda with nccl
    why: Callable[[], str] = field(default=gone, compare=False)  # one is gone, in words

    def told(self, what: int = 0) -> int:
        """What the first one says to all."""
        said = torch.tensor([what])
        self._done(lambda: distributed.broadcast(said, 0))
        return int(said)

    def gathered(self, own: Tensor) -> Tensor:
        """Tensors of one shape, one of each learner: (count, ...), on the CPU."""
        if self.count == 1:
            return own[None]
        mine = own.detach().cpu().contiguous()
        found = [torch.empty_like(mine) for _ in range(self.count)]
        self._done(lambda: distributed.all_gather(found, mine))
        return torch.stack(found)

    def summed(self, own: Tensor, order: list[tuple[int, int]]) -> Tensor:
        """The sum (size,) of what learners have in their places (places, size), by (learner, place) in that order.

        Each sums one slice of it and tells the others. Over the wire goes what an all-reduce sends, about two times
        `size` each, times the places that a learner has for the first half. The order of the sum, and so its last bit,
        does not depend on who has which place.
        """
        if self.count == 1:
            return _in_order(own[None], order)
        places, size = own.shape
        width = -(-size // self.count)
        padded = torch.nn.functional.pad(own.to(self.device), (0, width * self.count - size))
        mine = padded.view(places, self.count, width).transpose(0, 1).contiguous()
        slices = torch.empty_like(mine)  # of each learner, my slice of its places
        self._done(lambda: distributed.all_to_all_single(slices, mine))
        part = _in_order(slices, order)
        whole = [torch.empty_like(part) for _ in range(self.count)]
        self._done(lambda: distributed.all_gather(whole, part))
        return torch.cat(whole)[:size].to(own.device)

    def sent(self, content: bytes) -> None:
        """To the first one."""
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._done(lambda: distributed.send(torch.tensor([len(data)]), 0))
        self._done(lambda: distributed.send(data, 0))

    def received(self, rank: int) -> bytes:
        """What that one has sent."""
        size = torch.zeros(1, dtype=torch.int64)
        self._done(lambda: distributed.recv(size, rank))
        data = torch.empty(int(size), dtype=torch.uint8)
        self._done(lambda: distributed.recv(data, rank))
        return data.numpy().tobytes()

    def _done(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except RuntimeError as error:  # all that torch.distributed knows, whatever happened
            raise LostLearnerError(self.why()) from error


def _in_order(values: Tensor, order: list[tuple[int, int]]) -> Tensor:
    """The sum of values (learners, places, size), one after the other."""
    (learner, place), *rest = order
    total = values[learner, place].clone()
    for learner, place in rest:
        total += values[learner, place]
    return total


_joined: ContextVar[Group] = ContextVar("_joined", default=Group())  # noqa: B039  # it is frozen


def current() -> Group:
    """The group that was joined, else this process alone."""
    return _joined.get()


class Meeting(NamedTuple):
    """Where learners find each other: a file that all of them see, or an address."""

    rank: int
    learners: int
    file: str = ""
    host: str = ""  # of the first one
    port: int = 0
    listening: int = -1  # the first one's socket there, which is then torch's
    device: str = "cpu"  # of this learner
    nccl: bool = False  # each has a GPU of its own, its `device`


@contextmanager
def joined(meeting: Meeting, look: Callable[[], None], why: Callable[[], str] = gone) -> Iterator[Group]:
    """Inside, `current()` is the group. `look` is called while we wait, and raises what speaks against waiting on."""
    store = _store(meeting)
    store.set(f"here/{meeting.rank}", "1")
    before, names = time.monotonic(), [f"here/{k}" for k in range(meeting.learners)]
    while not store.check(names):
        look()
        if time.monotonic() - before > JOINING:
            raise LostLearnerError(f"not all of {meeting.learners} learners have begun within {JOINING:.0f} s")
        time.sleep(LOOK_S)
    if meeting.nccl:
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # an error, not the process's end
        torch.cuda.set_device(meeting.device)  # the one that nccl takes
    patience = timedelta(seconds=PATIENCE)
    try:
        with _bound(meeting):
            distributed.init_process_group(
                BOTH if meeting.nccl else "gloo",
                store=store,
                rank=meeting.rank,
                world_size=meeting.learners,
                timeout=patience,
            )
    except RuntimeError as error:
        with _bound(meeting), suppress(RuntimeError):
            _count_anew()
        raise LostLearnerError(why()) from error
    group = Group(meeting.rank, meeting.learners, meeting.device if meeting.nccl else "cpu", why)
    token = _joined.set(group)
    try:
        yield group
    finally:
        _joined.reset(token)
        distributed.destroy_process_group()


def _count_anew() -> None:
    """Torch names a group by how many this process has begun since the last that ended well; its learners must agree.

    After a start that failed, the next run in this process would wait for others by a name that they do not have.
    """
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    distributed.destroy_process_group()


def gpus() -> int:
    """How many this machine has that nccl can join."""
    return torch.cuda.device_count() if distributed.is_nccl_available() else 0


def _store(meeting: Meeting) -> Any:
    if meeting.file:
        return distributed.FileStore(meeting.file, meeting.learners)  # type: ignore[attr-defined]
    how: dict[str, Any] = {"timeout": timedelta(seconds=JOINING), "wait_for_workers": False}
    if meeting.rank == 0:  # by itself torch would listen on all interfaces
        how |= {"is_master": True, "master_listen_fd": meeting.listening}
    try:
        made: Any = distributed.TCPStore  # type: ignore[attr-defined]
        return made(meeting.host, meeting.port, meeting.learners, **how)
    except RuntimeError as error:
        raise LostLearnerError(f"the first learner, at {meeting.host}:{meeting.port}, does not answer") from error


def listening(host: str) -> tuple[int, int]:
    """A port of this machine's address `host`, and the open socket that listens there. OSError: it has no such one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server((host, 0), family=family)
    return int(made.getsockname()[1]), made.detach()


@contextmanager
def _bound(meeting: Meeting) -> Iterator[None]:
    """Inside, gloo listens where the others are, and nowhere else; to a cluster as the user says, if he does."""
    before = os.environ.get(INTERFACE)
    if meeting.file:
        os.environ[INTERFACE] = "lo" if sys.platform == "linux" else "lo0"
    elif name := interface(meeting.host):
        os.environ.setdefault(INTERFACE, name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(INTERFACE, None)
        else:
            os.environ[INTERFACE] = before


def interface(host: str) -> str:
    """The name of the one that leads to a host; empty where the system does not say."""
    import struct

    if ":" in host:
        return _interface_6(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing
        except OSError:
            return ""
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                import fcntl

                asked = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), 0x8915, asked)  # SIOCGIFADDR, netdevice(7)
            except (ImportError, OSError):
                continue
            if socket.inet_ntoa(answer[20:24]) == own:
                return name
    return ""


def _interface_6(host: str) -> str:
    """The same of an IPv6 address: Linux lists its own in a file (proc_net_if_inet6 of ipv6's addrconf)."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            own = socket.inet_pton(socket.AF_INET6, probe.getsockname()[0].partition("%")[0]).hex()
        with open("/proc/net/if_inet6") as listed:  # address, index, length of its prefix, scope, flags, name
            names = {line.split()[0]: line.split()[-1] for line in listed}
    except OSError:
        return ""
    return names.get(own, "")
