"""What a client asks the vehicle to do: set points, and the packets that carry them.

Units and signs are the firmware's: degrees with inverted pitch (nose up is positive), thrust 0..65535.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

from deploy.crazyflie.crtp import Packet, Port

Triple = tuple[float, float, float]
ZERO: Triple = (0.0, 0.0, 0.0)


class Mode(IntEnum):
    """How one degree of freedom is controlled."""

    DISABLE = 0
    ABSOLUTE = 1
    VELOCITY = 2


@dataclass(frozen=True)
class Modes:
    """One mode per degree of freedom."""

    x: Mode = Mode.DISABLE
    y: Mode = Mode.DISABLE
    z: Mode = Mode.DISABLE
    roll: Mode = Mode.DISABLE
    pitch: Mode = Mode.DISABLE
    yaw: Mode = Mode.DISABLE
    quat: Mode = Mode.DISABLE


@dataclass(frozen=True)
class Setpoint:
    """With all modes disabled and no thrust, the motors stop."""

    time: float = 0.0  # s, when it was set
    modes: Modes = Modes()
    position: Triple = ZERO  # m, world
    velocity: Triple = ZERO  # m/s, world; x and y along the heading when `along_heading`
    acceleration: Triple = ZERO  # m/s^2, world
    attitude: Triple = ZERO  # degrees: roll, pitch, yaw
    rate: Triple = ZERO  # degrees/s
    thrust: float = 0.0  # 0..65535
    along_heading: bool = False

    @property
    def is_position(self) -> bool:
        """Whether it names a place to be."""
        return self.modes.x is self.modes.y is self.modes.z is Mode.ABSOLUTE


OFF, ABSOLUTE, VELOCITY = Mode.DISABLE, Mode.ABSOLUTE, Mode.VELOCITY
LEVELLED = Modes(roll=ABSOLUTE, pitch=ABSOLUTE, yaw=VELOCITY)
PLACE = Modes(x=ABSOLUTE, y=ABSOLUTE, z=ABSOLUTE, yaw=ABSOLUTE)


def _floats(data: bytes) -> tuple[float, float, float, float]:
    a, b, c, d = struct.unpack("<ffff", data)
    return a, b, c, d


def _stop(data: bytes) -> Setpoint:
    return Setpoint()


def _velocity_world(data: bytes) -> Setpoint:
    vx, vy, vz, yaw_rate = _floats(data)
    modes = Modes(x=VELOCITY, y=VELOCITY, z=VELOCITY, yaw=VELOCITY)
    return Setpoint(modes=modes, velocity=(vx, vy, vz), rate=(0.0, 0.0, yaw_rate))


def _height(data: bytes) -> Setpoint:
    roll, pitch, yaw_rate, z = _floats(data)
    modes = replace(LEVELLED, z=ABSOLUTE)
    return Setpoint(modes=modes, position=(0.0, 0.0, z), attitude=(roll, pitch, 0.0), rate=(0.0, 0.0, yaw_rate))


def _hover(data: bytes) -> Setpoint:
    vx, vy, yaw_rate, z = _floats(data)
    modes = Modes(x=VELOCITY, y=VELOCITY, z=ABSOLUTE, yaw=VELOCITY)
    return Setpoint(
        modes=modes, position=(0.0, 0.0, z), velocity=(vx, vy, 0.0), rate=(0.0, 0.0, yaw_rate), along_heading=True
    )


def _position(data: bytes) -> Setpoint:
    x, y, z, yaw = _floats(data)
    return Setpoint(modes=PLACE, position=(x, y, z), attitude=(0.0, 0.0, yaw))


def _legacy(decode: Callable[[bytes], Setpoint]) -> Callable[[bytes], Setpoint]:
    """The older packet of the same meaning, whose yaw rate has the other sign."""

    def decode_legacy(data: bytes) -> Setpoint:
        setpoint = decode(data)
        return replace(setpoint, rate=(0.0, 0.0, -setpoint.rate[2]))

    return decode_legacy


def _manual(data: bytes) -> Setpoint:
    roll, pitch, yaw_rate, thrust, as_rate = struct.unpack("<fffHB", data)
    if as_rate:
        modes = Modes(roll=VELOCITY, pitch=VELOCITY, yaw=VELOCITY)
        return Setpoint(modes=modes, rate=(roll, pitch, yaw_rate), thrust=thrust)
    return Setpoint(modes=LEVELLED, attitude=(roll, pitch, 0.0), rate=(0.0, 0.0, yaw_rate), thrust=thrust)


def decompress(code: int) -> tuple[float, float, float, float]:
    """The unit quaternion (x, y, z, w) in 32 bits: which element is largest, and 10 bits for each of the others."""
    largest = code >> 30
    values = [0.0] * 4
    for index in (i for i in (3, 2, 1, 0) if i != largest):
        size = (code & 0x1FF) / 0x1FF * math.sqrt(0.5)
        values[index] = -size if code & 0x200 else size
        code >>= 10
    values[largest] = math.sqrt(max(0.0, 1.0 - sum(v * v for v in values)))
    return values[0], values[1], values[2], values[3]


def _full_state(data: bytes) -> Setpoint:
    *numbers, code, roll_rate, pitch_rate, yaw_rate = struct.unpack("<9hI3h", data)
    p, v, a = ((n[0] / 1e3, n[1] / 1e3, n[2] / 1e3) for n in (numbers[:3], numbers[3:6], numbers[6:]))
    x, y, z, w = decompress(code)
    yaw = math.degrees(math.atan2(2.0 * (x * y + z * w), 1.0 - 2.0 * (y * y + z * z)))
    degrees = [math.degrees(rate / 1e3) for rate in (roll_rate, pitch_rate, yaw_rate)]
    modes = Modes(x=ABSOLUTE, y=ABSOLUTE, z=ABSOLUTE, quat=ABSOLUTE)
    return Setpoint(
        modes=modes,
        position=p,
        velocity=v,
        acceleration=a,
        attitude=(0.0, 0.0, yaw),
        rate=(degrees[0], degrees[1], degrees[2]),
    )


DECODERS: dict[int, Callable[[bytes], Setpoint]] = {
    0: _stop,
    1: _legacy(_velocity_world),
    2: _legacy(_height),
    5: _legacy(_hover),
    6: _full_state,
    7: _position,
    8: _velocity_world,
    9: _height,
    10: _hover,
    11: _manual,
}


def decode(packet: Packet) -> Setpoint:
    """The set point in a packet of either commander port; ValueError when it is malformed or of unknown type."""
    try:
        if packet.port == Port.COMMANDER:
            roll, pitch, yaw_rate, thrust = struct.unpack("<fffH", packet.data)
            # This port's yaw rate is inverted.
            return Setpoint(
                modes=LEVELLED, attitude=(roll, pitch, 0.0), rate=(0.0, 0.0, -yaw_rate), thrust=float(thrust)
            )
        setpoint = DECODERS[packet.data[0]](packet.data[1:])
    except (struct.error, IndexError) as error:
        raise ValueError(f"malformed set point: {error}") from None
    except KeyError:
        raise ValueError(f"set point of unknown type {packet.data[0]}") from None
    numbers = (*setpoint.position, *setpoint.velocity, *setpoint.attitude, *setpoint.rate)
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("set point with a number that is not finite")
    return setpoint
