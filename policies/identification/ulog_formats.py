"""What a ULog defines, looked at before pyulog makes an object of every number: nests of formats fill memory there.

Written from PX4's documentation of the format (docs.px4.io, "ULog File Format"): 16 bytes, then messages of a size
(uint16, little-endian), a kind and that many bytes; formats ('F') are "NAME:TYPE FIELD;TYPE[COUNT] FIELD;...".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection
from typing import BinaryIO

LONGEST = 1 << 24  # bytes of all definitions
KNOWN, AFTER = b"BFIMPQ", b"ALC"  # kinds of definitions, and those that come after them
BASIC = {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"float", "double", "bool", "char"}
FIELD = re.compile(r"([A-Za-z]\w*)(?:\[(\d{1,5})\])? (\w+)", re.ASCII)
MOST, DEEPEST = 2000, 4  # numbers of a topic, and formats in formats
MOST_READ = 200  # numbers of a topic that is kept

Format = list[tuple[str, int]]  # type and count of each field


def check(stream: BinaryIO, topics: Collection[str]) -> None:
    """ValueError, which does not name the file, for formats that are too large, or that nest in one of `topics`."""
    formats = _formats(stream)
    for name, fields in formats.items():
        kept = name in topics
        if kept and any(kind not in BASIC for kind, _ in fields):
            raise ValueError(f"the format of {name} holds other formats")
        if (count := _numbers(formats, name, DEEPEST)) > (MOST_READ if kept else MOST):
            raise ValueError(f"the format of {name:.80} has {count} numbers, more than {MOST_READ if kept else MOST}")


def _formats(stream: BinaryIO) -> dict[str, Format]:
    found, left = dict[str, Format](), LONGEST
    stream.seek(16)
    while len(head := stream.read(3)) == 3:
        size, kind = struct.unpack("<HB", head)
        if kind in AFTER:
            break
        if kind not in KNOWN:  # pyulog would look for messages within it
            raise ValueError(f"a message of the kind {kind} among its definitions")
        content = stream.read(size)
        left -= 3 + size
        if left < 0 or len(content) < size:
            raise ValueError(f"its definitions are cut off, or more than {LONGEST >> 20} MB")
        if kind == ord("F"):
            name, fields = _format(content)
            if found.setdefault(name, fields) != fields:
                raise ValueError(f"two formats of {name:.80}")
    return found


def _format(content: bytes) -> tuple[str, Format]:
    name, _, rest = content.decode("utf-8", "replace").partition(":")
    matches = [FIELD.fullmatch(part) for part in rest.split(";") if part]
    if not name or not all(matches):
        raise ValueError(f"the format {name[:80]!r} is none")
    return name, [(match[1], int(match[2] or 1)) for match in matches if match]


def _numbers(formats: dict[str, Format], name: str, deep: int) -> int:
    """How many numbers a format comes to, or more than `MOST`; what is not defined pyulog leaves out."""
    if not deep:
        return MOST + 1
    total = 0
    for kind, count in formats.get(name, []):
        # A field costs something even where it comes to no number.
        total += count * (1 if kind in BASIC else max(1, _numbers(formats, kind, deep - 1)))
        if total > MOST:
            break
    return total
