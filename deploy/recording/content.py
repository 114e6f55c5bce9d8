"""What a flight log holds, gathered from its records: what flew, its steps by robot, and what happened."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from array import array
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.recording import about as abouts
from deploy.recording.records import ATTACHMENT, CHANNEL, MESSAGE, MESSAGE_HEAD, METADATA, SCHEMA

NAME = "sim2metal"  # of the metadata
POLICY = "policy.onnx"  # the attachment
STEP = "sim2metal_msgs/msg/Step"
EVENT = "sim2metal_msgs/msg/Event"
CDR = b"\x00\x01\x00\x00"  # little endian
CHANNELS = 10_000  # at most
DAMAGED = "is damaged"
BLOCK = 1 << 14  # steps
OVERHEAD = 150  # bytes of what is kept one by one


class TooMuchError(Exception):
    """More than is wanted at once; the message says what."""


def checksum(text: str) -> str:
    """Of the metadata's JSON, beside it."""
    return hashlib.sha256(text.encode()).hexdigest()


def metadata(about: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a log that is about this."""
    text = json.dumps(about)
    return {"json": text, "sha256": checksum(text)}


def text_at(data: memoryview, at: int) -> tuple[str, int]:
    """The text that begins there, behind its length, and where it ends."""
    (size,) = struct.unpack_from("<I", data, at)
    if size > len(data) - at - 4:
        raise ValueError("a text that goes beyond its record")
    return bytes(data[at + 4 : at + 4 + size]).decode(errors="replace"), at + 4 + size


class Rows:
    """The messages of one robot's steps: their numbers, and their bodies one after the other."""

    def __init__(self) -> None:
        self.numbers = array("I")
        self.bodies = bytearray()

        self.size = 0  # bytes of a body
        self.last = -1

    def add(self, number: int, message: memoryview) -> None:
        """One more. One that was there already, or comes late, is none. ValueError: it is of another size."""
        size = len(message) - len(CDR)
        if message[: len(CDR)] != CDR or (self.last >= 0 and size != self.size):
            raise ValueError("not a message like the others")
        if number > self.last:
            self.size, self.last = size, number
            self.numbers.append(number)
            self.bodies += message[len(CDR) :]

    def take(self, count: int) -> None:
        """The first ones are used up."""
        del self.numbers[:count]
        del self.bodies[: count * self.size]


class Content:
    """Fed with records. Those that make no sense are left out: `broken` counts them."""

    def __init__(self, most: int) -> None:
        """`most` bytes of steps may wait to be used."""
        self.most, self.held = most, 0
        self.about: dict[str, Any] | None = None
        self.wrong = ""  # with what is said in the place of `about`
        self.policy = b""
        self.events: list[tuple[int, str, str, str]] = []  # ns, kind, text, who
        self.broken = 0
        self._schemas: dict[int, str] = {}
        self._topics: dict[int, str | None] = {}  # by channel: of a robot's steps, EVENT, or None for what is not ours
        self.rows: dict[str, Rows] = {}  # by topic
        self._unknown: dict[int, list[tuple[int, bytes]]] = {}  # messages whose channel was damaged, until it is seen

    def add(self, kind: int, data: memoryview) -> None:
        """One record."""
        try:
            if kind == MESSAGE:
                channel, number, _, _ = MESSAGE_HEAD.unpack_from(data)
                self._message(channel, number, data[MESSAGE_HEAD.size :])
            elif kind == SCHEMA:
                self._schema(data)
            elif kind == CHANNEL:
                self._channel(data)
            elif kind == METADATA:
                self._metadata(data)
            elif kind == ATTACHMENT:
                self._attachment(data)
        except (ValueError, struct.error):
            self.broken += 1

    def _schema(self, data: memoryview) -> None:
        (number,) = struct.unpack_from("<H", data)
        if len(self._schemas) < CHANNELS:
            self._schemas[number], _ = text_at(data, 2)

    def _channel(self, data: memoryview) -> None:
        number, schema = struct.unpack_from("<HH", data)
        topic, _ = text_at(data, 4)
        if number in self._topics or len(self._topics) >= CHANNELS:
            return
        name = self._schemas.get(schema)
        self._topics[number] = EVENT if name == EVENT else topic if name == STEP else None
        if name == STEP:
            self.rows.setdefault(topic, Rows())
        for count, body in self._unknown.pop(number, ()):
            self.held -= len(body) + OVERHEAD
            self._message(number, count, memoryview(body))

    def _message(self, channel: int, number: int, data: memoryview) -> None:
        topic = self._topics.get(channel, "")
        if topic is None:
            return
        if not topic:
            self._hold(len(data) + OVERHEAD)
            self._unknown.setdefault(channel, []).append((number, bytes(data)))
        elif topic == EVENT:
            self._hold(len(data))
            self.events.append(_event(data[len(CDR) :]))
        else:
            self._hold(len(data))
            self.rows[topic].add(number, data)

    def _hold(self, size: int) -> None:
        self.held += size
        if self.held > self.most:
            raise TooMuchError(f"holds more than {self.most >> 20} MB of steps")

    def _metadata(self, data: memoryview) -> None:
        name, at = text_at(data, 0)
        (size,) = struct.unpack_from("<I", data, at)
        at, end = at + 4, min(at + 4 + size, len(data))
        found: dict[str, str] = {}
        while at < end and len(found) < 10:
            key, at = text_at(data, at)
            found[key], at = text_at(data, at)
        if name != NAME or self.about is not None:
            return
        text = found.get("json", "")
        if "sha256" in found and checksum(text) != found["sha256"]:
            self.wrong = DAMAGED
            return
        try:
            about = abouts.parse(text.encode())
            self.about = about
        except abouts.AboutError as error:
            self.wrong = str(error)

    def _attachment(self, data: memoryview) -> None:
        name, at = text_at(data, 16)
        _, at = text_at(data, at)
        (size,) = struct.unpack_from("<Q", data, at)
        wrong = zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little")
        if name == POLICY and wrong:
            raise ValueError("a policy with a wrong checksum")
        if name == POLICY and not self.policy and size == len(data) - at - 12:
            self.policy = bytes(data[at + 8 : at + 8 + size])

    def steps(self, names: list[str], dtype: np.dtype[Any], body: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The steps (count, robots) of which every robot's part is there, and their numbers (count,); they are used up.

        `names` of the robots, in their order; `body`: bytes of a message, of which `dtype` has a few more at the end.
        """
        rows = [self.rows.get(f"/{name}/step", Rows()) for name in names]
        usable = [one if one.size == body else Rows() for one in rows]
        numbers = [np.array(one.numbers, np.int64) for one in usable]
        common = reduce(np.intersect1d, numbers) if len(numbers) > 1 else numbers[0]
        steps = np.zeros((len(common), len(names)), dtype)
        raw = steps.view(np.uint8).reshape(len(common), len(names), dtype.itemsize)
        for k, (one, own) in enumerate(zip(usable, numbers, strict=True)):
            if len(common):
                places = np.searchsorted(own, common)
                for at in range(0, len(common), BLOCK):  # not all at once: a log may be large
                    some = places[at : at + BLOCK]
                    bodies = np.frombuffer(one.bodies, np.uint8).reshape(len(own), body)[some]
                    raw[at : at + BLOCK, k, :body] = bodies
                used = int(places[-1]) + 1
                self.held -= used * body
                one.take(used)
        return steps, common

    def happened(self) -> list[tuple[int, str, str, str]]:
        """The events since the last time."""
        events, self.events = self.events, []
        self.held -= sum(len(text) for _, _, text, _ in events)
        return events


def _event(data: memoryview) -> tuple[int, str, str, str]:
    seconds, rest = struct.unpack_from("<iI", data)
    at, texts = 8, []
    for _ in range(3):
        text, at = text_at(data, at + -at % 4)
        texts.append(text.rstrip("\0"))
    return seconds * 1_000_000_000 + rest, texts[0], texts[1], texts[2]
