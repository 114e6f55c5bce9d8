"""Writes what can be read of a damaged log to a new file, whole and with an index, for any reader of MCAP."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from deploy.recording.content import CHANNELS, NAME, POLICY, Content, metadata, text_at
from deploy.recording.records import CHANNEL, MESSAGE, MESSAGE_HEAD, SCHEMA, Records

Place = tuple[str, str, int]  # topic, encoding of its messages, number of its schema


@dataclass
class _Known:
    """Schemas and channels by their number in the damaged file; what the file is about."""

    content: Content
    schemas: dict[int, tuple[str, str, bytes]] = field(default_factory=dict)
    channels: dict[int, Place] = field(default_factory=dict)

    def add(self, kind: int, data: memoryview) -> None:
        with contextlib.suppress(ValueError, struct.error):
            if kind == SCHEMA and len(self.schemas) < CHANNELS:
                (number,) = struct.unpack_from("<H", data)
                name, at = text_at(data, 2)
                encoding, at = text_at(data, at)
                (size,) = struct.unpack_from("<I", data, at)
                self.schemas.setdefault(number, (name, encoding, bytes(data[at + 4 : at + 4 + size])))
            elif kind == CHANNEL and len(self.channels) < CHANNELS:
                number, schema = struct.unpack_from("<HH", data)
                topic, at = text_at(data, 4)
                encoding, _ = text_at(data, at)
                self.channels.setdefault(number, (topic, encoding, schema))
        if kind not in (SCHEMA, CHANNEL, MESSAGE):
            self.content.add(kind, data)


def _all(file: IO[bytes]) -> Iterator[tuple[int, memoryview]]:
    return Records(file).read(last=True)


def repair(file: IO[bytes], out: str) -> tuple[int, dict[str, Any] | None]:
    """How many messages were saved, and what the log is about, None where that is lost: then nothing is written.

    Raises RecordError as reading does, OSError as writing does; FileExistsError when `out` exists.
    """
    from mcap.writer import Writer

    known = _Known(Content(0))
    for kind, data in _all(file):
        known.add(kind, data)
    about = known.content.about
    if about is None:
        return 0, None
    saved, numbers = 0, {}
    with open(out, "xb") as stream:
        try:
            writer = Writer(stream)
            writer.start("ros2", "sim2metal")
            writer.add_metadata(NAME, metadata(about))
            writer.add_attachment(0, 0, POLICY, "application/octet-stream", known.content.policy)
            schemas = {number: writer.register_schema(*schema) for number, schema in known.schemas.items()}
            for number, (topic, encoding, schema) in known.channels.items():
                if schema in schemas:
                    numbers[number] = writer.register_channel(topic, encoding, schemas[schema])
            for kind, data in _all(file):
                if kind == MESSAGE and len(data) >= MESSAGE_HEAD.size:
                    channel, sequence, stamp, published = MESSAGE_HEAD.unpack_from(data)
                    if channel in numbers:
                        body = bytes(data[MESSAGE_HEAD.size :])
                        writer.add_message(numbers[channel], stamp, body, published, sequence)
                        saved += 1
            writer.finish()
        except BaseException:
            os.unlink(out)
            raise
    return saved, about
