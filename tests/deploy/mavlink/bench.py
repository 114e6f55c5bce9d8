"""A simulated PX4 vehicle for tests, served in a thread, and a driver that flies it."""

import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from deploy.drivers.mavlink import Mavlink, Settings
from deploy.mavlink.link import MavlinkError
from deploy.mavlink.simulator import Config
from deploy.mavlink.simulator.simulation import Simulation


def free_port() -> int:
    """Of this machine, for UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(**settings: Any) -> Iterator[Simulation]:
    """In real time, calling a free port: `simulation.config.uri`."""
    simulation = Simulation(Config(uri=f"udpout://127.0.0.1:{free_port()}", **settings))
    thread = threading.Thread(target=simulation.run, name="simulation")
    thread.start()
    try:
        yield simulation
    finally:
        simulation.stopping = True
        thread.join()
        simulation.close()


def driver_for(simulation: Simulation, policy: Any, **settings: Any) -> Mavlink:
    """Listens where the vehicle calls; low, so that flights are short."""
    given = Settings(uri=simulation.config.uri.replace("udpout", "udpin"), height=0.5, connect_s=5.0)
    return Mavlink(policy, replace(given, **settings))


def settles(holds: Callable[[], object], seconds: float = 12.0) -> bool:
    """Whether that holds, within so long."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds())


def flown_again(flight: Callable[..., None]) -> Callable[..., None]:
    """A test that flies up to three times: a machine that stands still for a moment loses the link, or the place."""

    @functools.wraps(flight)
    def flown(*given: Any, **named: Any) -> None:
        failed: list[Exception] = []
        for _ in range(3):
            try:
                return flight(*given, **named)
            except (AssertionError, MavlinkError) as error:
                failed.append(error)
        raise AssertionError(f"three flights failed: {failed}") from failed[-1]

    return flown
