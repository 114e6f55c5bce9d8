"""What happened in a flight, at every control step: an MCAP file that Foxglove, PlotJuggler and rosbags read.

In it: the policy file as an attachment; metadata "sim2metal" (what flew, its guard's envelope); for each robot a
channel of `sim2metal_msgs/msg/Step` with everything the controller saw and did; and `/tf`, its pose at up to 50 Hz.
Messages are CDR with ROS 2 definitions inside the file: no ROS is needed, to write or to read.
"""

from __future__ import annotations

import fcntl
import json
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deploy.trust.text import printable
from sim.spec import Group, from_json

AnyArray = NDArray[Any]

VERSION = 1
NAME = "sim2metal"  # of the metadata
CDR = b"\x00\x01\x00\x00"  # little endian
MAGIC = b"\x89MCAP0\r\n"  # an MCAP file's first bytes, and its last
HEAD = struct.Struct("<BQ")  # of an MCAP record: kind, size of the rest
FOOTER = 2  # the kind of the last record
STEP = "sim2metal_msgs/msg/Step"
EVENT = "sim2metal_msgs/msg/Event"
EVENTS = (  # what they are about
    "armed",
    "disarmed",
    "emergency_stop",
    "release",
    "override",
    "battery",
    "rung",
    "diagnostic",
    "end",
)
PARTS = ("signals", "ages", "wanted", "sent")
ROS_TYPES = {"f4": "float32", "f8": "float64", "u1": "uint8", "i4": "int32", "u4": "uint32", "i8": "int64"}


class FlightLogError(ValueError):
    """The log cannot be written or read; the message says why."""


class Event(NamedTuple):
    """Something that happened, beside the control steps."""

    stamp: int  # ns since 1970
    kind: str  # one of EVENTS
    text: str
    who: str


@dataclass(frozen=True)
class Layout:
    """What one step of one robot holds, and where: the same bytes in memory, on the line and in the file's messages."""

    signals: Group  # everything the guard watches
    types: Mapping[str, str]
    commands: Group

    @cached_property
    def fields(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(name, type, shape) in the order of the message; PARTS are messages of their own within it."""
        return [
            ("stamp.sec", "i4", ()),
            ("stamp.nanosec", "u4", ()),
            ("clock", "f8", ()),
            ("missed", "f8", ()),
            *((f"signals.{s.name}", self.types.get(s.name, "f4"), (s.size,)) for s in self.signals),
            *((f"ages.{s.name}", "f4", ()) for s in self.signals),
            *((f"wanted.{s.name}", "f4", (s.size,)) for s in self.commands),
            *((f"sent.{s.name}", "f4", (s.size,)) for s in self.commands),
            ("verdict", "u1", ()),
            ("reason", "u1", ()),
        ]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Aligned as C and CDR align a flat structure."""
        return np.dtype([(name, f"<{kind}", shape) for name, kind, shape in self.fields], align=True)

    @property
    def message_size(self) -> int:
        """Bytes of a message's body: without the padding after the last field, which CDR does not have."""
        return 1 + int(self.dtype.fields["reason"][1])  # type: ignore[index]

    def definition(self) -> str:
        """The ROS 2 message definition, with those that it contains."""
        messages: dict[str, list[str]] = {"": ["builtin_interfaces/Time stamp"], **{part: [] for part in PARTS}}
        for name, kind, shape in self.fields:
            part, dot, field = name.rpartition(".")
            if part == "stamp":
                continue
            if dot and not messages[part]:
                messages[""].append(f"sim2metal_msgs/{part.capitalize()} {part}")
            messages[part].append(f"{ROS_TYPES[kind]}{f'[{shape[0]}]' if shape else ''} {field}")
        rule = "=" * 80
        nested = [f"{rule}\nMSG: sim2metal_msgs/{part.capitalize()}\n" + "\n".join(messages[part]) for part in PARTS]
        stamp = f"{rule}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec"
        return "\n".join(["\n".join(messages[""]), *nested, stamp]) + "\n"


def layout_of(about: Mapping[str, Any]) -> Layout:
    """The layout of a log that says this about itself."""
    return Layout(from_json(about["watched"]), about["types"], from_json(about["commands"]))


@dataclass(frozen=True)
class Flight:
    """A log that was read. `steps` is a structured array (steps, robots), fields as in `Layout.fields`."""

    path: str
    about: Mapping[str, Any]
    policy: bytes
    layout: Layout
    steps: AnyArray
    complete: bool  # False: its end is missing, or not yet written
    events: Sequence[Event] = ()

    def values(self, field: str) -> AnyArray:
        """(steps, robots, *shape) of "signals.NAME", "ages.NAME", "wanted.NAME", "sent.NAME", "verdict" or "reason"."""
        part, _, name = field.partition(".")
        shapes = {
            s.name: s.shape for s in (self.layout.commands if part in ("wanted", "sent") else self.layout.signals)
        }
        values: AnyArray = self.steps[field]
        return values.reshape(*values.shape[:2], *shapes[name]) if part != "ages" and name in shapes else values

    @property
    def stamp(self) -> NDArray[np.int64]:
        """(steps,) nanoseconds since 1970."""
        seconds, rest = self.steps["stamp.sec"][:, 0], self.steps["stamp.nanosec"][:, 0]
        stamp: NDArray[np.int64] = seconds.astype(np.int64) * 1_000_000_000 + rest
        return stamp

    @property
    def time(self) -> AnyArray:
        """(steps,) seconds since the first step."""
        stamp = self.stamp
        return (stamp - stamp[:1]) * 1e-9


def ending(flight: Flight, events: Sequence[Event]) -> str:
    """How the flight ended, in one line; empty for logs from before they said that, and while it is still flown."""
    for event in reversed(events):
        if event.kind == "end":
            who = f" ({printable(event.who)})" if event.who else ""
            return f"the end: {printable(event.text)}{who}"
    if not flight.about.get("ends"):
        return ""
    disk = "" if flight.complete else ", or its log could not be written"
    return f"the log has no end: the controller died, or the machine lost power{disk}"


def names(robots: int) -> list[str]:
    """What the robots of a flight are called, in the log's topics and wherever it is shown."""
    return ["robot"] if robots == 1 else [f"robot_{k}" for k in range(robots)]


def read(path: str) -> Flight:
    """The log in a file, as far as it goes: one whose writing was cut short is read up to there.

    Raises FlightLogError for a file that is not a log, or is damaged.
    """
    return _known(path, next(_pieces(path)))


def follow(path: str, every: float = 0.1) -> Iterator[Flight]:
    """The log piece by piece, each with the steps that are new: what is there, then what is still being written.

    Looks every so many seconds. Ends with the file, or once nobody writes it any more. Raises as `read` does.
    """
    pieces = _pieces(path)
    while True:
        written = _being_written(path)  # asked before reading: what the writer leaves behind is in the last piece
        piece = next(pieces)
        if piece is not None or not written:
            yield _known(path, piece)
        if not written or (piece is not None and piece.complete):
            return
        time.sleep(every)


def _known(path: str, flight: Flight | None) -> Flight:
    if flight is None:
        raise FlightLogError(f"{path}: not a flight log of sim2metal")
    return flight


def _being_written(path: str) -> bool:
    """Whether a recorder has the file: it holds a lock on it, of which its death too would relieve it."""
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
    return False


def _pieces(path: str) -> Iterator[Flight | None]:
    """Whenever asked, the log with the steps that are new since the last time; None before it says what it is."""
    from mcap.records import Attachment, Channel, Footer, Message, Metadata, Schema

    about, policy, schemas, complete = None, b"", {}, False
    messages: dict[int, list[bytes]] = {}  # by channel, in the order of the robots
    told: set[int] = set()  # channels of events
    with _opened(path) as file:
        while True:
            events: list[Event] = []
            for record in _records(path, file):
                if isinstance(record, Metadata) and record.name == NAME:
                    about = json.loads(record.metadata["json"])
                elif isinstance(record, Attachment):
                    policy = record.data
                elif isinstance(record, Schema):
                    schemas[record.id] = record.name
                elif isinstance(record, Channel) and schemas[record.schema_id] == STEP:
                    messages.setdefault(record.id, [])
                elif isinstance(record, Channel) and schemas[record.schema_id] == EVENT:
                    told.add(record.id)
                elif isinstance(record, Message) and record.channel_id in told:
                    events.append(_event(record.data[len(CDR) :]))
                elif isinstance(record, Message) and record.channel_id in messages:
                    messages[record.channel_id].append(record.data[len(CDR) :])
                elif isinstance(record, Footer):
                    complete = True
            yield None if about is None else _flight(path, about, policy, messages, complete, events)


def _event(data: bytes) -> Event:
    seconds, rest = struct.unpack_from("<iI", data)
    at, texts = 8, []
    for _ in range(3):
        at += -at % 4
        (size,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 3 + size].decode(errors="replace"))
        at += 4 + size
    return Event(seconds * 1_000_000_000 + rest, *texts)


