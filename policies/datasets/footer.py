"""The footer of a Parquet file, read here: pyarrow ends the whole process at some damaged ones.

Thrift's compact protocol, by https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md; the
fields by https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAGIC = b"PAR1"
DEEPEST = 16  # structures in each other
ROW_GROUPS, ROWS, COLUMNS, META = 4, 3, 1, 3  # fields of FileMetaData, FileMetaData, RowGroup, ColumnChunk
TYPE, ENCODINGS, PATH, VALUES, SIZE = 1, 2, 3, 5, 6  # of ColumnMetaData
BYTES = 6  # the type of texts and pictures
DICTIONARIES = {2, 8}  # encodings that store a value once


@dataclass(frozen=True)
class Column:
    """One column in one group of rows. `once`: it is of texts or pictures, and equal ones are stored once."""

    path: str
    values: int
    size: int  # bytes, unpacked
    once: bool


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def byte(self) -> int:
        value = self.content[self.at]
        self.at += 1
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def whole(self) -> int:
        """A signed number."""
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def value(self, kind: int, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError("it is nested too deeply")
        if kind in (1, 2):  # true, false: the type is the value
            return kind == 1
        if kind == 3:
            return self.byte()
        if kind in (4, 5, 6):
            return self.whole()
        if kind == 7:
            return self.skipped(8)
        if kind == 8:
            return self.skipped(self.varint())
        if kind in (9, 10):
            head = self.byte()
            size = head >> 4 if head >> 4 != 15 else self.varint()
            if size > len(self.content) - self.at:
                raise ValueError("a list that is longer than the file")
            return [self.element(head & 15, depth) for _ in range(size)]
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"a value of type {kind}")

    def element(self, kind: int, depth: int) -> Any:
        return self.byte() == 1 if kind in (1, 2) else self.value(kind, depth)

    def skipped(self, size: int) -> bytes:
        if size > len(self.content) - self.at:
            raise ValueError("a text that is longer than the file")
        self.at += size
        return self.content[self.at - size : self.at]

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Field number -> value."""
        found: dict[int, Any] = {}
        field = 0
        while head := self.byte():
            field = field + (head >> 4) if head >> 4 else self.whole()
            found[field] = self.value(head & 15, depth)
        return found


def columns(content: bytes) -> tuple[int, list[Column]]:
    """The number of rows, and what every group of rows holds, of the bytes of a file. ValueError for no such file."""
    size = int.from_bytes(content[-8:-4], "little")
    if content[:4] != MAGIC or content[-4:] != MAGIC or size + 12 > len(content):
        raise ValueError("it is no Parquet file, or is cut short")
    try:
        file = _Reader(content[-8 - size : -8]).struct()
        found = []
        for group in file[ROW_GROUPS]:
            for chunk in group[COLUMNS]:
                about = chunk[META]
                once = about[TYPE] == BYTES and not DICTIONARIES.isdisjoint(about[ENCODINGS])
                found.append(Column(b".".join(about[PATH]).decode(), int(about[VALUES]), int(about[SIZE]), once))
        return int(file[ROWS]), found
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its footer is damaged: {type(error).__name__} {error}") from None
