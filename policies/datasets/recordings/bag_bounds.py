"""What a stranger's rosbag2 may make of itself: rosbags unpacks what a file says, and asks SQLite what is in it.

A database holds plain tables, no views nor generated columns, which would compute without end; what is packed becomes
no more than it may be. Packed files are unpacked here, so that their databases are looked at before rosbags opens them.
"""

from __future__ import annotations

import importlib
import shutil
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any, BinaryIO
from urllib.parse import quote

from deploy.trust.text import printable
from policies.datasets.features import DatasetError

LARGEST = 1 << 28  # bytes of one message, unpacked
CHUNK = 1 << 26  # and of a chunk of MCAP, which takes four times that; recorders write 1 to 4 MB, or one message
HELD = 1 << 28  # of chunks whose times overlap: they are in memory together
RATIO, AT_LEAST = 1000, 1 << 26  # a whole file, unpacked: so many times its own bytes, or this
WHOLE, SPARE = 50_000_000_000, 1 << 30  # bytes of a whole bag, unpacked; what stays free on the disk then
METADATA = 1 << 22  # bytes of metadata.yaml
FRAMES = 1000  # of zstd or lz4, one after the other; recorders write one
BLOCK = 1 << 20
SQLITE = b"SQLite format 3\0"  # how such files begin
TABLES = ("messages", "topics", "schema", "metadata", "message_definitions")  # of rosbag2
PLAIN = {  # how SQLite writes down what it made; it has no words for an index that a table brings along
    "table": ("CREATE TABLE ",),
    "index": ("CREATE INDEX ", "CREATE UNIQUE INDEX ", "None"),
}
_reading = threading.Lock()
_readers, _kept = 0, dict[str, Any]()  # of MCAP, just now; the library's own unpackers
SIGNS = "%?#"  # mean something in a URI, and rosbags opens a database by one that it does not quote


class ChunkError(DatasetError):
    """A chunk of MCAP is too much, or damaged; which file it is in, is not said."""


def zstd() -> Any:
    """The module that rosbags unpacks with."""
    return importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """What rosbags opens of a bag (its folder, or one file of it): this, or a copy with its files unpacked.

    DatasetError for a bag that must not be opened; other kinds for what is damaged. The copy is there until the end.
    """
    if not path.is_dir():
        _check(path, path.suffix == ".mcap")
        yield path
        return
    yaml = path / "metadata.yaml"
    _check_name(yaml, True)
    if yaml.stat().st_size > METADATA:
        raise DatasetError(f"{yaml}: more than {METADATA >> 20} MB: no rosbag2 says so much of itself")
    # By the parser that rosbags has, as another might find something else in it.
    parser = importlib.import_module("ruamel.yaml").YAML(typ="safe")
    said = parser.load(yaml.read_text())["rosbag2_bagfile_information"]
    files = [path / PurePath(name).name for name in said["relative_file_paths"]]
    mcap = said["storage_identifier"] == "mcap"
    if said.get("compression_mode", "").lower() != "file" or said.get("compression_format") != "zstd":
        for file in files:
            _check(file, mcap)
        yield path
        return
    with tempfile.TemporaryDirectory() as made:
        copies = [Path(made, str(number)) for number in range(len(files))]
        left = min(WHOLE, shutil.disk_usage(made).free - SPARE)
        for file, copy in zip(files, copies, strict=True):
            left -= _unpack(file, copy, left)
            _check(copy, mcap)
        said |= {"relative_file_paths": [copy.name for copy in copies], "compression_mode": "none"}
        with Path(made, yaml.name).open("w") as content:
            parser.dump({"rosbag2_bagfile_information": said}, content)
        yield Path(made)


def _check(file: Path, mcap: bool) -> None:
    _check_name(file, mcap)
    with file.open("rb") as content:
        begins = content.read(len(SQLITE))
    if begins == SQLITE:
        _check_tables(file)


def _check_name(file: Path, mcap: bool) -> None:
    """Nor is it a pipe, which would be read without end."""
    shown = printable(file, 300)
    if not file.is_file():
        raise DatasetError(f"{shown}: there is no such file")
    if not mcap and any(sign in str(file) for sign in SIGNS):
        raise DatasetError(
            f"{shown}: a database whose path has one of {' '.join(SIGNS)} may be another for SQLite: rename it, in "
            "metadata.yaml too"
        )


def _check_tables(file: Path) -> None:
    place = f"file:{quote(str(file.absolute()))}?immutable=1&mode=ro"
    try:
        connection = sqlite3.connect(place, uri=True)
        try:
            parts = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
            columns = [row for name in TABLES for row in connection.execute(f"PRAGMA table_xinfo({name})")]
        finally:
            connection.close()
    except (sqlite3.Error, ValueError) as error:  # another SQLite reads it later, and may understand it
        said = printable(error, 200)
        raise DatasetError(f"{file}: its database is damaged, or none that rosbag2 writes: {said}") from None
    plain = all(kind in PLAIN and str(sql).startswith(PLAIN[kind]) for kind, _, sql in parts)
    if not plain or any(hidden for *_, hidden in columns):
        raise DatasetError(
            f"{file}: its database computes what it holds (a view, trigger or the like): no rosbag2 does"
        )


