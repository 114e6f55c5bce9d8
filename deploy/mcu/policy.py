"""A policy on a microcontroller at the other end of a serial line. firmware/stm32f405/main.c is the chip's side.

Every request has a number and is repeated until its answer arrives; the chip does not step twice for one number. When
no answer comes in time, or the chip says that it restarted, the commands of that step are NaN: `deploy.guard` then
holds the last good command for a few steps and sends the safe command from then on. The chip for its part refuses to
step after 200 ms of silence or a restart, until a new flight begins.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import select
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy.mcu.cost import packed, struct_type, unpacked
from deploy.mcu.emulator import Chip
from deploy.policy_file import PolicyFile

BAUD = 921600
SYNC = b"\xa5\x5a"
HEADER = 6  # sync, length, kind, number
VERSION = 1
OK, NOT_BEGUN, NOT_FINITE, SELFTEST_FAILED = range(4)
FAULTS = {
    NOT_BEGUN: "it restarted or heard nothing for 200 ms",
    NOT_FINITE: "a signal or a command is not finite",
    SELFTEST_FAILED: "its self-test failed",
}


class LinkError(OSError):
    """Nobody answers on the line, or not the one who should."""


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


class Port(Protocol):
    """A line of bytes, and its clock."""

    def write(self, data: bytes) -> None:
        """Send."""

    def read(self, patience: float) -> bytes:
        """What has arrived; waits up to `patience` seconds for the first byte."""

    def now(self) -> float:
        """Seconds."""

    def close(self) -> None:
        """Give the line back."""


class SerialPort:
    """A serial device of this machine, raw, 8N1."""

    def __init__(self, path: str, baud: int = BAUD) -> None:
        import termios

        speed = getattr(termios, f"B{baud}", None)
        if speed is None:
            raise LinkError(f"{path}: this machine has no serial speed {baud}")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            raise LinkError(f"{path}: {error.strerror}; port=emulated needs no hardware") from None
        with contextlib.suppress(termios.error):
            settings = termios.tcgetattr(self._file)
            settings[0] = settings[1] = settings[3] = 0
            settings[2] = termios.CS8 | termios.CREAD | termios.CLOCAL
            settings[4] = settings[5] = speed
            termios.tcsetattr(self._file, termios.TCSAFLUSH, settings)

    def write(self, data: bytes) -> None:
        while data:
            select.select([], [self._file], [], 1.0)
            data = data[os.write(self._file, data) :]

    def read(self, patience: float) -> bytes:
        ready, _, _ = select.select([self._file], [], [], max(0.0, patience))
        return os.read(self._file, 4096) if ready else b""

    def now(self) -> float:
        return time.perf_counter()

    def close(self) -> None:
        os.close(self._file)


class EmulatedPort:
    """A chip in this process. Its time passes with the bytes on the line (at 921 600 baud) and while one waits."""

    def __init__(self, chip: Chip, step_seconds: float = 0.0) -> None:
        """`step_seconds`: what an answer takes the real chip, which an uncounted emulation cannot know."""
        self.chip, self.step_seconds = chip, step_seconds
        self._time = 0.0
        self._ticks = 0
        self._arrived = bytearray()
        self._pass(0.0)

    def _pass(self, seconds: float) -> None:
        self._time += seconds
        ticks = int(self._time * 1000.0)
        self.chip.milliseconds_due, self._ticks = ticks - self._ticks, ticks
        self._arrived += self.chip.run()

    def write(self, data: bytes) -> None:
        self.chip.incoming.extend(data)
        self._pass(len(data) * 10.0 / BAUD)
        self._time += self.step_seconds

    def read(self, patience: float) -> bytes:
        if not self._arrived:
            for _ in range(max(1, round(1000.0 * patience))):
                self._pass(1e-3)
                if self._arrived:
                    break
        out = bytes(self._arrived)
        self._arrived.clear()
        self._time += len(out) * 10.0 / BAUD
        return out

    def now(self) -> float:
        return self._time

    def close(self) -> None:
        """Nothing is held."""


QEMU = ("qemu-system-arm", "-M", "netduinoplus2", "-display", "none", "-monitor", "none", "-serial", "stdio", "-kernel")


class QemuPort:
    """An image on QEMU's STM32F405, where that is installed: another implementation of the processor and its parts."""

    def __init__(self, image: str | os.PathLike[str]) -> None:
        try:
            self._process = subprocess.Popen([*QEMU, image], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except FileNotFoundError:
            raise LinkError(f"{QEMU[0]} is not installed; port=emulated needs nothing") from None

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    def read(self, patience: float) -> bytes:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, patience))
        return self._process.stdout.read(4096) if ready else b""

    def now(self) -> float:
        return time.perf_counter()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Statistics:
    """What happened on the line."""

    round_trips: list[float] = field(default_factory=list)  # s, of steps, by the port's clock
    cycles: list[int] = field(default_factory=list)  # of steps, as the chip counted them; 0: it cannot
    repeated: int = 0  # requests that had to be sent again
    lost: int = 0  # steps without an answer
    faults: dict[str, int] = field(default_factory=dict)  # refused steps, by reason


