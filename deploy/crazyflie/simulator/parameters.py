"""The vehicle's parameters: the firmware's names, types and defaults, and the port that reads and writes them.

Those that the simulation acts on are here, and those that clients write out of habit and that change nothing.
"""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from deploy.crazyflie.crtp import Packet

TOC, READ, WRITE, MISC = range(4)  # channels
ITEM, INFO = 2, 3  # commands of the table of contents
READ_ONLY, EXTENDED = 0x40, 0x10
PERSISTENT = 1  # the only extended type
# C type -> its number, and how it is packed.
TYPES = {
    "uint8": (0x08, "<B"),
    "uint16": (0x09, "<H"),
    "uint32": (0x0A, "<I"),
    "int8": (0x00, "<b"),
    "float": (6, "<f"),
}
STORED = " persistent"


class Parameter(NamedTuple):
    """One entry of the table of contents."""

    name: str  # group.name
    form: str  # how it is packed
    kind: int  # type and flags
    default: float

    @property
    def persistent(self) -> bool:
        """Whether the vehicle can remember it over a reboot."""
        return bool(self.kind & EXTENDED)

    def encode(self, value: float) -> bytes:
        """The value as it is sent."""
        return struct.pack(self.form, value if self.form == "<f" else int(value))


def _pid(names: Iterable[str], gains: tuple[float, float, float], separator: str = "K") -> dict[str, tuple[str, float]]:
    ends = ("Kp", "Ki", "Kd") if separator == "K" else ("_kp", "_ki", "_kd")
    return {f"{name}{end}": ("float" + STORED, gain) for name in names for end, gain in zip(ends, gains, strict=True)}


# group.name -> type and default. Gains: platform_defaults_cf2.h.
TABLE: dict[str, tuple[str, float]] = {
    "cpu.flash": ("uint16 read-only", 1024),
    "cpu.id0": ("uint32 read-only", 0x53494D32),
    "cpu.id1": ("uint32 read-only", 0x4D455441),
    "cpu.id2": ("uint32 read-only", 0),
    "commander.enHighLevel": ("uint8", 0),
    "deck.bcAI": ("uint8 read-only", 0),
    "deck.bcFlow2": ("uint8 read-only", 0),
    "deck.bcLighthouse4": ("uint8 read-only", 0),
    "deck.bcLoco": ("uint8 read-only", 0),
    "deck.bcMultiranger": ("uint8 read-only", 0),
    "firmware.modified": ("uint8 read-only", 1),
    "firmware.revision0": ("uint32 read-only", 0x2A18FC29),
    "firmware.revision1": ("uint16 read-only", 0),
    "flightmode.althold": ("uint8", 0),
    "flightmode.posSet": ("uint8", 0),
    "flightmode.stabModePitch": ("uint8", 1),
    "flightmode.stabModeRoll": ("uint8", 1),
    "flightmode.stabModeYaw": ("uint8", 0),
    "kalman.initialX": ("float", 0.0),
    "kalman.initialY": ("float", 0.0),
    "kalman.initialZ": ("float", 0.0),
    "kalman.initialYaw": ("float", 0.0),
    "kalman.resetEstimation": ("uint8", 0),
    "locSrv.extPosStdDev": ("float", 0.01),
    "locSrv.extQuatStdDev": ("float", 4.5e-3),
    "motorPowerSet.enable": ("uint8", 0),
    "motorPowerSet.m1": ("uint16", 0),
    "motorPowerSet.m2": ("uint16", 0),
    "motorPowerSet.m3": ("uint16", 0),
    "motorPowerSet.m4": ("uint16", 0),
    **_pid(("pid_attitude.roll", "pid_attitude.pitch"), (6.0, 3.0, 0.0), "_"),
    **_pid(("pid_attitude.yaw",), (6.0, 1.0, 0.35), "_"),
    **_pid(("pid_rate.roll", "pid_rate.pitch"), (250.0, 500.0, 2.5), "_"),
    **_pid(("pid_rate.yaw",), (120.0, 16.7, 0.0), "_"),
    "pm.criticalLowVoltage": ("float" + STORED, 3.0),
    "pm.lowVoltage": ("float" + STORED, 3.2),
    **_pid(("posCtlPid.x", "posCtlPid.y"), (2.0, 0.0, 0.0)),
    **_pid(("posCtlPid.z",), (2.0, 0.5, 0.0)),
    "posCtlPid.pLimit": ("float" + STORED, 20.0),
    "posCtlPid.rLimit": ("float" + STORED, 20.0),
    "posCtlPid.thrustBase": ("uint16" + STORED, 36000),
    "posCtlPid.thrustMin": ("uint16" + STORED, 20000),
    "posCtlPid.xVelMax": ("float" + STORED, 1.0),
    "posCtlPid.yVelMax": ("float" + STORED, 1.0),
    "posCtlPid.zVelMax": ("float" + STORED, 1.0),
    "powerDist.idleThrust": ("uint32" + STORED, 0),
    "ring.effect": ("uint8" + STORED, 0),
    "stabilizer.controller": ("uint8", 1),
    "stabilizer.estimator": ("uint8", 2),
    "stabilizer.stop": ("uint8", 0),
    "supervisor.crashDetectGs": ("float" + STORED, 0.0),
    "supervisor.landedTimeout": ("uint16" + STORED, 3000),
    "supervisor.prefltTimeout": ("uint16" + STORED, 30000),
    "supervisor.tmblChckEn": ("uint8" + STORED, 1),
    "system.selftestPassed": ("int8 read-only", 1),
    **_pid(("velCtlPid.vx", "velCtlPid.vy"), (25.0, 1.0, 0.0)),
    **_pid(("velCtlPid.vz",), (25.0, 15.0, 0.0)),
}


