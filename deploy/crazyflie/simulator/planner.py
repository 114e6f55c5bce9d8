"""The high-level commander: take-off, go-to, spiral, uploaded trajectories and landing, planned on board."""

from __future__ import annotations

import errno
import math
import struct
from collections.abc import Callable, Iterable
from enum import IntEnum

import numpy as np

from deploy.crazyflie.crtp import Packet
from deploy.crazyflie.paths import Goal, Path, Piece, connect, spiral
from deploy.crazyflie.simulator.setpoints import PLACE, Setpoint, Triple

PIECE = struct.Struct("<33f")  # 8 coefficients each of x, y, z and yaw, lowest order first; then the duration
SPEED = 0.5  # m/s, of take-offs and landings that name none
SET_GROUP, STOP, DEFINE = 0, 3, 6
MOST_TRAJECTORIES = 31
LARGEST = 1e6  # m, s, rad; what is not smaller, or no number, is refused
IN_MEMORY, POLYNOMIALS = 1, 0  # where and what a defined trajectory is


class Activity(IntEnum):
    """The values are the firmware's."""

    IDLE = 0
    FLYING = 1
    LANDING = 3


def _nearest_yaw(current: float, wanted: float) -> float:
    return current + math.remainder(wanted - current, 2.0 * math.pi)


