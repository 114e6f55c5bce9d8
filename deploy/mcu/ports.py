"""What is at the other end of the line: a serial device, or a chip emulated in this process; `qemu` has one in QEMU."""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Protocol

from deploy.mcu.emulator import Chip

BAUD = 921600
FULL_S = 1.0  # s in which a device must take some bytes


class LinkError(OSError):
    """Nobody answers on the line, or not the one who should."""


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
        self._path = path
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
            if not select.select([], [self._file], [], FULL_S)[1]:
                raise LinkError(f"{self._path}: takes no bytes any more: does the board hang?")
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
