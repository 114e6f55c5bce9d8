"""Writes the log of a flight while it is flown.

The control loop only fills a buffer and hands it to another process (`python -m deploy.recorder`), which makes the
file: neither compression nor a slow disk delays a command, and the file is whole even when the controller was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from deploy.drivers import Driver, Reading
from deploy.flight_log import CDR, NAME, STEP, VERSION, FlightLogError, Layout, layout_of, names
from deploy.guard import REASONS, Guard
from deploy.policy_file import PolicyFile, PolicyFileError
from deploy.rotations import quaternion
from sim.spec import to_json

AnyArray = NDArray[Any]

CHUNK_SECONDS = 0.25  # what a crash of the writing process can lose
POSES_HZ = 50.0
BACKLOG = 64 << 20  # bytes that may wait for a writer that does not keep up
PATIENCE = 20.0  # s in which the writer must have begun, or finished
READY, DONE = "ready", "done"
SIZE = struct.Struct("<I")
TF = """geometry_msgs/TransformStamped[] transforms
================================================================================
MSG: geometry_msgs/TransformStamped
std_msgs/Header header
string child_frame_id
geometry_msgs/Transform transform
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
================================================================================
MSG: geometry_msgs/Transform
geometry_msgs/Vector3 translation
geometry_msgs/Quaternion rotation
================================================================================
MSG: geometry_msgs/Vector3
float64 x
float64 y
float64 z
================================================================================
MSG: geometry_msgs/Quaternion
float64 x
float64 y
float64 z
float64 w
"""


class Recorder:
    """Writes the log of one flight. `step` neither waits nor raises: what goes wrong with it is told in the end."""

    def __init__(self, path: str, policy: PolicyFile, driver: Driver, guard: Guard, controller: str) -> None:
        """Start the writer. Raises FlightLogError when the file exists or cannot be written."""
        self.path = path
        layout = Layout(
            guard.watched, {s.name: np.dtype(policy.types[s.name]).str[1:] for s in policy.inputs}, policy.outputs
        )
        self._record = np.zeros(driver.num, layout.dtype)
        self._fields = {name: self._record[name] for name, _, _ in layout.fields}
        self._names = [s.name for s in guard.watched]
        self._waiting = bytearray()
        self._began, self._steps = time.time_ns(), 0
        self._period = None if driver.real_time else 1e9 / policy.rate_hz  # ns of simulated time per step
        self._trouble = ""
        about = {
            "version": VERSION,
            "policy": policy.path,
            "sha256": policy.sha256,
            "task": policy.task,
            "robot": driver.robot,
            "driver": type(driver).__name__,
            "controller": controller,
            "rate_hz": policy.rate_hz,
            "real_time": driver.real_time,
            "robots": driver.num,
            "watched": to_json(guard.watched),
            "types": dict(layout.types),
            "commands": to_json(policy.outputs),
            "envelope": asdict(guard.envelope),
            "reasons": REASONS,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        try:
            content = policy.content()
        except PolicyFileError as error:
            raise FlightLogError(str(error)) from None
        self._start(json.dumps({"path": os.path.abspath(path), "about": about}).encode(), content)

    def _start(self, header: bytes, policy: bytes) -> None:
        self._line, theirs = socket.socketpair()
        self._writer = subprocess.Popen(
            [sys.executable, "-m", "deploy.recorder", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal ends the flight, not its log
        )
        theirs.close()
        self._line.settimeout(PATIENCE)
        try:
            for block in (header, policy):
                self._line.sendall(SIZE.pack(len(block)) + block)
            answer = self._line.recv(4096).decode()
        except OSError as error:
            answer = str(error)
        if answer != READY:
            self._line.close()
            self._writer.wait()
            raise FlightLogError(f"{self.path}: {answer or 'the process that writes it died'}")
        self._line.setblocking(False)

    def step(
        self,
        clock: float,
        missed: float,
        reading: Reading,
        wanted: Mapping[str, AnyArray],
        sent: Mapping[str, AnyArray],
        guard: Guard,
    ) -> None:
        """Note one control step of all robots."""
        fields, n = self._fields, len(self._record)
        now = time.time_ns() if self._period is None else self._began + round(self._steps * self._period)
        self._steps += 1
        fields["stamp.sec"][:], fields["stamp.nanosec"][:] = divmod(now, 1_000_000_000)
        fields["clock"][:], fields["missed"][:] = clock, missed
        for name in self._names:
            known = name in reading.signals and name in reading.age
            fields[f"signals.{name}"][:] = np.asarray(reading.signals[name]).reshape(n, -1) if known else 0
            fields[f"ages.{name}"][:] = reading.age[name] if known else np.inf
        for name in sent:
            fields[f"wanted.{name}"][:] = np.asarray(wanted[name]).reshape(n, -1)
            fields[f"sent.{name}"][:] = sent[name].reshape(n, -1)
        fields["verdict"][:] = guard.verdict
        fields["reason"][:] = guard.reasons
        if not self._trouble:
            self._waiting += self._record.tobytes()
            self._send()

    def _send(self) -> None:
        """As much as the writer takes now."""
        try:
            del self._waiting[: self._line.send(self._waiting)]
        except BlockingIOError:
            if len(self._waiting) > BACKLOG:
                self._trouble = "the disk does not keep up"
        except OSError as error:
            self._trouble = str(error)

    def close(self) -> str:
        """Finish the file. Returns what went wrong, or nothing."""
        self._line.settimeout(PATIENCE)
        try:
            if not self._trouble:
                self._line.sendall(self._waiting)
            self._line.shutdown(socket.SHUT_WR)
            answer = self._line.recv(4096).decode()
        except OSError as error:
            answer = str(error)
        self._line.close()
        self._writer.wait()
        trouble = "" if answer == DONE else answer or "the process that wrote it died"
        return trouble or self._trouble


def _block(line: socket.socket) -> bytes:
    (size,) = SIZE.unpack(_exactly(line, SIZE.size))
    return _exactly(line, size)


def _exactly(line: socket.socket, size: int) -> bytes:
    """So many bytes; fewer when the other side is gone."""
    data = bytearray()
    while len(data) < size and (more := line.recv(min(size - len(data), 1 << 20))):
        data += more
    return bytes(data)


class _File:
    """The MCAP file of one flight, as the writing process makes it."""

    def __init__(self, file: IO[bytes], about: Mapping[str, Any], policy: bytes) -> None:
        from mcap.writer import Writer

        self.layout = layout_of(about)
        self.robots, rate = int(about["robots"]), float(about["rate_hz"])
        self._file = file
        chunk = max(4096, round(CHUNK_SECONDS * rate * self.robots * self.layout.message_size))
        self._writer = Writer(self._file, chunk_size=chunk)
        self._writer.start("ros2", "sim2metal")
        self._writer.add_metadata(NAME, {"json": json.dumps(about)})
        self._writer.add_attachment(0, 0, "policy.onnx", "application/octet-stream", policy)
        step = self._writer.register_schema(STEP, "ros2msg", self.layout.definition().encode())
        called = names(self.robots)
        self._steps = [self._writer.register_channel(f"/{name}/step", "cdr", step) for name in called]
        self._poses: list[tuple[int, str]] = []
        if {"position", "rotation"} <= {s.name for s in self.layout.signals}:
            schema = self._writer.register_schema("tf2_msgs/msg/TFMessage", "ros2msg", TF.encode())
            channel = self._writer.register_channel("/tf", "cdr", schema)
            self._poses = [(channel, name) for name in called]
        self._every = max(1, round(rate / POSES_HZ))
        self._count = 0
        self._file.flush()

    def add(self, data: bytes) -> None:
        """One control step of all robots."""
        record = np.frombuffer(data, self.layout.dtype)
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

    def finish(self) -> None:
        """Index and end of the file."""
        self._writer.finish()  # type: ignore[no-untyped-call]


def _pose(record: Any, name: str) -> bytes:
    """A tf2_msgs/TFMessage that holds the robot's pose; nothing when that is not finite."""
    values = (*record["signals.position"].astype(float), *quaternion(record["signals.rotation"]))
    if not np.isfinite(values).all():
        return b""
    head = struct.pack("<IiI", 1, record["stamp.sec"], record["stamp.nanosec"])
    for text in ("world", name):
        head += bytes(-len(head) % 4) + SIZE.pack(len(text) + 1) + text.encode() + b"\0"
    return CDR + head + bytes(-len(head) % 8) + struct.pack("<7d", *values)


def _write(line: socket.socket) -> None:
    """The writing process: header and policy, then one block per control step until the controller ends or dies."""
    header = json.loads(_block(line))
    try:
        policy = _block(line)
        os.makedirs(os.path.dirname(header["path"]), exist_ok=True)
        with open(header["path"], "xb") as stream:
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(stream, fcntl.LOCK_EX)  # whoever watches the flight knows that more will come
            file = _File(stream, header["about"], policy)
            line.sendall(READY.encode())
            size = file.robots * file.layout.dtype.itemsize
            while len(data := _exactly(line, size)) == size:
                file.add(data)
            file.finish()
        answer = DONE
    except OSError as error:
        answer = error.strerror or str(error)
        if error.filename == header["path"] and isinstance(error, FileExistsError):
            answer = "the file exists; a log is not overwritten"
    with contextlib.suppress(OSError):
        line.sendall(answer.encode())


if __name__ == "__main__":
    _write(socket.socket(fileno=int(sys.argv[1])))
