"""The memory port of a vehicle without decks: one memory, for uploaded trajectories."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable

from deploy.crazyflie.crtp import LARGEST, Packet

INFO, READ, WRITE = range(3)  # channels
COUNT, DETAILS = 1, 2  # commands
TRAJECTORIES = 0x12  # type of memory
SIZE = 4096  # bytes


class Memory:
    """Answers the memory port. `content` is what clients wrote."""

    def __init__(self) -> None:
        self.content = bytearray(SIZE)

    def handle(self, packet: Packet, now: float) -> Iterable[Packet]:
        """Count, describe, read or write memories."""
        data = packet.data
        if packet.channel == INFO and data[:1] == bytes((COUNT,)):
            return (packet.reply(bytes((COUNT, 1))),)
        if packet.channel == INFO and data[:1] == bytes((DETAILS,)):
            details = struct.pack("<BIQ", TRAJECTORIES, SIZE, 0) if data[1:2] == b"\0" else b""
            return (packet.reply(data[:2] + details),)
        if packet.channel not in (READ, WRITE):
            return ()
        return (packet.reply(data[:5] + self._access(packet.channel, data)),)

    def _access(self, channel: int, data: bytes) -> bytes:
        try:
            identity, address = struct.unpack("<BI", data[:5])
            length = struct.unpack("<B", data[5:])[0] if channel == READ else len(data) - 5
        except struct.error as error:
            raise ValueError(f"malformed access to a memory: {error}") from None
        if identity != 0 or address + length > SIZE or length > LARGEST - 6:
            return bytes((errno.EIO,))
        if channel == WRITE:
            self.content[address : address + length] = data[5:]
            return b"\0"
        return b"\0" + bytes(self.content[address : address + length])
