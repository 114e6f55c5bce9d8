"""The vehicle, its world, its socket, and the clock that drives them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from deploy.crazyflie.simulator.world import DT, MOST_BEHIND, World
from deploy.mavlink.link import Port
from deploy.mavlink.simulator import Config
from deploy.mavlink.simulator.autopilot import Autopilot
from deploy.mavlink.simulator.controller import State

EVERY = 2  # steps of the physics between two of the controllers


class Simulation:
    """One vehicle on a floor. North is our x axis, its start the origin."""

    def __init__(self, config: Config) -> None:
        self.world = World(config.robot, [(0.0, 0.0)])
        self.config, self.port = config, Port(config.uri, 1, 1)
        half = -0.5 * math.radians(config.heading)
        self.world.place(0, position=(0.0, 0.0, 0.0), quaternion=(math.cos(half), 0.0, 0.0, math.sin(half)))
        self.autopilot = Autopilot(config, self.world.robot, EVERY * DT, self.port.mavlink)
        self.slipped = 0.0  # s that the simulation fell behind the clock
        self.stopping = self.cut = False  # set by another thread: to end `run`; nothing comes or goes any more
        self.tick()

    def tick(self) -> None:
        """Advance by EVERY steps."""
        for message in self.port.receive():
            if not self.cut:
                self.autopilot.receive(message)
        (seen,) = self.world.sense()
        rotation = np.array(seen.rotation).reshape(3, 3)
        state = State(np.array(seen.position), np.array(seen.velocity), rotation, np.array(seen.rate))
        a, b, c, d = self.autopilot.step(state, self.world.time).tolist()
        for _ in range(EVERY):
            self.world.step([(a, b, c, d)])
        waiting, self.autopilot.out = self.autopilot.out, []
        for message in waiting:
            if not self.cut:
                self.port.send(message)

    def run(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """In real time, for `config.seconds` or until `stopping`."""
        began = clock()
        end = math.inf if self.config.seconds is None else began + self.config.seconds
        zero = began - self.world.time
        while (now := clock()) < end and not self.stopping:
            due = zero + self.world.time + EVERY * DT
            if now < due:
                time.sleep(due - now)
                continue
            if now - due > MOST_BEHIND:
                zero += now - due
                self.slipped += now - due
                self.autopilot.slipped = self.slipped
            self.tick()

    def close(self) -> None:
        """Close the socket."""
        self.port.close()
