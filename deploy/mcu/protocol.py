"""The frames on the serial line between a computer and a chip: sync, length, kind, number, payload, checksum."""

from __future__ import annotations

import binascii
import struct

SYNC = b"\xa5\x5a"
HEADER = 6  # sync, length, kind, number
VERSION = 1
OK, NOT_BEGUN, NOT_FINITE, SELFTEST_FAILED = range(4)
FAULTS = {
    NOT_BEGUN: "it restarted or heard nothing for 200 ms",
    NOT_FINITE: "a signal or a command is not finite",
    SELFTEST_FAILED: "its self-test failed",
}


def crc16(data: bytes) -> int:
    """CRC-16/CCITT with initial value 0xffff."""
    return binascii.crc_hqx(data, 0xFFFF)


def frame(kind: str, number: int, payload: bytes = b"") -> bytes:
    """The bytes on the line."""
    body = struct.pack("<HBB", len(payload), ord(kind), number) + payload
    return SYNC + body + struct.pack("<H", crc16(body))


class Decoder:
    """Finds frames in a stream of bytes, whatever else is in it."""

    def __init__(self, longest: int) -> None:
        self.longest = longest  # bytes of payload; a frame that claims more is damage
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[str, int, bytes]]:
        """(kind, number, payload) of every frame that these bytes complete."""
        self._buffer += data
        found: list[tuple[str, int, bytes]] = []
        while True:
            start = self._buffer.find(SYNC[0])
            del self._buffer[: len(self._buffer) if start < 0 else start]
            if len(self._buffer) < HEADER:
                return found
            size, kind, number = struct.unpack_from("<HBB", self._buffer, 2)
            if self._buffer[1] == SYNC[1] and size <= self.longest:
                if len(self._buffer) < HEADER + size + 2:
                    return found
                body, crc = bytes(self._buffer[2 : HEADER + size]), self._buffer[HEADER + size : HEADER + size + 2]
                if crc16(body) == int.from_bytes(crc, "little"):
                    found.append((chr(kind), number, body[4:]))
                    del self._buffer[: HEADER + size + 2]
                    continue
            del self._buffer[0]

    def forget(self) -> None:
        """Drop a frame that was begun: its rest will not come."""
        self._buffer.clear()
