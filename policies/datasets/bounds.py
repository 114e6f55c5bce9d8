"""What the files of a stranger's dataset may say: where they lie, how large they are, how much comes out of them."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from policies.datasets import footer
from policies.datasets.features import CAMERA, DatasetError, Feature

LARGEST = 1 << 30  # bytes of a table, packed or unpacked
LARGEST_TEXT = 1 << 24  # bytes of a description in JSON
VALUES = 1 << 26  # numbers and texts in a table, repeated ones counted as often as they are there
TEXT, TEXTS = 1 << 26, 1 << 28  # bytes of texts that are stored once and repeated: in some rows at a time, in all
PICTURES = 1 << 31  # bytes of the pictures of an episode
ELEMENTS = 1 << 24  # of a feature in one frame
RANK = 8
FEATURES = 1000
FASTEST = 1e5  # Hz
FIELD = re.compile(r"\{([a-z_]+)(?::(0?[1-9])d)?\}")  # {chunk_index:03d}, and nothing else that str.format knows
LONGEST = 500  # characters of a path


@contextmanager
def malformed(what: str) -> Iterator[None]:
    """What a description of an unexpected shape ends in becomes a DatasetError that says which one it was."""
    try:
        yield
    except DatasetError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        pa.ArrowException,
    ) as e:
        reason = str(e).partition("\n")[0] or type(e).__name__
        raise DatasetError(f"{what}: {type(e).__name__}: {reason}") from None


def inside(folder: Path, name: str) -> Path:
    """The file of that name in the folder. DatasetError when it lies elsewhere, also by links, or is no file.

    A cache of downloads may link to files that it keeps once, in `blobs` beside `snapshots`.
    """
    try:
        path, root = (folder / name).resolve(), folder.resolve()
        roots = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
        if not any(path.is_relative_to(each) for each in roots):
            raise DatasetError(f"{folder}: {name!r} lies outside of the folder, where no file of a dataset is read")
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise DatasetError(f"{folder}: {name!r} is no file")
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{folder}: {name!r:.200} cannot be the name of a file: {error}") from None
    return path


def own(folder: Path) -> None:
    """DatasetError when a folder in the dataset is a link to one outside of it: what is written would land there."""
    for top, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(top) / name
            if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                raise DatasetError(f"{folder}: {path.relative_to(folder)} is a link out of the dataset")


def content(folder: Path, name: str, most: int = LARGEST) -> bytes:
    """Of a file inside the folder. DatasetError when it is larger than `most` bytes, FileNotFoundError as ever."""
    path = inside(folder, name)
    size = path.stat().st_size
    if size > most:
        raise DatasetError(f"{folder}: {name} has {size} bytes, at most {most} are read")
    with path.open("rb") as file:
        return file.read(size)


def description(folder: Path, name: str) -> dict[str, Any]:
    """A map out of JSON. DatasetError when it is none."""
    with malformed(f"{folder}: {name} is damaged"):
        found = json.loads(content(folder, name, LARGEST_TEXT))
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}, not a map")
        return found


def filled(pattern: str, values: Mapping[str, Any]) -> str:
    """A path out of its pattern, in which {name} and {name:03d} are the only fields; ValueError for any other."""
    if not isinstance(pattern, str) or len(pattern) > LONGEST:
        raise ValueError(f"{pattern!r:.80} is no pattern of a path")
    if set("{}") & set(FIELD.sub("", pattern)):
        raise ValueError(f"the pattern {pattern!r} holds more than the fields {', '.join(values)}")

    def field(found: re.Match[str]) -> str:
        name, width = found.groups()
        if name not in values:
            raise ValueError(f"the pattern {pattern!r} names {name!r}; there are {', '.join(values)}")
        value = values[name]
        return format(int(value), f"{width}d") if width else str(value)

    return FIELD.sub(field, pattern)


def checked(name: str, feature: Feature) -> Feature:
    """The feature, if memory can hold a frame of it; ValueError."""
    shape = feature.shape
    if not shape or len(shape) > RANK or min(shape) < 1 or math.prod(shape) > ELEMENTS:
        raise ValueError(f"shape {shape} of {name!r}")
    if feature.dtype in CAMERA and len(shape) != 3:
        raise ValueError(f"pictures of shape {shape}")
    return feature


def table(content: bytes, columns: list[str] | None = None) -> pa.Table:
    """Those columns of a Parquet file. ValueError when more would come out of it than memory should hold."""
    rows, held = footer.columns(content)
    wanted = [c for c in held if columns is None or c.path.partition(".")[0] in columns or c.path in columns]
    values, size = sum(c.values for c in wanted), sum(c.size for c in wanted)
    if min([rows, *(min(c.values, c.size) for c in held)]) < 0 or max(values, rows) > VALUES or size > LARGEST:
        raise ValueError(f"{values} values, {size} bytes in {rows} rows; at most {VALUES} and {LARGEST} are read")
    texts = max((c.size for c in wanted if c.once), default=0)
    file = pq.ParquetFile(pa.BufferReader(content))
    if lacking := set(columns or ()) - set(file.schema_arrow.names):
        raise ValueError(f"it has no column {min(lacking)!r}")
    if texts == 0:
        return file.read(columns=columns, use_threads=False)
    # A text that is stored once may be in every row: some rows at a time, until it is too much.
    batches, size = [], 0
    for batch in file.iter_batches(max(1, min(65536, TEXT // texts)), columns=columns, use_threads=False):
        batches.append(batch)
        size += batch.nbytes
        if size > TEXTS:
            raise ValueError(f"its texts have more than {TEXTS} bytes")
    return pa.Table.from_batches(batches) if batches else file.schema_arrow.empty_table()
