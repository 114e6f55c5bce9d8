"""What happened in a flight, at every control step: an MCAP file that Foxglove, PlotJuggler and rosbags read.

In it: the policy file as an attachment; metadata "sim2metal" (what flew, its guard's envelope); for each robot a
channel of `sim2metal_msgs/msg/Step` with everything the controller saw and did; and `/tf`, its pose at up to 50 Hz.
Messages are CDR with ROS 2 definitions inside the file: no ROS is needed, to write or to read.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deploy.recording.about import TYPES, AboutError, check
from deploy.recording.content import DAMAGED, Content, TooMuchError
from deploy.recording.records import RecordError, Records
from deploy.trust.text import printable
from sim.spec import Group, from_json

AnyArray = NDArray[Any]

VERSION = 1
MEMORY = 192  # MB of steps that `read` keeps
PIECE = 32  # MB of steps after which `follow` begins another piece
EVENTS = (  # what they are about
    "armed",
    "disarmed",
    "emergency_stop",
    "release",
    "override",
    "battery",
    "rung",
    "recovery",
    "diagnostic",
    "end",
)
PARTS = ("signals", "ages", "wanted", "sent")


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
            messages[part].append(f"{TYPES[kind]}{f'[{shape[0]}]' if shape else ''} {field}")
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
    numbers: NDArray[np.int64] | None = None  # (steps,) as they were counted in flight: where some are missing, lost
    expected: int = 0  # the number that would come first
    damage: int = 0  # places in the file that were left out

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

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """(index of the step after it, how many steps are lost) of every place where some are."""
        if self.numbers is None or not len(self.numbers):
            return []
        jumps = np.diff(self.numbers, prepend=self.expected - 1)
        return [(int(k), int(jumps[k]) - 1) for k in np.flatnonzero(jumps > 1)]


def losses(flight: Flight) -> list[str]:
    """What is missing in the log, in lines; the first few of its gaps."""
    times, lines = flight.time, []
    for index, lost in flight.gaps[:10]:
        where = f"between {times[index - 1]:.3f} s and {times[index]:.3f} s" if index else "before the first one here"
        lines.append(f"{lost} control steps lost {where}")
    if len(flight.gaps) > 10:
        lines.append(f"and {sum(lost for _, lost in flight.gaps[10:])} more in {len(flight.gaps) - 10} places")
    if flight.damage:
        lines.append(f"the file is damaged in {flight.damage} place(s), which were left out")
    return lines


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


def read(path: str, memory: int = MEMORY) -> Flight:
    """The log in a file, as far as it goes and around what is damaged: see `Flight.damage`.

    Raises FlightLogError for what is not a log, of which nothing can be read, or with more than `memory` MB of steps.
    """
    with closing(Reader(path, memory)) as reader:
        flight = reader.piece(last=True)
    if flight is None:
        raise FlightLogError(f"{path}: not a flight log of sim2metal")
    return flight


def follow(path: str, every: float = 0.1) -> Iterator[Flight]:
    """The log piece by piece, each with the steps that are new: what is there, then what is still being written.

    Looks every so many seconds. Ends with the file, or once nobody writes it any more. Raises as `read` does.
    """
    with closing(Reader(path)) as reader:
        while True:
            written = _being_written(path)  # asked before reading: what the writer leaves is in the last piece
            piece = reader.piece(last=not written, most=PIECE)
            if piece is not None or not written:
                if piece is None:
                    raise FlightLogError(f"{path}: not a flight log of sim2metal")
                yield piece
            if reader.more:
                continue
            if not written or (piece is not None and piece.complete):
                return
            time.sleep(every)


class Reader:
    """Reads a log that may be growing. Raises FlightLogError whenever there is nothing that it can make of it."""

    def __init__(self, path: str, memory: int = MEMORY) -> None:
        """`memory`: MB of steps that may wait to be used."""
        self.path = path
        self.more = False  # the last piece was not all that there is
        self._file = _opened(path)
        self._records = Records(self._file)
        self._going: Iterator[tuple[int, memoryview]] = iter(())
        self._content = Content(memory << 20)
        self._layout: Layout | None = None
        self._next = 0  # number of the step that comes next

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def piece(self, last: bool, most: int | None = None) -> Flight | None:
        """The steps and events that are new; of those about `most` MB. None before the log says what it is.

        `last`: nobody writes it any more, so that what is not whole will not become so.
        """
        try:
            self._read(last, most)
            return self._flight()
        except (RecordError, TooMuchError, AboutError) as error:
            raise FlightLogError(f"{self.path}: {error}") from None
        except OSError as error:
            raise FlightLogError(f"{self.path}: cannot be read: {error.strerror}") from None

    def _read(self, last: bool, most: int | None) -> None:
        if not self.more:
            self._going = self._records.read(last)
        self.more = False
        for kind, data in self._going:
            self._content.add(kind, data)
            if most is not None and self._content.held > most << 20 and self._content.about is not None:
                self.more = True
                return

    def _flight(self) -> Flight | None:
        content, records = self._content, self._records
        if content.about is None:
            if content.wrong and (records.complete or content.wrong != DAMAGED):
                raise FlightLogError(f"{self.path}: what the log says about itself {content.wrong}")
            return None
        if self._layout is None:
            self._layout = _checked(self.path, content.about)
        layout = self._layout
        steps, numbers = content.steps(names(int(content.about["robots"])), layout.dtype, layout.message_size)
        events = [Event(*event) for event in content.happened()]
        damage = records.damage.chunks + content.broken
        flight = Flight(
            self.path,
            content.about,
            content.policy,
            layout,
            steps,
            records.complete,
            events,
            numbers,
            self._next,
            damage,
        )
        self._next = int(numbers[-1]) + 1 if len(numbers) else self._next
        return flight


def _checked(path: str, about: Mapping[str, Any]) -> Layout:
    """What the log says of itself is as a recorder writes it."""
    if about["version"] != VERSION:
        version = printable(about["version"], 20)
        raise FlightLogError(f"{path}: has version {version}, this program reads version {VERSION}")
    check(about)
    try:
        return layout_of(about)
    except (ValueError, OverflowError, TypeError) as error:
        raise FlightLogError(f"{path}: what the log says about itself: {printable(error)}") from None


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


def _opened(path: str) -> IO[bytes]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FlightLogError(f"{path}: is not a file")
        return open(path, "rb")
    except OSError as error:
        raise FlightLogError(f"{path}: cannot be read: {error.strerror}") from None
