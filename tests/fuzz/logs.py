"""Mutants of flight logs, whose records and checksums are right where the mutation is not about them, and bombs."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import zstandard

from deploy.recording.content import NAME, metadata
from deploy.recording.records import (
    CHANNEL,
    CHUNK,
    CHUNK_HEAD,
    FOOTER,
    HEAD,
    MAGIC,
    MESSAGE,
    MESSAGE_HEAD,
    METADATA,
    SCHEMA,
)
from tests.fuzz.mutants import HOSTILE, bytes_of, json_of

Record = tuple[int, bytes]


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return struct.pack("<I", len(data)) + data


def records(data: bytes) -> list[Record]:
    """(kind, content) of well-formed records in a row."""
    found, at = [], 0
    while at < len(data):
        kind, size = HEAD.unpack_from(data, at)
        found.append((kind, data[at + HEAD.size : at + HEAD.size + size]))
        at += HEAD.size + size
    return found


def joined(parts: list[Record]) -> bytes:
    return b"".join(HEAD.pack(kind, len(data)) + data for kind, data in parts)


def file_of(parts: list[Record]) -> bytes:
    return MAGIC + joined(parts) + MAGIC


def parts_of(log: bytes) -> list[Record]:
    return records(log[len(MAGIC) : -len(MAGIC)])


def chunk(inner: bytes, declared: int | None = None, packed: bytes | None = None) -> Record:
    """A chunk that holds this; `declared`: what it says its size is."""
    size = len(inner) if declared is None else declared
    packed = zstandard.compress(inner) if packed is None else packed
    head = CHUNK_HEAD.pack(0, 0, size & 0xFFFFFFFFFFFFFFFF, zlib.crc32(inner), 4)
    return CHUNK, head + b"zstd" + struct.pack("<Q", len(packed)) + packed


def inside(part: Record) -> bytes:
    """What is in a chunk of ours."""
    at = CHUNK_HEAD.size + 4 + 8
    return zstandard.decompress(part[1][at:])


def told(about: dict[str, Any]) -> Record:
    """The metadata of a log that says this about itself, with its checksum."""
    made = metadata(about)
    body = b"".join(text(key) + text(value) for key, value in made.items())
    return METADATA, text(NAME) + struct.pack("<I", len(body)) + body


def with_about(log: bytes, about: dict[str, Any]) -> bytes:
    """The log, in both its places of another story."""
    return file_of([told(about) if kind == METADATA else (kind, data) for kind, data in parts_of(log)])


def of_records(log: bytes, rng: np.random.Generator) -> bytes:
    """One to three records, outside or within chunks, changed, removed, doubled or moved; checksums fit."""
    parts = parts_of(log)
    for _ in range(int(rng.integers(1, 4))):
        k = int(rng.integers(len(parts)))
        if parts[k][0] == CHUNK and rng.random() < 0.7:
            with contextlib.suppress(zstandard.ZstdError, struct.error):  # one that was changed before
                parts[k] = chunk(joined(_shuffled(records(inside(parts[k])), rng)))
        else:
            parts = _shuffled(parts, rng)
    return file_of(parts)


def _shuffled(parts: list[Record], rng: np.random.Generator) -> list[Record]:
    made, k = list(parts), int(rng.integers(len(parts)))
    kind, data = made[k]
    choice = rng.integers(6)
    if choice == 0:
        del made[k]
    elif choice == 1:
        made.insert(int(rng.integers(len(made) + 1)), made[k])
    elif choice == 2:
        made[k] = (int(rng.integers(1, 17)), data)
    elif choice == 3:
        number = int(rng.choice([0, 1, 3, 7, 0xFFFF]))
        made[k] = (kind, struct.pack("<H", number) + data[2:])
    else:
        made[k] = (kind, bytes_of(data, rng))
    return made or parts


def of_about(log: bytes, about: dict[str, Any], rng: np.random.Generator) -> bytes:
    """Another story about itself."""
    made = json_of(about, rng)
    return with_about(log, made if isinstance(made, dict) else {"version": made})


def mutants(log: bytes, about: dict[str, Any], rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """(kind, bytes) without end."""
    while True:
        yield "flip", _flipped(log, rng)
        yield "bytes", bytes_of(log, rng)
        yield "cut", log[: int(rng.integers(len(log)))]
        yield "records", of_records(log, rng)
        yield "about", of_about(log, about, rng)


def _flipped(log: bytes, rng: np.random.Generator) -> bytes:
    made = bytearray(log)
    made[int(rng.integers(len(made)))] ^= 1 << int(rng.integers(8))
    return bytes(made)


def _message(channel: int, number: int, body: bytes) -> Record:
    return MESSAGE, MESSAGE_HEAD.pack(channel, number, 0, 0) + body


def _end() -> Record:
    return FOOTER, bytes(20)


def bombs(log: bytes, about: dict[str, Any], share: float = 1.0) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of what would cost a careless reader memory or time, some 10 MB each, or a share of it."""
    head, parts = parts_of(log)[:3], parts_of(log)
    zeros = zstandard.compress(bytes(63 << 20))
    inner = bytes(63 << 20)
    yield "a chunk of zeros, many times", file_of([*head, *[chunk(inner, packed=zeros)] * round(500 * share), _end()])
    yield "more than it says", file_of([*head, chunk(bytes(100), 100, zeros), _end()])
    yield "less than it says", file_of([*head, chunk(bytes(100), 1 << 62), _end()])
    tiny = chunk(joined([_message(9, k, b"") for k in range(200_000)]))
    yield "tiny messages", file_of([*head, *[tiny] * round(40 * share), _end()])
    empty = chunk(joined([(77, b"")] * 1_000_000))
    yield "records of nothing", file_of([*head, *[empty] * round(100 * share), _end()])
    yield (
        "tiny messages as they are",
        file_of([*head, *[_message(9, k, b"") for k in range(round(300_000 * share))], _end()]),
    )
    names = [
        (CHANNEL, struct.pack("<HH", k, k) + text("x" * 500) + text("cdr") + b"\0\0\0\0")
        for k in range(round(65_536 * share))
    ]
    types = [
        (SCHEMA, struct.pack("<H", k) + text("x" * 500) + text("ros2msg") + text(""))
        for k in range(round(65_536 * share))
    ]
    yield "channels and schemas", file_of([*head, chunk(joined(types)), chunk(joined(names)), _end()])
    for size in (1 << 30, 1 << 40, (1 << 64) - 1):
        yield f"a record of {size} bytes", MAGIC + joined(head) + HEAD.pack(CHUNK, size) + bytes(1000)
        yield f"an attachment of {size} bytes", MAGIC + HEAD.pack(9, size) + bytes(16) + text("policy.onnx") + bytes(99)
    fake = CHUNK_HEAD.pack(0, 0, 1 << 20, 1, 4) + b"zstd" + struct.pack("<Q", 1 << 20)
    yield (
        "chunks within chunks",
        MAGIC + joined(head) + (HEAD.pack(CHUNK, len(fake) + (1 << 20)) + fake) * round(100_000 * share),
    )
    for name, depth in (("[", 100_000), ('{"a":', 100_000)):
        body = text("json") + text(name * depth)
        yield f"nested {name}", file_of([(METADATA, text(NAME) + struct.pack("<I", len(body)) + body), _end()])
    shape = [{**signal, "shape": [2**20, 2**20]} for signal in about["watched"]]
    large = [{**about["watched"][0], "name": f"s{k}", "shape": [2**22]} for k in range(500)]
    stories = {"shapes": {"watched": shape}, "large": {"watched": large}, "robots": {"robots": 10**9}}
    for name, story in stories.items():
        yield f"absurd {name}", with_about(log, {**about, **story})
    for value in HOSTILE:
        for key in about:
            if key != "version" or not isinstance(value, str):
                yield f"{key} {json.dumps(value)[:40]}", with_about(log, {**about, key: value})
    yield "nothing but an end", file_of([parts[-1]])
