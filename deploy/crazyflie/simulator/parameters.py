"""The vehicle's parameters: the firmware's names, types and defaults, and the port that reads and writes them.

Which there are says `contents`. Those that nothing in the simulation asks for keep what is written, and change nothing.
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
    "int16": (0x01, "<h"),
    "int32": (0x02, "<i"),
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


# What the sources do not say in one number: members of structures, this vehicle's identity and self-test.
GIVEN: dict[str, float] = {
    "cpu.flash": 1024,
    "cpu.id0": 0x53494D32,
    "cpu.id1": 0x4D455441,
    "firmware.modified": 1,
    "firmware.revision0": 0x2A18FC29,
    "flightmode.stabModePitch": 1,
    "flightmode.stabModeRoll": 1,
    "posCtlPid.xKp": 2.0,
    "posCtlPid.yKp": 2.0,
    "posCtlPid.zKp": 2.0,
    "posCtlPid.zKi": 0.5,
    "ring.effect": 0,  # no ring
    "stabilizer.controller": 1,
    "stabilizer.estimator": 2,
    "system.selftestPassed": 1,
    "velCtlPid.vxKp": 25.0,
    "velCtlPid.vxKi": 1.0,
    "velCtlPid.vyKp": 25.0,
    "velCtlPid.vyKi": 1.0,
    "velCtlPid.vzKp": 25.0,
    "velCtlPid.vzKi": 15.0,
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
        table: Mapping[str, tuple[str, float]],
    ) -> None:
        """`table`: type and default by name, of firmware and app."""
        self.table = [_entry(name, kind, GIVEN.get(name, default)) for name, (kind, default) in sorted(table.items())]
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
