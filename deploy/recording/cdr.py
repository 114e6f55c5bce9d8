"""ROS 2 messages as CDR, from their definitions as text: what rosbag2 stores, without any ROS.

An encoder is made once per type. Values are mappings by field name; a field that is left out is zero, empty or nested
zeros. Strings are UTF-8, arrays are any sequences or numpy arrays.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

HEADER = b"\x00\x01\x00\x00"  # plain CDR, little endian
RULE = "=" * 80
PRIMITIVES = {
    "bool": "?", "byte": "B", "char": "B",
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H",
    "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip
FIELD = re.compile(r"^([A-Za-z][\w/]*)(\[(\d*)\])?\s+([a-z]\w*)(\s+\S+)?$")  # the last one: a default
Write = Callable[[bytearray, Any], None]


def definition(name: str, texts: Mapping[str, str]) -> str:
    """The text of a type with those of all types within it, as a bag stores it; `texts` by "package/Type"."""
    found = [name]
    for each in found:  # grows meanwhile
        for kind, _, _ in _fields(each, texts):
            if kind not in PRIMITIVES and kind != "string" and kind not in found:
                found.append(kind)
    nested = [f"{RULE}\nMSG: {each}\n{texts[each].strip()}" for each in found[1:]]
    return "\n".join([texts[name].strip(), *nested]) + "\n"


def _fields(name: str, texts: Mapping[str, str]) -> list[tuple[str, str | None, str]]:
    """(type, None or the length of the array or "", name); comments and constants are left out."""
    found = []
    for line in texts[name].splitlines():
        match = FIELD.match(line.partition("#")[0].strip())
        if match:
            kind = match[1]
            if kind not in PRIMITIVES and kind != "string" and "/" not in kind:  # of the same package
                kind = f"{name.partition('/')[0]}/{kind}"
            found.append((kind, match[3] if match[2] else None, match[4]))
    return found


def _pad(out: bytearray, size: int) -> None:
    out += bytes(-len(out) % size)


def _primitive(kind: str) -> Write:
    form = struct.Struct("<" + PRIMITIVES[kind])

    def write(out: bytearray, value: Any) -> None:
        _pad(out, form.size)
        out += form.pack(0 if value is None else value)

    return write


def _string(out: bytearray, value: Any) -> None:
    data = str(value or "").encode("utf-8", "replace").replace(b"\0", b"?")
    _pad(out, 4)
    out += struct.pack("<I", len(data) + 1) + data + b"\0"


def _numbers(kind: str, length: str) -> Write:
    dtype = np.dtype(PRIMITIVES[kind]).newbyteorder("<")

    def write(out: bytearray, value: Any) -> None:
        values = np.zeros(int(length or 0), dtype) if value is None else np.asarray(value).astype(dtype).reshape(-1)
        if length and len(values) != int(length):
            raise ValueError(f"needs {length} numbers, got {len(values)}")
        if not length:
            _pad(out, 4)
            out += struct.pack("<I", len(values))
        if len(values):
            _pad(out, dtype.itemsize)
            out += values.tobytes()

    return write


def _sequence(each: Write) -> Write:
    def write(out: bytearray, value: Any) -> None:
        values = value or ()
        _pad(out, 4)
        out += struct.pack("<I", len(values))
        for one in values:
            each(out, one)

    return write


def _writer(name: str, texts: Mapping[str, str]) -> Write:
    parts: list[tuple[str, Write]] = []
    for kind, length, field in _fields(name, texts):
        if kind in PRIMITIVES:
            write = _primitive(kind) if length is None else _numbers(kind, length)
        else:
            write = _string if kind == "string" else _writer(kind, texts)
            if length:
                raise ValueError(f"{name}: arrays of a fixed number of {kind} are not written")
            write = write if length is None else _sequence(write)
        parts.append((field, write))

    def whole(out: bytearray, value: Any) -> None:
        for field, write in parts:
            write(out, value.get(field) if value else None)

    return whole


def encoder(name: str, texts: Mapping[str, str]) -> Callable[[Mapping[str, Any]], bytes]:
    """From values by field name to a message's bytes, header included."""
    write = _writer(name, texts)

    def encode(values: Mapping[str, Any]) -> bytes:
        out = bytearray()
        write(out, values)
        return HEADER + bytes(out)

    return encode
