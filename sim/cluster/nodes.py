"""Ray: nodes on this machine, or a cluster that somebody else began; what runs on it, and what becomes of a loss.

Whoever may speak to a Ray cluster may run any code on all its machines. Nodes that are begun here are bound to
127.0.0.1, ask for a token of this program (`sim.cluster.prepare`), and have no dashboard. No statistics are sent.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from types import TracebackType
from typing import Any, Self

import ray
from ray import exceptions
from ray._private import services
from ray._raylet import AuthenticationTokenLoader, Config
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sim.cluster import ClusterError, LostError, Place
from sim.cluster.source import source_digest
from sim.cluster.workers import ClusterWorkers, Far, Rows
from sim.engines import cores
from sim.tasks import HasSeparateWorlds

STORE = 200 * 2**20  # bytes of shared memory of a node here: weights are some 0.1 MB, an episode's data some 1
PATIENCE = 120.0  # s that a worker may take to begin, and a node to say what it is
BEGINNINGS = 3  # of a node here
ANSWER_S = 5.0  # s that the head of a cluster may take to answer
LOST = (  # what Ray says of a process or a node that is gone
    exceptions.ActorDiedError,
    exceptions.ActorUnavailableError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.OwnerDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError,
)
TOGETHER = ("numpy", "numba", "torch", "mujoco", "gymnasium", "metaworld", "onnx", "onnxruntime")


def about() -> dict[str, str]:
    """What must be the same on all nodes: package -> version; our sources by their digest."""
    found = {"python": platform.python_version(), "sim2metal": source_digest()}
    for name in TOGETHER:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class Nodes:
    """A cluster, from `with` to its end; nodes that were begun here end with it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._here: Cluster | None = None
        self._running: set[Any] = set()  # generators

    def __enter__(self) -> Self:
        """ClusterError when it cannot be begun or reached, or when its nodes have other versions."""
        if ray.is_initialized():
            raise ClusterError("this process is in a cluster already")
        try:
            if self.place.address:
                self._reach()
                self._compare()
            else:
                self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)
        Config.initialize("")  # somebody may have imported Ray before `prepare`
        AuthenticationTokenLoader.instance().reset_cache()
        share = max(1, cores() // self.place.nodes)
        how = {"node_ip_address": "127.0.0.1", "object_store_memory": STORE, "num_cpus": share, "num_gpus": None}
        try:
            with _bound_to_this_machine():
                self._here = Cluster()
                self._add(include_dashboard=False, **how)
                for _ in range(1, self.place.nodes):
                    self._add(**how)
                _join(self._here.address)
        except Exception as error:  # of all kinds, some no kind at all
            raise ClusterError(f"Ray does not start on this machine: {_line(error)}") from error

    def _add(self, **how: Any) -> None:
        """A node here. Ray gives up on its own start after 30 s, which a busy machine needs."""
        assert self._here is not None
        for left in reversed(range(BEGINNINGS)):
            try:
                self._here.add_node(**how)
            except Exception:
                if not left:
                    raise
            else:
                return

    def _reach(self) -> None:
        address = self.place.address
        host, _, port = address.partition(":")
        try:
            socket.create_connection((host, int(port)), ANSWER_S).close()  # Ray itself tries for minutes
        except (OSError, OverflowError) as error:
            hint = "begin its head there with: ray start --head --node-ip-address=ITS_PRIVATE_ADDRESS"
            raise ClusterError(f"there is no Ray cluster at {address} ({_line(error)}); {hint}") from error
        try:
            _join(address)
        except Exception as error:  # of several kinds; of a wrong token Ray only says that it failed
            if "ersion mismatch" in str(error):
                raise ClusterError(f"the cluster at {address} has other versions: {_line(error)}") from error
            raise ClusterError(
                f"what listens at {address} does not take us for one of its own ({_line(error)}): RAY_AUTH_MODE=token "
                "needs its head's token (`ray get-auth-token`) in ~/.ray/auth_token or RAY_AUTH_TOKEN"
            ) from error

    def _compare(self) -> None:
        """ClusterError unless each node has what we have."""
        ours, probe = self._ours(), ray.remote(about)
        for node in self.alive():
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name, asked = node["NodeManagerAddress"], probe.options(num_cpus=0, scheduling_strategy=there).remote()
            try:
                theirs = ray.get(asked, timeout=PATIENCE)
            except exceptions.RayError as error:
                said = f"node {name} cannot say what it has ({_line(error)})"
                raise ClusterError(f"{said}: install the same sim2metal there as here") from error
            for package, version in ours.items():
                if theirs.get(package) != version:
                    found = theirs.get(package, "none")
                    raise ClusterError(f"node {name} has {package} {found}, not {version}: install the same there")

    def _ours(self) -> dict[str, str]:
        return about()

    def alive(self) -> list[dict[str, Any]]:
        """The nodes that are there, as Ray describes them."""
        return [node for node in ray.nodes() if node["Alive"]]

    @property
    def cpus(self) -> int:
        """Of all nodes together."""
        return int(sum(node["Resources"].get("CPU", 0.0) for node in self.alive()))

    def fits(self, cpus: int, what: str) -> None:
        """ClusterError unless so many CPUs are there, free or not."""
        if cpus > self.cpus:
            raise ClusterError(f"{what} needs {cpus} CPUs, the cluster has {self.cpus} on {len(self.alive())} nodes")

    def room(self, cpus: int, gpus: int, what: str, times: int = 1) -> None:
        """ClusterError unless the nodes have room for `times` runs of so many each, free or not.

        One alone is not spread over nodes.
        """
        sizes = [tuple(int(node["Resources"].get(kind, 0.0)) for kind in ("CPU", "GPU")) for node in self.alive()]
        if sum(min(cpu // max(1, cpus), gpu // gpus if gpus else times) for cpu, gpu in sizes) < times:
            has = ", ".join(f"{cpu} and {gpu}" for cpu, gpu in sizes)
            one = "one node" if times == 1 else f"a node, {times} times"
            raise ClusterError(f"{what} needs {cpus} CPUs and {gpus} GPUs of {one}; the nodes have {has or 'gone'}")

    def workers(self, task: HasSeparateWorlds, num: int, seed: int, count: int) -> ClusterWorkers:
        """`num` rows of a task, stepped by so many of its CPUs. ClusterError when it has fewer."""
        self.fits(count, f"workers={count}")
        return ClusterWorkers(task, num, seed, count, _Actor)

    def stream(self, work: Callable[..., Iterator[Any]], *told: Any, cpus: int = 1, gpus: int = 0) -> Iterator[Any]:
        """What `work(*told)` yields on some node with so many of them free. LostError when that is lost.

        It is asked for at once, so that `cancel` ends it also before anybody listens.
        """
        far = ray.remote(work).options(
            num_cpus=cpus, num_gpus=gpus, num_returns="streaming", max_retries=0, scheduling_strategy="SPREAD"
        )
        made = far.remote(*told)
        self._running.add(made)
        coming = self._streamed(made)
        next(coming)  # from here on it ends as it is closed, or forgotten, also if nobody has listened by then
        return coming

    def _streamed(self, made: Any) -> Iterator[Any]:
        try:
            yield None
            for found in made:
                yield ray.get(found)
        except GeneratorExit:
            self._end(made)
            raise
        except LOST as error:
            raise LostError(_line(error)) from error
        except exceptions.RayTaskError as error:
            raise _refused(error) from error
        except exceptions.RayError as error:
            raise ClusterError(f"the cluster cannot do it: {_line(error)}") from error
        finally:
            self._running.discard(made)

    def mapped(self, work: Callable[..., Any], told: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`work(*told)` for each; what is lost on the way is done again, elsewhere."""
        far = ray.remote(work).options(num_cpus=1, max_retries=-1, scheduling_strategy="SPREAD")
        try:
            found: list[Any] = ray.get([far.remote(*one) for one in told])
        except exceptions.RayTaskError as error:
            raise _refused(error) from error
        except exceptions.RayError as error:
            raise ClusterError(f"the cluster cannot do it: {_line(error)}") from error
        return found

    def host(self) -> str:
        """The address of this machine that the other nodes can reach."""
        return str(ray.util.get_node_ip_address())

    def cancel(self) -> None:
        """End all that is streaming."""
        for made in [*self._running]:
            self._end(made)

    def _end(self, made: Any) -> None:
        if ray.is_initialized():
            with contextlib.suppress(exceptions.RayError):
                ray.cancel(made)

    def close(self) -> None:
        """Leave it; the nodes that were begun here end."""
        with contextlib.suppress(Exception):
            ray.shutdown()
        if self._here is not None:
            self._here.shutdown()
            self._here = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Actor(Far):
    """A `Rows` on some node, one CPU of which it has."""

    def __init__(self, told: bytes) -> None:
        made = ray.remote(Rows).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
        self._actor = made.remote(told, [*sys.path])
        self._asked: Any = None
        self._begun = False

    def ask(self, what: str, *told: Any) -> None:
        self._asked = self._actor.do.remote(what, *told)

    def answer(self) -> Any:
        try:
            if not self._begun:  # its node may have no CPU left, with which to begin
                ray.get(self._actor.__ray_ready__.remote(), timeout=PATIENCE)
                self._begun = True
            return ray.get(self._asked)
        except exceptions.GetTimeoutError as error:
            raise ClusterError(
                f"no node had a CPU for a worker within {PATIENCE:.0f} s: is one lost for good?"
            ) from error
        except LOST as error:
            raise LostError(_line(error)) from error

    def end(self) -> None:
        if not ray.is_initialized():  # the cluster was left, and it with that; Ray would begin another one to kill it
            return
        with contextlib.suppress(exceptions.RayError, RuntimeError):
            ray.kill(self._actor)


@contextlib.contextmanager
def _bound_to_this_machine() -> Iterator[None]:
    """Ray listens on every interface unless this machine is 127.0.0.1, which it never believes by itself."""
    found = services.resolve_ip_for_localhost
    services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = found


def _join(address: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=None)


def _refused(error: exceptions.RayTaskError) -> ClusterError:
    """What a node raised, in one sentence: Ray tells all of its traceback."""
    return ClusterError(f"a node cannot do it: {type(error.cause).__name__}: {_line(error.cause)}")


def _line(error: BaseException) -> str:
    """The first line of what Ray says, which says it in many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")
