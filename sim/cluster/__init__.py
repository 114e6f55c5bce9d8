"""Several machines as one: what `cluster=...` means, and the cluster that this program has entered.

`cluster=ray` is Ray on this machine, `cluster=ray:2` two nodes on it, `cluster=ray:HOST:PORT` the cluster whose head
listens there. Ray itself is imported by `sim.cluster.nodes` alone, and only when somebody enters.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sim.cluster.nodes import Nodes

KIND = "ray"
MOST_HERE = 16  # nodes on one machine: each takes 0.3 GB of memory
_entered: ContextVar[Nodes | None] = ContextVar("_entered", default=None)


class ClusterError(ValueError):
    """There is no such cluster, or it cannot do what is asked of it; the message says why in one sentence."""


class LostError(Exception):
    """A worker is gone: its process was ended, or its node."""


class Place(NamedTuple):
    """Where a cluster is: so many nodes on this machine, or the address of a head."""

    nodes: int
    address: str = ""  # HOST:PORT


def place_of(cluster: str) -> Place:
    """What the setting `cluster` says; ClusterError when it says nothing that there is."""
    kind, _, rest = cluster.partition(":")
    if cluster == KIND:
        return Place(1)
    if kind == KIND and re.fullmatch(r"\d{1,4}", rest):
        if not 1 <= int(rest) <= MOST_HERE:
            raise ClusterError(f"cluster={cluster}: between 1 and {MOST_HERE} nodes can be on this machine")
        return Place(int(rest))
    if kind == KIND and re.fullmatch(r"[\w.-]+:\d{1,5}", rest):
        return Place(0, rest)
    raise ClusterError(
        f"cluster={cluster}: write {KIND} (on this machine), {KIND}:2 (two nodes on it), or {KIND}:HOST:PORT (its head)"
    )


def prepare(place: Place) -> None:
    """What Ray reads from the environment as it is imported: no statistics for its makers; here, a token of our own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the future, of which it warns otherwise
    if not place.address:
        os.environ.setdefault("RAY_worker_niceness", "0")  # as any program that is begun here, not its 15
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextmanager
def entered(cluster: str) -> Iterator[Nodes | None]:
    """Inside, `algorithm.workers` are processes of this cluster (""; none is entered).

    ClusterError when it cannot be reached, or when other versions are installed on its nodes.
    """
    if not cluster:
        yield None
        return
    place = place_of(cluster)
    prepare(place)
    from sim.cluster.nodes import Nodes

    with Nodes(place) as nodes:
        token = _entered.set(nodes)
        try:
            yield nodes
        finally:
            _entered.reset(token)


def current() -> Nodes | None:
    """The cluster that was entered, if one was."""
    return _entered.get()
