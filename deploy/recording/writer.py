"""The process that writes a flight log: `python -m deploy.recording.writer SOCKET`, started by the recorder.

It opens the file first and says so, then imports what it needs: a controller that waits for it waits for the disk only.
The file gets its end when the controller closes the line, or dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import IO, Any, cast

from deploy.recording import line

CHUNK_SECONDS = 0.25  # what a crash of this process can lose
SYNC_SECONDS = 1.0  # what a loss of power can lose
CHUNK = 4 << 20  # bytes after which one ends in any case
OLDEST = 3600.0  # s; what was never seen is infinitely old


class File:
    """The MCAP file of one flight. Steps and events in the order in which they come."""

    def __init__(self, file: IO[bytes], about: Mapping[str, Any], policy: bytes) -> None:
        import numpy as np
        from mcap.writer import Writer

        from deploy.recording.cdr import definition, encoder
        from deploy.recording.content import EVENT, NAME, POLICY, STEP, metadata
        from deploy.recording.definitions import DEFINITIONS
        from deploy.recording.flight_log import layout_of, names
        from deploy.recording.topics import Topics

        self._np = np
        self.layout = layout_of(about)
        self._ages = [name for name, _, _ in self.layout.fields if name.startswith("ages.")]
        self._file = file
        self._writer = Writer(self._file, chunk_size=CHUNK)
        self._writer.start("ros2", "sim2metal")
        self._metadata = (NAME, metadata(about))
        self._writer.add_metadata(*self._metadata)
        self._writer.add_attachment(0, 0, POLICY, "application/octet-stream", policy)
        step = self._writer.register_schema(STEP, "ros2msg", self.layout.definition().encode())
        called = names(int(about["robots"]))
        self._steps = [self._writer.register_channel(f"/{name}/step", "cdr", step) for name in called]
        event = "sim2metal_msgs/Event"
        schema = self._writer.register_schema(EVENT, "ros2msg", definition(event, DEFINITIONS).encode())
        self._events = self._writer.register_channel("/events", "cdr", schema)
        self._event = encoder(event, DEFINITIONS)
        self._topics = Topics(self._writer, self._add, about, called, self.layout.signals, self.layout.commands)
        self._every = max(1, round(CHUNK_SECONDS * float(about["rate_hz"])))
        self._count = self._told = self._numbered = 0
        self._synced, self._urgent = time.monotonic(), False
        self._file.flush()

    def _add(self, channel: int, stamp: int, message: bytes) -> None:
        self._writer.add_message(channel, stamp, message, stamp, self._numbered)
        self._numbered += 1

    def step(self, data: bytes) -> None:
        """One control step of all robots."""
        from deploy.recording.cdr import HEADER

        record = self._np.frombuffer(bytearray(data), self.layout.dtype)
        for name in self._ages:  # a source with stamps of zero would make them decades, and every plot of them useless
            ages = record[name]
            self._np.clip(ages, -OLDEST, OLDEST, out=ages, where=self._np.isfinite(ages))
        stamp = int(record["stamp.sec"][0]) * 1_000_000_000 + int(record["stamp.nanosec"][0])
        size = self.layout.message_size
        for k, channel in enumerate(self._steps):
            body = record[k].tobytes()[:size]
            self._writer.add_message(channel, stamp, HEADER + body, stamp, self._count)
        self._topics.step(record, self._count, stamp)
        self._count += 1
        if self._count % self._every == 0:
            self._writer.flush()
        self._sync(SYNC_SECONDS)

    def event(self, data: bytes) -> None:
        """Something that happened; it is on the disk soon."""
        about = json.loads(data)
        stamp = int(about["stamp"])
        kind, text, who = (str(about[key]) for key in ("kind", "text", "who"))
        when = dict(zip(("sec", "nanosec"), divmod(stamp, 1_000_000_000), strict=True))
        told = self._event({"stamp": when, "kind": kind, "text": text, "who": who})
        self._writer.add_message(self._events, stamp, told, stamp, self._told)
        self._topics.event(kind, text, who, stamp)
        self._told += 1
        self._urgent = True
        self._sync(SYNC_SECONDS)

    def _sync(self, seconds: float) -> None:
        """Have all on the disk, if that was so long ago; what is urgent waits a tenth of that only."""
        if time.monotonic() - self._synced < (0.1 * seconds if self._urgent else seconds):
            return
        if self._urgent:
            self._writer.flush()
        self._urgent = False
        self._file.flush()
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def finish(self) -> None:
        """Index and end of the file; once more what it is about, should its beginning be damaged."""
        self._writer.add_metadata(*self._metadata)
        self._writer.finish()
        self._file.flush()
        os.fsync(self._file.fileno())


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
