"""A simulated quadrotor's own flight controller on the failsafe ladder: what flies it where nobody else may."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy.safety.dead_reckoning import SENSED
from deploy.safety.fallback import COMMAND, MEMORY, RATE_HZ, Fallback
from deploy.safety.ladder import OFF, RUNGS, TOUCH, Ladder
from sim.spec import Group

Array = NDArray[Any]


class Pilot(Protocol):
    """What an interlock asks."""

    def grounded(self) -> bool:
        """Whether the robot stands or lies on the ground."""

    def fly(self, reason: str) -> tuple[str, Array]:
        """The rung ("hold", "land" or "off") and the motors' commands (k,), once it was stopped for this reason."""

    def resume(self) -> None:
        """Who commands it is back; what was seen of the flight is kept."""

    def reset(self) -> None:
        """A flight begins."""


class Onboard:
    """The ladder with the vehicle's own sensors, at about 100 Hz whatever the rate of the physics."""

    def __init__(self, inputs: Group, physics_hz: float) -> None:
        self.every = max(1, round(physics_hz / RATE_HZ))
        self.ladder = Ladder(inputs, physics_hz / self.every)
        self.reset()

    @staticmethod
    def fits(signals: Group, commands: Group) -> bool:
        """Whether there can be one: for quadrotors commanded by their motors."""
        return Fallback.fits(signals, commands)

    def reset(self) -> None:
        """A flight begins."""
        self._past: deque[tuple[dict[str, Array], dict[str, Array]]] = deque(maxlen=MEMORY)
        self._turn, self._seen = 0, dict[str, Array]()
        self.resume()

    def resume(self) -> None:
        """Who commands it is back; what was seen of the flight is kept."""
        self._rung, self._told = "none", np.zeros(4, np.float32)
        self.ladder.reset(1)
        for sent, seen in self._past:
            self.ladder.fallback.watch(sent, seen)

    def see(self, measured: Mapping[str, Array], motors: Array) -> None:
        """What the sensors say (k,) as these motor commands (4,) are sent; once per step of the physics."""
        self._turn += 1
        if self._turn % self.every == 0 or not self._seen:
            self._seen = {name: np.asarray(measured[name], np.float32).reshape(1, -1) for name in SENSED}
            self._past.append(({COMMAND: np.array(motors, np.float32).reshape(1, 4)}, self._seen))
            self.ladder.fallback.watch(*self._past[-1])

    def grounded(self) -> bool:
        """Whether the robot stands or lies on the ground."""
        return not self._seen or float(self._seen["position"][0, 2]) <= TOUCH

    def fly(self, reason: str) -> tuple[str, Array]:
        """The rung and the motors' commands (4,)."""
        if self._turn % self.every == 0 or self._rung == "none":
            nothing = np.full((1, 4), np.nan, np.float32)
            rung, wanted = self.ladder.commands([reason], nothing, self._seen, {})
            self._rung = RUNGS[int(rung[0])]
            self._told = np.zeros(4, np.float32) if rung[0] == OFF else np.asarray(wanted[0], np.float32)
        return self._rung, self._told