def _flight(
    path: str,
    about: Mapping[str, Any],
    policy: bytes,
    messages: Mapping[int, list[bytes]],
    complete: bool,
    events: Sequence[Event],
) -> Flight:
    """The log with the steps of which all robots' messages are there; those messages are used up."""
    if about["version"] != VERSION:
        raise FlightLogError(f"{path}: has version {about['version']}, this program reads version {VERSION}")
    layout = layout_of(about)
    count = min((len(waiting) for waiting in messages.values()), default=0)
    pad = bytes(layout.dtype.itemsize - layout.message_size)
    data = b"".join(waiting[k] + pad for k in range(count) for waiting in messages.values())
    for waiting in messages.values():
        del waiting[:count]
    steps = np.frombuffer(data, layout.dtype).reshape(count, int(about["robots"]))
    return Flight(path, about, policy, layout, steps, complete, events)


def _opened(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise FlightLogError(f"{path}: cannot be read: {error.strerror}") from None


def _records(path: str, file: IO[bytes]) -> Iterator[Any]:
    """The whole MCAP records that follow in a file, which is left where the next one will begin."""
    from mcap.exceptions import EndOfFile
    from mcap.stream_reader import StreamReader

    begin = file.tell()
    data = file.read()
    end = _whole(data, 0 if begin else len(MAGIC))
    file.seek(begin + end)
    try:
        if end:
            yield from StreamReader(BytesIO(data[:end]), skip_magic=begin > 0, validate_crcs=True).records
    except EndOfFile:
        pass
    except Exception as error:  # whatever a damaged file provokes in mcap and in the decompressor
        raise FlightLogError(f"{path}: not an MCAP file, or damaged: {error}") from None


def _whole(data: bytes, first: int) -> int:
    """Where the last whole record ends, of those that begin at `first`; 0 when there is not even that much."""
    end = first if len(data) >= first else 0
    while end + HEAD.size <= len(data):
        kind, size = HEAD.unpack_from(data, end)
        after = end + HEAD.size + size + (len(MAGIC) if kind == FOOTER else 0)
        if after > len(data):
            break
        end = after
    return end
