"""A firmware image on QEMU's STM32F405, in lockstep: another implementation of the processor, and flights that repeat.

QEMU counts instructions (`-icount`: its clock is theirs, not the host's) and stops whenever the image has nothing to
do, by way of its debugger's interface. Bytes come and go only while it stands still: whatever the host is busy with,
the chip sees the same bytes at the same instruction. Its time stands still, too, while nobody sends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

from deploy.mcu.emulator import Chip
from deploy.mcu.ports import BAUD, LinkError

MACHINE = "netduinoplus2"  # has an STM32F405
NANOSECONDS = 3  # -icount shift: an instruction takes 2^3 ns, about what the chip at 168 MHz takes on average
CHUNK = 32  # bytes that QEMU's multiplexer keeps for the serial port (MUX_BUFFER_SIZE)
ESCAPE = b"\x01"  # of the multiplexer; twice means itself
PATIENCE = 60.0  # s of the host's time for anything that QEMU is asked
QEMU = ("qemu-system-arm", "-M", MACHINE, "-display", "none", "-monitor", "none", "-S")


def arguments(image: str | os.PathLike[str], debugger: str) -> list[str]:
    """The command line; `debugger`: the path of the socket on which QEMU is led."""
    serial = ("-chardev", "stdio,id=line,mux=on,signal=off", "-serial", "chardev:line")
    led = ("-chardev", f"socket,id=led,path={debugger},server=on,wait=off", "-gdb", "chardev:led")
    return [*QEMU, "-icount", f"shift={NANOSECONDS}", *serial, *led, "-kernel", os.fspath(image)]


class Debugger:
    """The few requests of GDB's remote protocol that lead a processor."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._socket.connect(os.fspath(path))
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    self._socket.close()
                    raise LinkError(f"{QEMU[0]} does not start; port=emulated needs nothing") from None
                time.sleep(0.01)
        self._received = b""

    def ask(self, request: str) -> str:
        """The answer to one request; LinkError when there is none."""
        data = request.encode()
        try:
            self._socket.sendall(b"$%s#%02x" % (data, sum(data) % 256))
            while True:
                while (end := self._received.find(b"#")) < 0 or len(self._received) < end + 3:
                    more = self._socket.recv(4096)
                    if not more:
                        raise LinkError(f"{QEMU[0]} has ended")
                    self._received += more
                packet, self._received = self._received[:end], self._received[end + 3 :]
                self._socket.sendall(b"+")
                return packet[packet.index(b"$") + 1 :].decode("ascii", "replace")
        except TimeoutError:
            raise LinkError(f"{QEMU[0]}: no answer within {PATIENCE:g} s; the image hangs") from None
        except ConnectionError:
            raise LinkError(f"{QEMU[0]} has ended") from None

    def close(self) -> None:
        self._socket.close()


class QemuPort:
    """An image on QEMU. The line's time is that of its bytes at 921 600 baud, and of what waits for an answer."""

    def __init__(self, image: str | os.PathLike[str], step_seconds: float = 0.0) -> None:
        """`step_seconds`: what an answer takes the real chip, by estimation. LinkError where there is no QEMU."""
        self.step_seconds, self._time = step_seconds, 0.0
        self._idle = Chip(image).address("board_idle")
        self._folder = tempfile.TemporaryDirectory(prefix="qemu")
        debugger = Path(self._folder.name) / "led"
        try:
            self._process = subprocess.Popen(
                arguments(image, str(debugger)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except FileNotFoundError:
            self._folder.cleanup()
            raise LinkError(f"{QEMU[0]} is not installed; port=emulated needs nothing") from None
        try:
            self._debugger = Debugger(debugger, self._process)
            self._expect(f"Z0,{self._idle:x},2", "OK")
            self._expect("c", "T05")
        except BaseException:
            self._end()
            raise

    def _expect(self, request: str, answer: str) -> None:
        said = self._debugger.ask(request)
        if not said.startswith(answer):
            raise LinkError(f"{QEMU[0]} answers {said[:40]!r} to {request!r}, not {answer}")

    def _on(self) -> None:
        """From one time that it has nothing to do to the next: over the breakpoint, then until it is there again."""
        self._expect("s", "T05")
        self._expect("c", "T05")

    def _give(self, chunk: bytes) -> None:
        """Bytes for the serial port, while the processor stands still; back when QEMU has them."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(chunk.replace(ESCAPE, ESCAPE + ESCAPE))
        except BrokenPipeError:
            raise LinkError(f"{QEMU[0]} has ended") from None
        until = time.monotonic() + PATIENCE
        while struct.unpack("i", fcntl.ioctl(self._process.stdin, termios.FIONREAD, bytes(4)))[0]:
            if self._process.poll() is not None:
                raise LinkError(f"{QEMU[0]} has ended")
            if time.monotonic() > until:
                raise LinkError(f"{QEMU[0]} takes no bytes; the image hangs")
            time.sleep(0.0)

    def write(self, data: bytes) -> None:
        """Send; returns when the chip has done all that it does about it."""
        for start in range(0, len(data), CHUNK):
            self._give(data[start : start + CHUNK])
            self._on()
        self._time += len(data) * 10.0 / BAUD + self.step_seconds

    def read(self, patience: float) -> bytes:
        """What it has sent. It sends nothing more while nobody asks: waiting only lets time pass."""
        assert self._process.stdout is not None
        heard = bytearray()
        while select.select([self._process.stdout], [], [], 0.0)[0]:
            more = self._process.stdout.read(65536)
            if not more:
                raise LinkError(f"{QEMU[0]} has ended")
            heard += more
        self._time += len(heard) * 10.0 / BAUD if heard else max(0.0, patience)
        return bytes(heard)

    def now(self) -> float:
        """Seconds of the line's time."""
        return self._time

    def close(self) -> None:
        """End it."""
        self._debugger.close()
        self._end()

    def _end(self) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        self._folder.cleanup()
