"""The process that writes a flight log: `python -m deploy.bag.writer SOCKET`, started by deploy.recorder.

It opens the file first and says so, then imports what it needs: a controller that waits for it waits for the disk only.
The file gets its end when the controller closes the line, or dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import IO, Any, cast

from deploy.bag import line

CHUNK_SECONDS = 0.25  # what a crash of this process can lose
SYNC_SECONDS = 1.0  # what a loss of power can lose
POSES_HZ = 50.0
OLDEST = 3600.0  # s; what was never seen is infinitely old


class File:
    """The MCAP file of one flight. Steps and events in the order in which they come."""

    def __init__(self, file: IO[bytes], about: Mapping[str, Any], policy: bytes) -> None:
        import numpy as np
        from mcap.writer import Writer

        from deploy.bag.cdr import definition, encoder
        from deploy.bag.content import EVENT, NAME, POLICY, STEP, metadata
        from deploy.bag.definitions import DEFINITIONS
        from deploy.flight_log import layout_of, names

        self._np = np
        self.layout = layout_of(about)
        self._ages = [name for name, _, _ in self.layout.fields if name.startswith("ages.")]
        self.robots, rate = int(about["robots"]), float(about["rate_hz"])
        self._file = file
        chunk = max(4096, round(CHUNK_SECONDS * rate * self.robots * self.layout.message_size))
        self._writer = Writer(self._file, chunk_size=chunk)
        self._writer.start("ros2", "sim2metal")
        self._metadata = (NAME, metadata(about))
        self._writer.add_metadata(*self._metadata)
        self._writer.add_attachment(0, 0, POLICY, "application/octet-stream", policy)
        step = self._writer.register_schema(STEP, "ros2msg", self.layout.definition().encode())
        called = names(self.robots)
        self._steps = [self._writer.register_channel(f"/{name}/step", "cdr", step) for name in called]
        event = "sim2metal_msgs/Event"
        schema = self._writer.register_schema(EVENT, "ros2msg", definition(event, DEFINITIONS).encode())
        self._events = self._writer.register_channel("/events", "cdr", schema)
        self._event = encoder(event, DEFINITIONS)
        self._poses: list[tuple[int, str]] = []
        if {"position", "rotation"} <= {s.name for s in self.layout.signals}:
            transform = "tf2_msgs/TFMessage"
            schema = self._writer.register_schema(
                "tf2_msgs/msg/TFMessage", "ros2msg", definition(transform, DEFINITIONS).encode()
            )
            channel = self._writer.register_channel("/tf", "cdr", schema)
            self._poses = [(channel, name) for name in called]
        self._every = max(1, round(rate / POSES_HZ))
        self._count = self._told = 0
        self._synced, self._urgent = time.monotonic(), False
        self._file.flush()

    def step(self, data: bytes) -> None:
        """One control step of all robots."""
        from deploy.bag.content import CDR

        record = self._np.frombuffer(bytearray(data), self.layout.dtype)
        for name in self._ages:  # a source with stamps of zero would make them decades, and every plot of them useless
            ages = record[name]
            self._np.clip(ages, -OLDEST, OLDEST, out=ages, where=self._np.isfinite(ages))
        stamp = int(record["stamp.sec"][0]) * 1_000_000_000 + int(record["stamp.nanosec"][0])
        size = self.layout.message_size
        for k, channel in enumerate(self._steps):
            body = record[k].tobytes()[:size]
            self._writer.add_message(channel, stamp, CDR + body, stamp, self._count)
        if self._count % self._every == 0:
            for one, (channel, name) in zip(record, self._poses, strict=False):
                message = _pose(one, name)
                if message:
                    self._writer.add_message(channel, stamp, message, stamp, self._count)
            self._file.flush()  # whoever watches the flight reads what is there
        self._count += 1
        self._sync(SYNC_SECONDS)

    def event(self, data: bytes) -> None:
        """Something that happened; it is on the disk soon."""
        about = json.loads(data)
        stamp = int(about["stamp"])
        about["stamp"] = dict(zip(("sec", "nanosec"), divmod(stamp, 1_000_000_000), strict=True))
        self._writer.add_message(self._events, stamp, self._event(about), stamp, self._told)
        self._told += 1
        self._urgent = True
        self._sync(SYNC_SECONDS)

    def _sync(self, seconds: float) -> None:
        """Have all on the disk, if that was so long ago; what is urgent waits a tenth of that only."""
        if time.monotonic() - self._synced < (0.1 * seconds if self._urgent else seconds):
            return
        if self._urgent:
            self._writer.flush()  # type: ignore[no-untyped-call]
        self._urgent = False
        self._file.flush()
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def finish(self) -> None:
        """Index and end of the file; once more what it is about, should its beginning be damaged."""
        self._writer.add_metadata(*self._metadata)
        self._writer.finish()  # type: ignore[no-untyped-call]
        self._file.flush()
        os.fsync(self._file.fileno())


def _pose(record: Any, name: str) -> bytes:
    """A tf2_msgs/TFMessage that holds the robot's pose; nothing when that is not finite."""
    import numpy as np

    from deploy.bag.content import CDR
    from deploy.rotations import quaternion

    values = (*record["signals.position"].astype(float), *quaternion(record["signals.rotation"]))
    if not np.isfinite(values).all():
        return b""
    head = struct.pack("<IiI", 1, record["stamp.sec"], record["stamp.nanosec"])
    for text in ("world", name):
        head += bytes(-len(head) % 4) + struct.pack("<I", len(text) + 1) + text.encode() + b"\0"
    return CDR + head + bytes(-len(head) % 8) + struct.pack("<7d", *values)


def _opened(path: str) -> IO[bytes]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    stream = open(path, "xb")  # noqa: SIM115 - closed by the caller
    with contextlib.suppress(OSError):  # not every file system has locks
        fcntl.flock(stream, fcntl.LOCK_EX)  # whoever watches the flight knows that more will come
    return stream


def _say(theirs: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):  # whoever started this process may be gone
        theirs.sendall(f"{text}\n".encode())


def _fill(file: File, incoming: IO[bytes]) -> None:
    """Blocks until the line ends. One that was sent twice, by a loop that was interrupted in between, counts once."""
    last = -1
    while (block := line.next_block(incoming)) is not None:
        kind, number, data = block
        if number > last:
            (file.step if kind == line.STEP else file.event)(data)
        last = max(last, number)


def write(theirs: socket.socket) -> None:
    """Header and policy, then blocks until the controller ends or dies. What goes wrong is answered in one line."""
    incoming = cast(IO[bytes], theirs.makefile("rb", 1 << 20))
    first, second = line.next_block(incoming), line.next_block(incoming)
    if first is None or second is None:
        return
    header = json.loads(first[2])
    try:
        with _opened(header["path"]) as stream:
            _say(theirs, line.OPENED)
            file = File(stream, header["about"], second[2])
            _say(theirs, line.RUNNING)
            _fill(file, incoming)
            file.finish()
        answer = line.DONE
    except OSError as error:
        answer = error.strerror or str(error)
        if error.filename == header["path"] and isinstance(error, FileExistsError):
            answer = line.TAKEN
    except Exception as error:  # the flight goes on, and is told why its log does not
        answer = f"{type(error).__name__}: {error}".replace("\n", " ")
    _say(theirs, answer)


if __name__ == "__main__":
    write(socket.socket(fileno=int(sys.argv[1])))