def _unpack(file: Path, copy: Path, left: int) -> int:
    """How many bytes it becomes, at most so many."""
    _check_name(file, True)  # SQLite opens the copy
    made, most, what = 0, max(RATIO * file.stat().st_size, AT_LEAST), printable(file, 300)
    if left < most:
        most, what = left, f"{what} (of at most {WHOLE / 1e9:g} GB a bag, {SPARE >> 30} GB free in TMPDIR)"
    with file.open("rb") as content, copy.open("wb") as out:
        for piece in _pieces(zstd().ZstdDecompressor, content, most, what):
            made += out.write(piece)
    return made


def _pieces(make: Callable[[], Any], packed: BinaryIO, most: int, what: str) -> Iterator[bytes]:
    """What was packed, all its frames, in pieces; DatasetError when it is more than so many bytes, or not whole."""
    made, frames, data = 0, 0, packed.read(BLOCK)
    if not data:
        raise DatasetError(f"{what} is empty: nothing was packed")
    while data:
        one, frames = make(), frames + 1
        if frames > FRAMES:
            raise DatasetError(f"{what} was packed in more than {FRAMES} frames: no recorder does")
        while not one.eof:
            piece = one.decompress(data, max_length=BLOCK)
            made += len(piece)
            if made > most:
                raise DatasetError(f"{what} unpacks to more than {max(most, 0) >> 20} MB")
            yield piece
            data = packed.read(BLOCK) if one.needs_input and not one.eof else b""
            if one.needs_input and not one.eof and not data:
                raise DatasetError(f"{what} is cut off: its packed bytes end too early")
        data = one.unused_data or packed.read(BLOCK)


def unpacked(data: bytes, what: str) -> bytes:
    """A message that was packed with zstd; DatasetError, which says `what` it is, when it is more than LARGEST."""
    return b"".join(_pieces(zstd().ZstdDecompressor, BytesIO(data), LARGEST, printable(what, 300)))


def _chunk(make: Callable[[], Any], data: bytes, size: int) -> bytes:
    """A chunk's content, of which the file says that it has `size` bytes."""
    try:
        return b"".join(_pieces(make, BytesIO(data), min(size, CHUNK), "a chunk of MCAP"))
    except DatasetError as error:
        raise ChunkError(str(error)) from None


def _plain(data: bytes, size: int) -> bytes:
    if len(data) > CHUNK:
        raise ChunkError(f"a chunk of MCAP has more than {CHUNK >> 20} MB")
    return data


def unpackers() -> dict[str, Callable[[bytes, int], bytes]]:
    """By name of a compression: what makes a chunk of MCAP out of its bytes, given the size that the file tells."""
    return {
        "": _plain,
        "zstd": lambda data, size: _chunk(zstd().ZstdDecompressor, data, size),
        "lz4": lambda data, size: _chunk(importlib.import_module("lz4.frame").LZ4FrameDecompressor, data, size),
    }


@contextmanager
def bounded(table: dict[str, Any]) -> Iterator[None]:
    """Have rosbags unpack chunks by ours, as long as anybody reads; then its `table` is as it was.

    It has no other way in: its readers ask this table of the module `storage_mcap`, by the name of the compression. A
    test looks that they do.
    """
    global _readers
    with _reading:
        if not _readers:
            _kept.update(table)
            table.update(unpackers())
        _readers += 1
    try:
        yield
    finally:
        with _reading:
            _readers -= 1
            if not _readers:
                table.clear()
                table.update(_kept)
                _kept.clear()


def check_chunks(storage: Any) -> None:
    """DatasetError where chunks that an MCAP's index tells of would take too much memory, alone or together.

    `storage`: of rosbags, opened. Of a chunk it yields only messages within the times that the index says, and keeps it
    from the first of these times to the last.
    """
    for part in getattr(storage, "storages", [storage]):
        chunks, shown = getattr(part, "chunks", []), printable(part.path, 300)
        if any(max(chunk.compressed_size, chunk.uncompressed_size) > CHUNK for chunk in chunks):
            raise DatasetError(f"{shown}: a chunk of MCAP has more than {CHUNK >> 20} MB: record it in smaller ones")
        edges = [(c.message_start_time, 0, c.uncompressed_size) for c in chunks]
        edges += [(max(c.message_start_time, c.message_end_time), 1, -c.uncompressed_size) for c in chunks]
        held = 0
        for _, _, more in sorted(edges):
            held += more
            if held > HELD:
                raise DatasetError(
                    f"{shown}: chunks of MCAP with more than {HELD >> 20} MB are of the same time, and would be in "
                    "memory together"
                )
