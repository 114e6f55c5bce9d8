"""A policy's commands as MAVLink's set points: which of them there are, and how they are sent.

    body rates (3,) rad/s, body, and thrust (1,) 0..1   SET_ATTITUDE_TARGET
    velocity (3,) m/s, world                            SET_POSITION_TARGET_LOCAL_NED
    position (3,) m, world                              SET_POSITION_TARGET_LOCAL_NED
    motor_command (4,) 0..1, of an airframe             SET_ATTITUDE_TARGET, see `Motors`

No message of MAVLink's carries rotors' commands to PX4: SET_ACTUATOR_CONTROL_TARGET went with version 1.14.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy.mavlink.frames import Axes, body
from deploy.mavlink.link import Link
from sim.robots.quadrotors import GRAVITY, MOTOR_COMMAND, Quadrotor
from sim.spec import Group, Signal

Values = Mapping[str, NDArray[Any]]
IGNORE_ATTITUDE = 0x80
ONLY_POSITION, ONLY_VELOCITY = 0x9F8, 0x9C7  # of SET_POSITION_TARGET_LOCAL_NED: with yaw, without its rate
LOCAL_NED = 1  # MAV_FRAME


class SetPointError(ValueError):
    """MAVLink carries no such command."""


class Carrier(Protocol):
    """What sends the commands of a policy."""

    commands: Group

    def send(self, link: Link, axes: Axes, commands: Values, rates: Any) -> None:
        """Commands (*shape) by name, to a vehicle that turns at `rates` (3,) rad/s, body."""


def place(link: Link, axes: Axes, position: Any) -> None:
    """Have it fly to a place (3,) m, world, its nose along the world's x axis."""
    x, y, z = axes.ned(position).tolist()
    _target(link, ONLY_POSITION, (x, y, z, 0.0, 0.0, 0.0), axes.heading)


def _target(link: Link, mask: int, numbers: tuple[float, ...], heading: float) -> None:
    message = link.mavlink.MAVLink_set_position_target_local_ned_message
    link.send(message(_now(link), link.target, 1, LOCAL_NED, mask, *numbers, 0.0, 0.0, 0.0, heading, 0.0))


def turn(link: Link, rates: Any, thrust: float) -> None:
    """Have it turn at `rates` (3,) rad/s, forward left up, with that share of its thrust."""
    p, q, r = body(rates).tolist()
    message = link.mavlink.MAVLink_set_attitude_target_message
    nothing = (1.0, 0.0, 0.0, 0.0)
    link.send(message(_now(link), link.target, 1, IGNORE_ATTITUDE, nothing, p, q, r, min(max(thrust, 0.0), 1.0)))


def _now(link: Link) -> int:
    return int(1e3 * link.clock()) & 0xFFFFFFFF


class Rates:
    """Body rates and a share of the thrust, as they are."""

    def __init__(self, rates: Signal, thrust: Signal) -> None:
        self.commands: Group = (rates, thrust)

    def send(self, link: Link, axes: Axes, commands: Values, rates: Any) -> None:
        wanted, thrust = (np.asarray(commands[c.name], np.float64).reshape(-1) for c in self.commands)
        turn(link, wanted, float(thrust[0]))


class Velocity:
    """A velocity in the world."""

    def __init__(self, velocity: Signal) -> None:
        self.commands: Group = (velocity,)

    def send(self, link: Link, axes: Axes, commands: Values, rates: Any) -> None:
        x, y, z = axes.ned(commands[self.commands[0].name]).tolist()
        _target(link, ONLY_VELOCITY, (0.0, 0.0, 0.0, x, y, z), axes.heading)


class Position:
    """A place in the world."""

    def __init__(self, position: Signal) -> None:
        self.commands: Group = (position,)

    def send(self, link: Link, axes: Axes, commands: Values, rates: Any) -> None:
        place(link, axes, commands[self.commands[0].name])


class Motors:
    """Rotor commands, as the body rates and the thrust that they would bring about.

    By the numbers of an airframe: the rotors' thrusts (N) make a torque, and this an angular acceleration
    a = torque / inertia. A rate loop that answers an error e with an acceleration k e is asked for the present rates
    plus a / k. It is as exact as k and the airframe are: torques of gyroscopic effects and what the vehicle's own loop
    adds (integral, derivative, filters) are left out.
    """

    def __init__(self, robot: Quadrotor, gains: tuple[float, float, float], most: float, hover: float = 0.5) -> None:
        """`gains` k, 1/s; `most` rad/s that is asked for; `hover`: the share of the thrust that carries the vehicle."""
        self.commands: Group = (MOTOR_COMMAND,)
        self.robot, self.gains, self.most, self.hover = robot, np.array(gains), most, hover
        self._torques = robot.mixer[1:] / np.array(robot.inertia)[:, None]  # (3, 4) rad/s^2 per N

    def rates(self, motors: Any, now: Any) -> tuple[NDArray[np.float64], float]:
        """Body rates (3,) rad/s and thrust, a share, for rotor commands (4,) at rates `now` (3,) rad/s."""
        c0, c1, c2 = self.robot.thrust_curve
        u = np.asarray(motors, np.float64).reshape(4)
        thrusts = c0 + c1 * u + c2 * u * u
        wanted = np.asarray(now, np.float64).reshape(3) + self._torques @ thrusts / self.gains
        share = self.hover * float(thrusts.sum()) / (self.robot.mass * GRAVITY)
        return np.clip(wanted, -self.most, self.most), share

    def send(self, link: Link, axes: Axes, commands: Values, rates: Any) -> None:
        turn(link, *self.rates(commands[MOTOR_COMMAND.name], rates))


def carrier_of(outputs: Group, robot: Quadrotor, gains: tuple[float, float, float], most: float) -> Carrier:
    """What carries these commands of a policy; SetPointError names what MAVLink cannot carry."""
    kinds = {(c.shape, c.unit, c.frame): c for c in outputs}
    shares = {key: c for key, c in kinds.items() if key[:2] == ((1,), "1") and c.low >= 0.0 and c.high <= 1.0}
    if len(kinds) == len(outputs) == 1:
        (command,) = outputs
        if command.name == MOTOR_COMMAND.name and command.shape == MOTOR_COMMAND.shape:
            return Motors(robot, gains, most)
        if ((3,), "m/s", "world") in kinds and math.isfinite(command.high - command.low):
            return Velocity(command)
        if ((3,), "m", "world") in kinds and math.isfinite(command.high - command.low):
            return Position(command)
    if len(kinds) == len(outputs) == 2 and ((3,), "rad/s", "body") in kinds and len(shares) == 1:
        return Rates(kinds[(3,), "rad/s", "body"], next(iter(shares.values())))
    told = ", ".join(f"{c.name} {c.shape} {c.unit} {c.frame}".rstrip() for c in outputs)
    raise SetPointError(
        f"MAVLink has no set point for these commands: {told}. It carries motor_command (4,); a velocity or a position "
        "(3,) in m/s or m, world, within limits; or body rates (3,) rad/s, body, with a thrust (1,) of 0 to 1"
    )
