"""Which set point counts: the client's over the high-level planner's, each with its age."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import IntEnum

from deploy.crazyflie.crtp import Packet, Port
from deploy.crazyflie.simulator.planner import Planner
from deploy.crazyflie.simulator.setpoints import PLACE, Mode, Setpoint, decode

SETPOINTS, META = 0, 1  # channels of the generic port
NOTIFY_STOP = 0
LEAST_THRUST, MOST_THRUST = 1000, 60000


class Priority(IntEnum):
    """A set point is taken when its source ranks no lower than the last one's."""

    NOBODY = 0
    HIGH_LEVEL = 1
    CLIENT = 2


class Commander:
    """Holds the set point. A client's stays, ageing, until `relax` lets the planner take over."""

    def __init__(self, planner: Planner, parameters: Mapping[str, float]) -> None:
        self.planner, self.parameters = planner, parameters
        self.setpoint = Setpoint()
        self.priority = Priority.NOBODY
        self._thrust_locked = True

    def set(self, setpoint: Setpoint, priority: Priority, now: float) -> None:
        """Take a set point at time `now` (s), if its source may."""
        if priority < self.priority:
            return
        self.setpoint, self.priority = replace(setpoint, time=now), priority
        if priority > Priority.HIGH_LEVEL:
            self.planner.stop()

    def handle(self, packet: Packet, now: float) -> Iterable[Packet]:
        """A packet of the two commander ports. Nothing is answered."""
        if packet.port == Port.COMMANDER and packet.channel == 0:
            self.set(self._angles(decode(packet)), Priority.CLIENT, now)
        elif packet.port == Port.COMMANDER_GENERIC and packet.channel == SETPOINTS:
            self.set(decode(packet), Priority.CLIENT, now)
        elif packet.channel == META and packet.data[:1] == bytes((NOTIFY_STOP,)):
            self.relax()
        return ()

    def relax(self) -> None:
        """The planner may take over."""
        self.priority = Priority.HIGH_LEVEL

    def _angles(self, setpoint: Setpoint) -> Setpoint:
        """Roll, pitch, yaw rate and thrust: locked until a client has sent zero thrust; `flightmode` parameters."""
        p = self.parameters
        if self.priority is Priority.NOBODY:
            self._thrust_locked = True
        if setpoint.thrust == 0.0:
            self._thrust_locked = False
        raw = setpoint.thrust
        thrust = 0.0 if self._thrust_locked or raw < LEAST_THRUST else min(raw, MOST_THRUST)
        roll, pitch, _ = setpoint.attitude
        if p["flightmode.posSet"] and raw != 0.0:
            yaw = -setpoint.rate[2]
            return Setpoint(modes=PLACE, position=(-pitch, roll, raw / 1000.0), attitude=(0.0, 0.0, yaw))
        modes = setpoint.modes
        if not p["flightmode.stabModeRoll"]:
            modes = replace(modes, roll=Mode.VELOCITY)
        if not p["flightmode.stabModePitch"]:
            modes = replace(modes, pitch=Mode.VELOCITY)
        velocity = setpoint.velocity
        if p["flightmode.althold"]:
            modes, thrust = replace(modes, z=Mode.VELOCITY), 0.0
            velocity = (0.0, 0.0, (raw - 32767.0) / 32767.0)
        return replace(setpoint, modes=modes, rate=(roll, pitch, setpoint.rate[2]), thrust=thrust, velocity=velocity)

    def age(self, now: float) -> float:
        """Seconds since the set point was set; infinite before the first."""
        return math.inf if self.priority is Priority.NOBODY else now - self.setpoint.time
