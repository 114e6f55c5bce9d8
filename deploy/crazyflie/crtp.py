"""The Crazyflie's radio protocol: one datagram is a header (port, channel) and up to 30 bytes."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

LARGEST = 30  # bytes of data in a packet
RESERVED = 0x0C  # header bits that are always set
NULL = b"\xff"  # the packet that asks whether anybody is there
BOOTLOADER = 0xFE  # first byte of what the radio chip, not the flight controller, answers


class Port(IntEnum):
    """Who a packet is for."""

    CONSOLE = 0
    PARAMETERS = 2
    COMMANDER = 3
    MEMORY = 4
    LOGGING = 5
    LOCALIZATION = 6
    COMMANDER_GENERIC = 7
    HIGH_LEVEL = 8
    SUPERVISOR = 9
    PLATFORM = 13
    LINK = 15


class Packet(NamedTuple):
    """Port 0..15, channel 0..3, and at most 30 bytes."""

    port: int
    channel: int
    data: bytes

    @classmethod
    def decode(cls, datagram: bytes) -> Packet:
        """The packet in a datagram; ValueError when it is empty or too long."""
        if not 1 <= len(datagram) <= LARGEST + 1:
            raise ValueError(f"a packet has 1 to {LARGEST + 1} bytes, got {len(datagram)}")
        return cls(datagram[0] >> 4, datagram[0] & 3, datagram[1:])

    def encode(self) -> bytes:
        """The datagram."""
        return bytes((self.port << 4 | RESERVED | self.channel,)) + self.data

    def reply(self, data: bytes) -> Packet:
        """An answer on the same port and channel."""
        return Packet(self.port, self.channel, data)
