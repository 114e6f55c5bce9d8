"""The records of an MCAP file that may be damaged, cut short, still being written, or made to do harm.

A damaged chunk (its checksum says so) is left out; where the structure itself is damaged, the next record that has one
is looked for. Nothing is allocated, or unpacked, because the file says so: sizes are compared with what is there and
with the limits below, and the work is bounded by the size of the file. https://mcap.dev/spec
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

MAGIC = b"\x89MCAP0\r\n"  # an MCAP file's first bytes, and its last
FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, ATTACHMENT, METADATA, DATA_END = 2, 3, 4, 5, 6, 9, 12, 15
HEAD = struct.Struct("<BQ")  # kind, size of the rest
CHUNK_HEAD = struct.Struct("<QQQII")  # first and last time, size and checksum when unpacked, length of the compression
MESSAGE_HEAD = struct.Struct("<HIQQ")  # channel, sequence, two times in ns
KNOWN = range(1, 16)  # kinds that this reader knows of; 128 and more are for anybody's use
LIMITS = {  # bytes of one record
    FOOTER: 20, SCHEMA: 1 << 20, CHANNEL: 1 << 16, MESSAGE: 16 << 20, CHUNK: 64 << 20,
    ATTACHMENT: 256 << 20, METADATA: 1 << 20, DATA_END: 4,
}  # fmt: skip
UNPACKED = 64 << 20  # bytes of one chunk
# What a log may unpack to: so much, and so many times its size. Ours: ten times at most, in records of 50 bytes.
ALLOWANCE, RATIO = 32 << 20, 32
RECORDS, BYTES_EACH = 100_000, 16
WINDOW = 1 << 20  # bytes that are searched at a time
# Where a record begins that says enough of itself to be known again: a chunk, what is ours, the two at the end.
LANDMARK = re.compile(
    rb"\x06.{7}\0.{16}.{7}\0.{4}(?:\x04\0\0\0zstd|\x03\0\0\0lz4|\0\0\0\0).{7}\0"
    rb"|\x0c.{7}\0\x09\0\0\0sim2metal|\x09.{7}\0.{16}\x0b\0\0\0policy\.onnx"
    rb"|\x0f\x04\0{7}|\x02\x14\0{7}",
    re.DOTALL,
)
REACH = 64  # bytes that the longest landmark has


class RecordError(ValueError):
    """This cannot be read, or not within the limits; the message says why."""


class _DamagedError(Exception):
    """This one record cannot be used; the message says why."""


@dataclass
class Damage:
    """What was left out."""

    chunks: int = 0
    places: list[int] = field(default_factory=list)  # offsets in the file, of the first few

    def note(self, at: int) -> None:
        """One more."""
        self.chunks += 1
        if len(self.places) < 10:
            self.places.append(at)


class Records:
    """Reads a file from where it was left the last time."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.at = file, 0
        self.damage = Damage()
        self.complete = False  # the end was seen
        self._checked = 0  # where the last record with a checksum ended
        self._tried = 0  # where something was looked for, and found, that was none
        self._unpacked = self._count = 0

    def read(self, last: bool) -> Iterator[tuple[int, memoryview]]:
        """(kind, content) of the schemas, channels, messages, attachments and metadata that follow.

        `last`: nothing will be written any more, so that what is not whole is damaged. Raises RecordError.
        """
        self.size = os.fstat(self.file.fileno()).st_size
        if not self._begun(last):
            return
        while not self.complete and self.at + HEAD.size <= self.size:
            try:
                kind, size = HEAD.unpack(self._bytes(self.at, HEAD.size))
                self._check_head(kind, size)
                self._tried = self.at if kind == CHUNK else self._tried
                end = self.at + HEAD.size + size
                if end > self.size:
                    if not last:
                        return
                    raise _DamagedError("goes beyond the end of the file")
                found = self._record(kind, size)
            except _DamagedError:
                if self._skip(last):
                    continue
                return
            self.at = end
            yield from found

    def _begun(self, last: bool) -> bool:
        if self.at == 0:
            head = self._bytes(0, len(MAGIC))
            same = sum(a == b for a, b in zip(head, MAGIC, strict=False))
            if same < min(len(head), len(MAGIC) - 1) or (last and 0 < len(head) < len(MAGIC)):
                raise RecordError("not an MCAP file")
            if len(head) < len(MAGIC):
                return False
            self.at = self._checked = len(MAGIC)
        return True

    def _bytes(self, at: int, size: int) -> bytes:
        self.file.seek(at)
        return self.file.read(size)

    def _check_head(self, kind: int, size: int) -> None:
        if kind not in KNOWN and kind < 128:
            raise _DamagedError(f"no record is of kind {kind}")
        if size > LIMITS.get(kind, 1 << 40) or (kind in (FOOTER, DATA_END) and size != LIMITS[kind]):
            raise _DamagedError(f"no record of kind {kind} has {size} bytes")

    def _work(self, unpacked: int, records: int) -> None:
        """What bounds memory and time, whatever the file says."""
        self._unpacked += unpacked
        self._count += records
        if self._unpacked > ALLOWANCE + RATIO * self.size or self._count > RECORDS + self.size // BYTES_EACH:
            raise RecordError(f"unpacks to more than a log of {self.size} bytes may hold")

    def _record(self, kind: int, size: int) -> list[tuple[int, memoryview]]:
        self._work(0, 1)
        at = self.at + HEAD.size
        if kind == CHUNK:
            content = self._unpack(self._bytes(at, size))
            self._checked = at + size
            return self._within(content)
        if kind == FOOTER:
            if self._bytes(at + size, len(MAGIC)) != MAGIC:
                raise _DamagedError("the file's end is not right")
            self.complete = True
        if kind in (SCHEMA, CHANNEL, MESSAGE, METADATA) or (kind == ATTACHMENT and self._is_policy(at)):
            self._work(size, 0)
            return [(kind, memoryview(self._bytes(at, size)))]
        return []

    def _is_policy(self, at: int) -> bool:
        """Attachments of others may be of any size, and are none of our business."""
        return self._bytes(at + 16, 15) == b"\x0b\0\0\0policy.onnx"

    def _unpack(self, data: bytes) -> memoryview:
        if len(data) < CHUNK_HEAD.size + 8:
            raise _DamagedError("a chunk without contents")
        _, _, size, checksum, length = CHUNK_HEAD.unpack_from(data)
        head = CHUNK_HEAD.size + length + 8
        if length > 8 or len(data) < head or head + int.from_bytes(data[head - 8 : head], "little") != len(data):
            raise _DamagedError("a chunk that contradicts itself")
        if size > UNPACKED:
            raise _DamagedError(f"a chunk unpacks to {size} bytes, more than {UNPACKED}")
        self._work(size + len(data), 0)
        unpacked = _decompressed(data[CHUNK_HEAD.size : head - 8], memoryview(data)[head:], size)
        if len(unpacked) != size or (checksum and zlib.crc32(unpacked) != checksum):
            raise _DamagedError("a chunk with a wrong checksum")
        return memoryview(unpacked)

    def _within(self, content: memoryview) -> list[tuple[int, memoryview]]:
        found, at, end = [], 0, len(content)
        unpack, head = HEAD.unpack_from, HEAD.size
        left = RECORDS + self.size // BYTES_EACH - self._count
        while at + head <= end and left > 0:
            kind, size = unpack(content, at)
            at += head
            if size > end - at:
                self.damage.note(self.at)
                break
            if kind == MESSAGE or kind in (SCHEMA, CHANNEL):
                found.append((kind, content[at : at + size]))
            at += size
            left -= 1
        self._work(0, RECORDS + self.size // BYTES_EACH - self._count - left + (left <= 0))
        return found

    def _skip(self, last: bool) -> bool:
        """Go on at the next record that is known again; False when there is none (yet).

        What was passed over since the last checksum may have been wrong about its size: it is searched, too.
        """
        found = self._landmark(max(self._checked, self._tried + 1))
        if found is None:
            self.at = self.size if last else self.at
            return False
        self.damage.note(self.at)
        self.at = self._tried = found
        return True

    def _landmark(self, start: int) -> int | None:
        while start < self.size:
            window = self._bytes(start, WINDOW + REACH)
            match = LANDMARK.search(window)
            if match:
                return start + match.start()
            start += WINDOW
        return None


def _decompressed(compression: bytes, data: memoryview, size: int) -> bytes | memoryview:
    """`size` bytes at most, whatever the data says itself."""
    if not compression:
        return data
    try:
        if compression == b"zstd":
            import zstandard

            told = zstandard.get_frame_parameters(data)
            if told.content_size not in (size, zstandard.CONTENTSIZE_UNKNOWN) or told.window_size > 2 * UNPACKED:
                raise _DamagedError("a chunk that contradicts itself")
            return zstandard.ZstdDecompressor(max_window_size=2 * UNPACKED).decompress(data, max_output_size=size)
        if compression == b"lz4":
            import lz4.frame

            unpacked: bytes = lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size + 1)
            return unpacked
    except Exception as error:  # whatever damaged data provoke in a library
        raise _DamagedError(str(error)) from None
    raise _DamagedError("a chunk is compressed by what this program does not know")