class OnChip:
    """A policy that runs on the chip, for `deploy.loop.run`: the same contract as the file's."""

    def __init__(self, policy: PolicyFile, port: Port, patience: float | None = None) -> None:
        """`patience`: how long a step may take (s), all repetitions included; default half a control period.

        Raises LinkError when no chip with this very policy answers.
        """
        self.policy, self.port = policy, port
        self.path, self.name, self.robot, self.rate_hz = policy.path, policy.name, policy.robot, policy.rate_hz
        self.inputs, self.outputs, self.vectors = policy.inputs, policy.outputs, policy.vectors
        self.patience = 0.5 / policy.rate_hz if patience is None else patience
        self.statistics = Statistics()
        self._number = 0
        self._answer_size = 8 + 4 * sum(s.size for s in policy.outputs)
        self._decoder = Decoder(max(self._answer_size, 6 + 64))
        self._greet()

    def _greet(self) -> None:
        """Wait for the chip and compare what it runs with the file."""
        payload = self._request("H", b"", 1.5, answer="R")
        if payload is None:
            raise LinkError("no chip answers; is it powered, flashed and connected at 921600 baud?")
        version, sound, signals, commands = struct.unpack_from("<BBHH", payload)
        sha256 = payload[6:].decode("ascii", "replace")
        want = (struct_type(self.policy).itemsize, self._answer_size - 8)
        if version != VERSION:
            raise LinkError(f"the chip speaks version {version} of the protocol, not {VERSION}; flash it again")
        if sha256 != self.policy.sha256 or (signals, commands) != want:
            raise LinkError(f"the chip runs another policy ({sha256[:12]}...), not {self.path}; flash it again")
        if not sound:
            raise LinkError("the chip's self-test failed: it computes wrongly, do not fly with it")

    def _request(self, kind: str, payload: bytes, patience: float, answer: str) -> bytes | None:
        """The payload of the answer; None when none came within `patience` seconds. Repeats four times in that time."""
        self._number = (self._number + 1) % 256
        data = frame(kind, self._number, payload)
        began = self.port.now()
        for attempt in range(4):
            self.statistics.repeated += attempt > 0
            self.port.write(data)
            until = began + patience * (attempt + 1) / 4
            while self.port.now() < until:
                for got, number, content in self._decoder.feed(self.port.read(until - self.port.now())):
                    if got == answer and number == self._number:
                        return content
            self._decoder.forget()
        return None

    def reset(self, n: int = 1) -> None:
        """Begin a flight. LinkError when the chip does not answer."""
        if n != 1:
            raise ValueError(f"a chip flies one robot, not {n}")
        if self._request("B", b"", 1.0, answer="B") is None:
            raise LinkError("the chip no longer answers")

    def step(self, signals: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """Commands (1, *shape) by name for signals (1, *shape) by name; NaN when the chip gave none."""
        began = self.port.now()
        answer = self._request("S", packed(self.policy, signals), self.patience, answer="C")
        if answer is None or len(answer) != self._answer_size:
            self.statistics.lost += 1
            return self._nothing()
        status, cycles = struct.unpack_from("<BxxxI", answer)
        if status != OK:
            reason = FAULTS.get(status, f"status {status}")
            self.statistics.faults[reason] = self.statistics.faults.get(reason, 0) + 1
            return self._nothing()
        self.statistics.round_trips.append(self.port.now() - began)
        self.statistics.cycles.append(cycles)
        return {name: value[None] for name, value in unpacked(self.policy, answer[8:]).items()}

    def _nothing(self) -> dict[str, NDArray[np.float32]]:
        return {s.name: np.full((1, *s.shape), np.nan, np.float32) for s in self.outputs}