def _entry(name: str, kind: str, default: float) -> Parameter:
    c_type, _, access = kind.partition(" ")
    number, form = TYPES[c_type]
    flags = {"": 0, "read-only": READ_ONLY, "persistent": EXTENDED}[access]
    return Parameter(name, form, number | flags, default)


def contents(entries: Iterable[tuple[str, int]]) -> tuple[list[bytes], int]:
    """The items of a table of contents (type, group, name), and the checksum by which clients remember it."""
    items = []
    for name, kind in entries:
        items.append(bytes((kind,)) + name.replace(".", "\0").encode() + b"\0")
    return items, zlib.crc32(b"".join(items))


def answer_contents(data: bytes, items: list[bytes], checksum: int, more: bytes = b"") -> bytes:
    """The answer to a request for the size of a table of contents, or one of its items."""
    if data[:1] == bytes((INFO,)):
        return struct.pack("<BHI", INFO, len(items), checksum) + more
    index: int = struct.unpack("<H", data[1:3])[0]
    if data[0] != ITEM or index >= len(items):
        return data[:1]
    return data[:3] + items[index]


class Parameters(dict[str, float]):
    """The values by name; answers the parameters' port. `stored` survives a reboot."""

    def __init__(
        self,
        changed: Callable[[str, float], None],
        stored: dict[str, float],
        own: Mapping[str, float],
        app: Mapping[str, tuple[str, float]] | None = None,
    ) -> None:
        """`own`: defaults of this vehicle that differ from the table's; `app`: the parameters of an app on board."""
        table = TABLE | dict(app or {})
        self.table = [_entry(name, kind, own.get(name, default)) for name, (kind, default) in sorted(table.items())]
        super().__init__({entry.name: entry.default for entry in self.table} | stored)
        self.changed, self.stored = changed, stored
        self._items, self._checksum = contents((entry.name, entry.kind) for entry in self.table)

    def handle(self, packet: Packet, now: float) -> Iterable[Packet]:
        """Read, write, or describe a parameter."""
        answer = (self._contents, self._read, self._write, self._other)[packet.channel]
        try:
            data = answer(packet.data)
        except struct.error as error:
            raise ValueError(f"malformed request for a parameter: {error}") from None
        return () if data is None else (packet.reply(data),)

    def _contents(self, data: bytes) -> bytes:
        return answer_contents(data, self._items, self._checksum)

    def _find(self, data: bytes) -> Parameter | None:
        (index,) = struct.unpack("<H", data[:2])
        return self.table[index] if index < len(self.table) else None

    def _read(self, data: bytes) -> bytes:
        entry = self._find(data)
        return data[:2] + (b"\0" + entry.encode(self[entry.name]) if entry else bytes((errno.ENOENT,)))

    def _set(self, entry: Parameter, value: bytes) -> int:
        if entry.kind & READ_ONLY:
            return errno.EACCES
        (self[entry.name],) = struct.unpack(entry.form, value)
        self.changed(entry.name, self[entry.name])
        return 0

    def _write(self, data: bytes) -> bytes | None:
        """Answers what was written; nothing when the parameter can only be read, as the firmware does."""
        entry = self._find(data)
        if entry is None:
            return data[:2] + bytes((errno.ENOENT,))
        return None if self._set(entry, data[2:]) else data

    def _other(self, data: bytes) -> bytes:
        command = data[0]
        if command == 0:
            return self._set_by_name(data)
        entry = self._find(data[1:3])
        return data[:3] + (self._describe(command, entry) if entry else bytes((errno.ENOENT,)))

    def _describe(self, command: int, entry: Parameter) -> bytes:
        """Extended type, default, and what is stored; V2 of a command puts an error number first."""
        kind = bytes((PERSISTENT if entry.persistent else 0,))
        default = entry.encode(entry.default)
        writable = not entry.kind & READ_ONLY
        if command in (2, 7):
            return kind if command == 2 else b"\0" + kind
        if command in (6, 8):
            return (b"" if command == 6 else b"\0") + default if writable else bytes((errno.ENOENT,))
        if command not in (3, 4, 5) or not entry.persistent:
            return bytes((errno.ENOENT,))
        if command == 4:
            kept = entry.name in self.stored
            return bytes((kept,)) + default + (entry.encode(self.stored[entry.name]) if kept else b"")
        if command == 3:
            self.stored[entry.name] = self[entry.name]
        else:
            self.stored.pop(entry.name, None)
        return b"\0"

    def _set_by_name(self, data: bytes) -> bytes:
        group, name, rest = data[1:].split(b"\0", 2)
        if not rest:
            raise ValueError(f"malformed request for a parameter: {data.hex()}")
        wanted = f"{group.decode()}.{name.decode()}"
        entry = next((entry for entry in self.table if entry.name == wanted), None)
        if entry is None or rest[0] != entry.kind & 0x0F:
            code = errno.ENOENT if entry is None else errno.EINVAL
        else:
            code = self._set(entry, rest[1:])
        return data[: len(data) - len(rest)] + bytes((code,))
