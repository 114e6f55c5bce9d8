"""PLY files, in text and in binary: the vertices' columns and the faces as triangles. Strangers' files are data.

The format: Turk, "The PLY Polygon File Format" (1994).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.perception.files import MOST, FormatError, content

NAMES = ("char", "uchar", "short", "ushort", "int", "uint", "float", "double")
ALIASES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")
CODES = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")
TYPES = dict(zip(NAMES, CODES, strict=True)) | dict(zip(ALIASES, CODES, strict=True))
LETTERS = dict(zip(CODES, "bBhHiIfd", strict=True))
FORMATS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
HEADER = 100_000  # bytes
CORNERS = 1000  # of a face


@dataclass
class Element:
    """A table of the file: how many rows, and its columns: (name, type, the type of a list's length or "")."""

    name: str
    count: int
    columns: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Ply:
    """What a file holds: the vertices' columns by name (n,), and triangles (m, 3), none where there are no faces."""

    vertices: Mapping[str, NDArray[np.float64]]
    triangles: NDArray[np.int64]


def read_ply(path: str | Path) -> Ply:
    """ValueError in one line for what is none."""
    path, data = Path(path), content(path)
    end = data.find(b"end_header", 0, HEADER)
    if not data.startswith((b"ply\n", b"ply\r")) or end < 0:
        raise FormatError(path, "this is no PLY file")
    order, elements = _header(path, data[:end].decode("ascii", "replace"))
    start = data.find(b"\n", end) + 1
    if not start:
        raise FormatError(path, "its header does not end")
    reader = _Binary(path, data, start, order) if order else _Text(path, data[start:])
    vertices: dict[str, NDArray[np.float64]] = {}
    triangles = np.zeros((0, 3), np.int64)
    for element in elements:
        scalars, corners = reader.rows(element)
        if element.name == "vertex":
            vertices = scalars
        elif element.name == "face":
            triangles = corners
    return Ply(vertices, triangles)


def _header(path: Path, text: str) -> tuple[str, list[Element]]:
    order, elements = None, list[Element]()
    for line in text.splitlines()[1:]:
        match line.split():
            case ["format", name, "1.0"] if name in FORMATS:
                order = FORMATS[name]
            case ["element", name, count] if count.isdecimal() and int(count[:12]) <= MOST:
                elements.append(Element(name, int(count)))
            case ["property", "list", length, kind, name] if (
                elements and kind in TYPES and length in NAMES[:6] + ALIASES[:6]
            ):
                elements[-1].columns.append((name, TYPES[kind], TYPES[length]))
            case ["property", kind, name] if elements and kind in TYPES:
                elements[-1].columns.append((name, TYPES[kind], ""))
            case [] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise FormatError(path, f"a header's line that no PLY file of at most {MOST} rows has: {line!r:.80}")
    for element in elements:
        for k in _corner_lists(element)[:1]:
            if element.columns[k][1][0] == "f":
                raise FormatError(path, f"{element.name!r:.40} has a list of fractions where faces have corners")
    names = [element.name for element in elements]
    if order is None or len(set(names)) < len(names) or not all(element.columns for element in elements):
        raise FormatError(path, "its header lacks the format or properties, or has an element twice")
    return order, elements


def fans(corners: list[tuple[int, ...]]) -> NDArray[np.int64]:
    """Triangles (m, 3) of faces with any number of corners."""
    return np.array([(f[0], f[k], f[k + 1]) for f in corners for k in range(1, len(f) - 1)], np.int64).reshape(-1, 3)


def _corner_lists(element: Element) -> list[int]:
    """The columns that are lists; of faces the first one has the corners."""
    return [k for k, (_, _, length) in enumerate(element.columns) if length]


class _Binary:
    def __init__(self, path: Path, data: bytes, start: int, order: str) -> None:
        self.path, self.data, self.at, self.order = path, data, start, order

    def rows(self, element: Element) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
        """The scalars' columns, and the triangles of its first list."""
        lists = _corner_lists(element)
        if len(lists) <= 1:
            size = self._first_length(element, lists)
            kind = [
                item
                for k, (_, code, length) in enumerate(element.columns)
                for item in (
                    [(f"n{k}", self.order + length), (f"c{k}", self.order + code, (size,))]
                    if length
                    else [(f"c{k}", self.order + code)]
                )
            ]
            row = np.dtype(kind)
            if self.at + element.count * row.itemsize <= len(self.data):
                table = np.frombuffer(self.data, row, element.count, self.at)
                if not lists or (table[f"n{lists[0]}"] == size).all():
                    self.at += element.count * row.itemsize
                    return self._columns(element, table, lists)
            elif not lists:
                raise FormatError(self.path, f"it ends before its {element.count} rows of {element.name!r}")
        return self._one_by_one(element)

    def _first_length(self, element: Element, lists: list[int]) -> int:
        """Of the list in the first row."""
        if not lists or not element.count:
            return 0
        before = sum(np.dtype(code).itemsize for _, code, _ in element.columns[: lists[0]])
        return self._length(self.at + before, element.columns[lists[0]][2])

    def _length(self, at: int, kind: str) -> int:
        (count,) = self._unpack(at, kind, 1)
        if not 0 <= count <= CORNERS:
            raise FormatError(self.path, f"a list of {count} numbers; at most {CORNERS} are read")
        return int(count)

    def _unpack(self, at: int, kind: str, count: int) -> tuple[float, ...]:
        try:
            return struct.unpack_from(f"{self.order}{count}{LETTERS[kind]}", self.data, at)
        except struct.error:
            raise FormatError(self.path, "it ends too early") from None

    @staticmethod
    def _columns(
        element: Element, table: NDArray[np.void], lists: list[int]
    ) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
        plain = {name: f"c{k}" for k, (name, _, length) in enumerate(element.columns) if not length}
        with np.errstate(invalid="ignore"):  # some NaN
            scalars = {name: table[column].astype(np.float64) for name, column in plain.items()}
        corners = table[f"c{lists[0]}"].astype(np.int64) if lists else np.zeros((0, 3), np.int64)
        around = [corners[:, [0, k, k + 1]] for k in range(1, corners.shape[1] - 1)]
        return scalars, np.stack(around, axis=1).reshape(-1, 3) if around else np.zeros((0, 3), np.int64)

    def _one_by_one(self, element: Element) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
        """Rows whose lists differ in length: faces. Their scalars are left out."""
        corners: list[tuple[int, ...]] = []
        for _ in range(element.count):
            first = True
            for _, code, length in element.columns:
                count = 1
                if length:
                    count = self._length(self.at, length)
                    self.at += np.dtype(length).itemsize
                values = self._unpack(self.at, code, count)
                self.at += count * np.dtype(code).itemsize
                if length and first:
                    first = False
                    corners.append(_whole(self.path, values))
        return {}, fans(corners)


def _whole(path: Path, values: tuple[float, ...]) -> tuple[int, ...]:
    """As numbers of vertices."""
    if not all(-MOST <= value <= MOST for value in values):  # nor NaN
        raise FormatError(path, "a face's corner is no number of a vertex")
    return tuple(int(value) for value in values)


class _Text:
    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.lines, self.at = path, data.splitlines(), 0

    def rows(self, element: Element) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
        """The scalars' columns, and the triangles of its first list."""
        lines = self.lines[self.at : self.at + element.count]
        self.at += element.count
        if len(lines) < element.count:
            raise FormatError(self.path, f"it ends before its {element.count} rows of {element.name!r}")
        lists = _corner_lists(element)
        if lists:
            return {}, fans([self._corners(line.split(), lists[0]) for line in lines])
        width = len(element.columns)
        words = [line.split() for line in lines]
        if any(len(row) != width for row in words):
            raise FormatError(self.path, f"a row of {element.name!r} has other than {width} numbers")
        try:
            table = np.array(words, np.float64).reshape(-1, width)
        except ValueError:
            raise FormatError(self.path, f"a row of {element.name!r} has what is no number") from None
        return {name: table[:, k] for k, (name, _, _) in enumerate(element.columns)}, np.zeros((0, 3), np.int64)

    def _corners(self, words: list[bytes], before: int) -> tuple[int, ...]:
        """Of a face that has so many scalars first."""
        try:
            numbers = [float(word) for word in words[before:]]
            count = int(numbers[0])
            if not 0 <= count <= min(CORNERS, len(numbers) - 1):
                raise ValueError
            return _whole(self.path, tuple(numbers[1 : 1 + count]))
        except (ValueError, OverflowError, IndexError):
            raise FormatError(self.path, "a face's row is no list of corners") from None


def ply_bytes(columns: Mapping[str, NDArray[np.generic]], triangles: NDArray[np.int64] | None = None) -> bytes:
    """A binary file of these columns (n,) of vertices, and of triangles (m, 3)."""
    names = {code: name for name, code in zip(NAMES, CODES, strict=True)}
    count = len(next(iter(columns.values())))
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    kinds = {name: column.dtype.str[1:] for name, column in columns.items()}
    lines += [f"property {names[kind]} {name}" for name, kind in kinds.items()]
    table = np.zeros(count, [(name, "<" + kind) for name, kind in kinds.items()])
    for name, column in columns.items():
        table[name] = column
    body = table.tobytes()
    if triangles is not None:
        lines += [f"element face {len(triangles)}", "property list uchar int vertex_indices"]
        faces = np.zeros(len(triangles), [("n", "u1"), ("c", "<i4", (3,))])
        faces["n"], faces["c"] = 3, triangles
        body += faces.tobytes()
    return "\n".join([*lines, "end_header", ""]).encode() + body
