"""A simulated PX4 vehicle for tests, served in a thread, and a driver that flies it there."""

import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from deploy.crazyflie.simulator.world import DT
from deploy.drivers.mavlink import Mavlink, Settings
from deploy.guard import Guard
from deploy.loop import Record, run
from deploy.mavlink.link import MavlinkError
from deploy.mavlink.simulator import Config
from deploy.mavlink.simulator.simulation import EVERY, Simulation
from deploy.policy_file import PolicyFile
from deploy.safety.envelope import Envelope
from tests.deploy.simulated_clock import PATIENT, Clock


def free_port() -> int:
    """Of this machine, for UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served(Simulation):
    """In real time, in a thread; on a machine too slow for that, in the time of `clock`, whoever flies by that, too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(Config(uri=f"udpout://127.0.0.1:{free_port()}", **settings))
        self.clock = Clock(self, EVERY * DT)


@contextmanager
def served(**settings: Any) -> Iterator[Served]:
    """Until the end of the block, calling a free port: `simulation.config.uri`."""
    simulation = Served(**settings)
    thread = threading.Thread(target=simulation.run, args=(simulation.clock,), name="simulation")
    thread.start()
    try:
        yield simulation
    finally:
        simulation.stopping = True
        thread.join()
        simulation.close()


def driver_for(simulation: Served, policy: Any, **settings: Any) -> Mavlink:
    """Listens where the vehicle calls; low, so that flights are short."""
    given = Settings(uri=simulation.config.uri.replace("udpout", "udpin"), height=0.5, connect_s=20.0)
    made = Mavlink(policy, replace(given, **settings))
    made.link.clock = simulation.clock
    return made


def fly(policy: PolicyFile, driver: Mavlink, guard: Guard | None = None, steps: int | None = None) -> Record:
    """By the control loop in the simulation's time, of which it may miss deadlines. The driver is of `driver_for`."""
    guard, clock = guard or Guard(policy.inputs, policy.outputs, Envelope(**PATIENT)), driver.link.clock
    assert isinstance(clock, Clock)
    return run(policy, driver, guard, steps, clock=clock, sleep=clock.sleep)


def settles(holds: Callable[[], object], seconds: float = 60.0) -> bool:
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