class Planner:
    """Answers the high-level port. `memory` holds uploaded trajectories."""

    def __init__(self, memory: bytearray) -> None:
        self.activity = Activity.IDLE
        self.path: Path | None = None
        self.memory = memory
        self.blocked = True  # while the supervisor does not let the vehicle fly
        self.last = Goal(np.zeros(4), np.zeros(4), np.zeros(4))  # where new plans begin
        self._groups = 0
        self._defined: dict[int, tuple[Piece, ...]] = {}
        self._now = 0.0
        # Per command: the bytes after the group that it is for, and what it does.
        self._commands: dict[int, tuple[str, Callable[..., int]]] = {
            1: ("ff", lambda height, duration: self._take_off(height, 0.0, False, duration)),
            2: ("ff", lambda height, duration: self._land(height, 0.0, False, duration)),
            STOP: ("", self._stop),
            4: ("Bfffff", lambda relative, *rest: self._go_to(relative, 0, *rest)),
            5: ("BBBf", lambda relative, *rest: self._start(relative, 0, *rest)),
            7: ("ff?f", self._take_off),
            8: ("ff?f", self._land),
            9: ("f?f?f", self._take_off_at_speed),
            10: ("f?f?f", self._land_at_speed),
            11: ("BBfffff", self._spiral),
            12: ("BBfffff", self._go_to),
            13: ("BBBBf", self._start),
        }

    def stop(self) -> None:
        """Forget the plan; the motors stop when nobody else commands them."""
        self.activity = Activity.IDLE

    def finished(self, now: float) -> bool:
        """Whether the last path has been flown to its end."""
        return self.path is None or now - self.path.began >= self.path.duration

    def observe(self, position: Triple, velocity: Triple, yaw: float) -> None:
        """Where the vehicle is (m, m/s, rad): new plans begin here unless one is being flown."""
        if self.activity is Activity.IDLE:
            self.last = Goal(np.array([*position, yaw]), np.array([*velocity, 0.0]), np.zeros(4))

    def setpoint(self, now: float) -> Setpoint:
        """The set point of the plan; the empty one when idle."""
        if self.activity is Activity.IDLE or self.path is None:
            return Setpoint()
        self.last = goal = self.path.at(now)
        if self.activity is Activity.LANDING and self.finished(now):
            self.activity = Activity.IDLE
        x, y, z, yaw = goal.place.tolist()
        vx, vy, vz, _ = goal.velocity.tolist()
        ax, ay, az, _ = goal.acceleration.tolist()
        heading = math.degrees(math.remainder(yaw, 2.0 * math.pi))
        return Setpoint(
            modes=PLACE,
            position=(x, y, z),
            velocity=(vx, vy, vz),
            acceleration=(ax, ay, az),
            attitude=(0.0, 0.0, heading),
        )

    def handle(self, packet: Packet, now: float) -> Iterable[Packet]:
        """Carry out a command; answer its first three bytes and an error number, 0 when it was accepted."""
        self._now = now
        try:
            code = self._carry_out(packet.data[0], packet.data[1], packet.data[2:])
        except (struct.error, IndexError):
            raise ValueError(f"malformed high-level command {packet.data.hex()}") from None
        return (packet.reply(packet.data[:3].ljust(3, b"\0") + bytes((code,))),)

    def _carry_out(self, command: int, group: int, data: bytes) -> int:
        if command == SET_GROUP:
            self._groups = group
            return 0
        if command == DEFINE:
            return self._define(group, *struct.unpack("<BBIB", data))
        if command not in self._commands:
            return errno.ENOEXEC
        form, carry_out = self._commands[command]
        values = struct.unpack(f"<{form}", data)
        if self.blocked and command != STOP:
            return errno.EBUSY
        if group and not group & self._groups:
            return 0
        if not all(abs(value) < LARGEST for value in values):
            return errno.EINVAL
        return carry_out(*values)

    def _fly(self, activity: Activity, path: Path) -> int:
        self.activity, self.path = activity, path
        return 0

    def _stop(self) -> int:
        self.stop()
        return 0

    def _vertical(self, activity: Activity, height: float, yaw: float, keep_yaw: bool, duration: float) -> int:
        if not duration > 0.0:
            return errno.EINVAL
        x, y, _, heading = self.last.place
        rest = np.zeros(4)
        end = np.array([x, y, height, heading if keep_yaw else _nearest_yaw(heading, yaw)])
        piece = connect(duration, Goal(self.last.place, rest, rest), Goal(end, rest, rest))
        return self._fly(activity, Path((piece,), self._now))

    def _take_off(self, height: float, yaw: float, keep_yaw: bool, duration: float) -> int:
        if self.activity is not Activity.IDLE:
            return 1
        return self._vertical(Activity.FLYING, height, yaw, keep_yaw, duration)

    def _land(self, height: float, yaw: float, keep_yaw: bool, duration: float) -> int:
        if self.activity is Activity.LANDING:
            return 1
        return self._vertical(Activity.LANDING, height, yaw, keep_yaw, duration)

    def _take_off_at_speed(self, height: float, relative: bool, yaw: float, keep_yaw: bool, speed: float) -> int:
        z = float(self.last.place[2])
        height = z + height if relative else height
        return self._take_off(height, yaw, keep_yaw, abs(height - z) / (speed if speed > 0.0 else SPEED))

    def _land_at_speed(self, height: float, relative: bool, yaw: float, keep_yaw: bool, speed: float) -> int:
        z = float(self.last.place[2])
        height = z - height if relative else height
        return self._land(height, yaw, keep_yaw, abs(height - z) / (speed if speed > 0.0 else SPEED))

    def _goal_now(self) -> Goal:
        if self.path is None or self.activity is Activity.IDLE:
            return self.last
        return self.path.at(self._now)

    def _go_to(self, relative: int, linear: int, x: float, y: float, z: float, yaw: float, duration: float) -> int:
        if not duration > 0.0:
            return errno.EINVAL
        begin, rest = self._goal_now(), np.zeros(4)
        place = np.array([x, y, z, yaw]) + (begin.place if relative else 0.0)
        place[3] = _nearest_yaw(begin.place[3], place[3])
        velocity = (place - begin.place) / duration if linear else rest
        start = Goal(begin.place, velocity, rest) if linear else begin
        return self._fly(Activity.FLYING, Path((connect(duration, start, Goal(place, velocity, rest)),), self._now))

    def _spiral(
        self, sideways: int, clockwise: int, angle: float, radius: float, last: float, climb: float, duration: float
    ) -> int:
        if not duration > 0.0:
            return errno.EINVAL
        radius, last = max(radius, 0.0), max(last, 0.0)
        turn = min(max(angle, -2.0 * math.pi), 2.0 * math.pi)
        begin = self._goal_now().place
        pieces = spiral(begin, bool(sideways), bool(clockwise), turn, radius, last, climb, duration)
        return self._fly(Activity.FLYING, Path(pieces, self._now))

    def _define(self, identity: int, location: int, kind: int, offset: int, count: int) -> int:
        end = offset + count * PIECE.size
        if identity >= MOST_TRAJECTORIES:
            return errno.ENOEXEC
        if location != IN_MEMORY or kind != POLYNOMIALS or not count or end > len(self.memory):
            return errno.ENOEXEC  # compressed trajectories are not simulated
        pieces = []
        for start in range(offset, end, PIECE.size):
            values = PIECE.unpack_from(self.memory, start)
            pieces.append(Piece(values[32], np.array(values[:32]).reshape(4, 8)))
        if not all(0.0 < piece.duration < LARGEST and np.isfinite(piece.coefficients).all() for piece in pieces):
            return errno.EINVAL
        self._defined[identity] = tuple(pieces)
        return 0

    def _start(self, relative: int, relative_yaw: int, backwards: int, identity: int, scale: float) -> int:
        if identity not in self._defined:
            return 0  # the firmware accepts it, and nothing happens
        if not scale > 0.0 or relative_yaw:
            return errno.EINVAL  # turning a trajectory is not simulated
        path = Path(self._defined[identity], self._now, scale, bool(backwards))
        if relative:
            shift = self._goal_now().place - path.at(self._now).place
            path.shift = np.array([*shift[:3], 0.0])
        return self._fly(Activity.FLYING, path)
