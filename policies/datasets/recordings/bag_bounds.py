"""What a stranger's rosbag2 may make of itself: rosbags unpacks what a file says, and asks SQLite what is in it.

A database holds plain tables, no views nor generated columns, which would compute without end; what is packed becomes
no more than it may be.
"""

from __future__ import annotations

import importlib
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from policies.datasets.features import DatasetError

LARGEST = 1 << 28  # bytes of one message, unpacked
CHUNK = 1 << 30  # and of a chunk of MCAP
RATIO, AT_LEAST = 1000, 1 << 26  # a whole file, unpacked: so many times its own bytes, or this
BLOCK = 1 << 20
SQLITE, ZSTD = b"SQLite format 3\0", b"\x28\xb5\x2f\xfd"  # how such files begin
TABLES = ("messages", "topics", "schema", "metadata", "message_definitions")  # of rosbag2


def zstd() -> Any:
    """The module that rosbags unpacks with."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def check(path: Path) -> None:
    """DatasetError for a bag (its folder, or one file of it) that must not be opened; files are read, not obeyed."""
    for file in _files(path):
        with file.open("rb") as content:
            begins = content.read(len(SQLITE))
        if begins == SQLITE:
            _check_tables(file)
        elif begins.startswith(ZSTD):
            _check_packed(file)


def _files(path: Path) -> Iterator[Path]:
    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    yield from (file for file in inside if file.is_file())


def _check_tables(file: Path) -> None:
    place = f"file:{quote(str(file.absolute()))}?immutable=1&mode=ro"
    try:
        connection = sqlite3.connect(place, uri=True)
        try:
            parts = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
            columns = [row for name in TABLES for row in connection.execute(f"PRAGMA table_xinfo({name})")]
        finally:
            connection.close()
    except (sqlite3.Error, ValueError):
        return  # damaged: whoever reads it says so
    plain = all(
        kind in ("table", "index") and not str(sql).lstrip().upper().startswith("CREATE VIRTUAL")
        for kind, _, sql in parts
    )
    if not plain or any(hidden for *_, hidden in columns):
        raise DatasetError(
            f"{file}: its database computes what it holds (a view, trigger or the like): no rosbag2 does"
        )


def _check_packed(file: Path) -> None:
    most, made = max(RATIO * file.stat().st_size, AT_LEAST), 0
    with zstd().open(file, "rb") as content:
        while block := content.read(BLOCK):
            made += len(block)
            if made > most:
                raise DatasetError(f"{file}: it would unpack to more than {most >> 20} MB: no recording is so empty")


def unpacked(data: bytes, most: int = LARGEST) -> bytes:
    """What was packed with zstd, at most so many bytes; DatasetError otherwise."""
    made: bytes = zstd().ZstdDecompressor().decompress(bytes(data), max_length=most + 1)
    if len(made) > most:
        raise DatasetError(f"something in it unpacks to more than {most >> 20} MB")
    return made


def _unpacked_lz4(data: bytes, most: int) -> bytes:
    made: bytes = importlib.import_module("lz4.frame").LZ4FrameDecompressor().decompress(data, max_length=most + 1)
    if len(made) > most:
        raise DatasetError(f"something in it unpacks to more than {most >> 20} MB")
    return made


def unpackers() -> dict[str, Callable[[bytes, int], bytes]]:
    """By name of a compression: what makes a chunk of MCAP out of its bytes, given the size that the file tells."""
    return {
        "zstd": lambda data, size: unpacked(data, min(size, CHUNK)),
        "lz4": lambda data, size: _unpacked_lz4(data, min(size, CHUNK)),
    }
