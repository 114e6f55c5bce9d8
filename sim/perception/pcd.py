"""PCD files (Point Cloud Library, 0.7), in text and in binary: the points' columns. Strangers' files are data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.perception.files import MOST, FormatError, content

HEADER = 10_000  # bytes
FIELDS = 100
KINDS = {"F": "f", "I": "i", "U": "u"}
SIZES = {"f": (4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8)}
KEYS = ("VERSION", "FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA")


def read_pcd(path: str | Path) -> dict[str, NDArray[np.float64]]:
    """Columns by name (n,); "rgb" as whole numbers, red the highest of three bytes. ValueError for what is none."""
    path, data = Path(path), content(path)
    told: dict[str, list[str]] = {}
    at = 0
    while "DATA" not in told:
        end = data.find(b"\n", at, HEADER)
        if end < 0:
            raise FormatError(path, "this is no PCD file: there is no line DATA")
        words = data[at:end].decode("ascii", "replace").split()
        at = end + 1
        if words and not words[0].startswith("#"):
            if words[0] not in KEYS or words[0] in told:
                raise FormatError(path, f"this is no PCD file: it has the line {words[0]!r:.40}")
            told[words[0]] = words[1:]
    row, names = _row(path, told)
    count = _count(path, told)
    match told["DATA"]:
        case ["ascii"]:
            return _text(path, data[at:], row, names, count)
        case ["binary"]:
            if at + count * row.itemsize > len(data):
                raise FormatError(path, f"it ends before its {count} points")
            table = np.frombuffer(data, row, count, at)
            return {name: _plain(name, table[f"c{k}"]) for k, name in names.items()}
    raise FormatError(path, f"DATA {' '.join(told['DATA'])!r:.40} is not read: save it as binary or ascii")


def _row(path: Path, told: Mapping[str, list[str]]) -> tuple[np.dtype[np.void], dict[int, str]]:
    """The type of a point, with columns c0, c1 ...; the names of those of one number."""
    names = told.get("FIELDS", [])
    counts = told.get("COUNT", ["1"] * len(names))
    lists = (names, told.get("SIZE", []), told.get("TYPE", []), counts)
    if not 1 <= len(names) <= FIELDS or {len(words) for words in lists} != {len(names)}:
        raise FormatError(path, "FIELDS, SIZE, TYPE and COUNT do not fit each other")
    kinds: list[tuple[str, str, tuple[int, ...]]] = []
    for k, (name, size, kind, count) in enumerate(zip(*lists, strict=True)):
        letter = KINDS.get(kind, "")
        good = letter and size.isdecimal() and int(size[:3]) in SIZES[letter]
        if not (good and count.isdecimal() and 1 <= int(count[:6]) <= 10_000):
            raise FormatError(
                path, f"the field {name!r:.40} has type {kind!r:.9}, size {size!r:.9}, count {count!r:.9}"
            )
        kinds.append((f"c{k}", f"<{letter}{size}", () if count == "1" else (int(count),)))
    plain = {k: name for k, name in enumerate(names) if counts[k] == "1" and name != "_"}
    if len(set(plain.values())) < len(plain):
        raise FormatError(path, "a field is there twice")
    return np.dtype(kinds), plain


def _count(path: Path, told: Mapping[str, list[str]]) -> int:
    """How many points."""
    numbers = []
    for key in ("WIDTH", "HEIGHT", "POINTS"):
        word = " ".join(told.get(key, ["?"]))
        if not (word.isdecimal() and int(word[:12]) <= MOST):
            raise FormatError(path, f"{key} must be a number up to {MOST}, got {word!r:.40}")
        numbers.append(int(word))
    width, height, points = numbers
    if width * height != points:
        raise FormatError(path, f"WIDTH {width} times HEIGHT {height} is not POINTS {points}")
    return points


def _plain(name: str, column: NDArray[np.generic]) -> NDArray[np.float64]:
    """Colours are whole numbers, also where they are packed into the bits of a float."""
    if name in ("rgb", "rgba") and column.dtype.str[1:] == "f4":
        column = np.ascontiguousarray(column).view("<u4")
    with np.errstate(invalid="ignore"):  # some NaN
        return column.astype(np.float64)


def _text(
    path: Path, data: bytes, row: np.dtype[np.void], names: Mapping[int, str], count: int
) -> dict[str, NDArray[np.float64]]:
    places = np.cumsum([0, *(int(np.prod(row[k].shape)) for k in range(len(row.names or ())))])
    words = [line.split() for line in data.splitlines()[:count]]
    if len(words) < count or any(len(line) != places[-1] for line in words):
        raise FormatError(path, f"it has fewer than {count} points of {places[-1]} numbers")
    made = {}
    for k, name in names.items():
        try:
            column = np.array([line[places[k]] for line in words], np.float64)
        except ValueError:
            raise FormatError(path, f"{name!r:.40} of a point is no number") from None
        packed = name in ("rgb", "rgba") and row[k].str[1:] == "f4"
        with np.errstate(all="ignore"):  # of numbers that no float holds
            made[name] = _plain(name, column.astype("<f4")) if packed else column
    return made


def pcd_bytes(columns: Mapping[str, NDArray[np.generic]]) -> bytes:
    """A binary file of these columns (n,)."""
    count, kinds = len(next(iter(columns.values()))), {name: c.dtype.str[1:] for name, c in columns.items()}
    table = np.zeros(count, [(name, "<" + kind) for name, kind in kinds.items()])
    for name, column in columns.items():
        table[name] = column
    letters = {"f": "F", "i": "I", "u": "U"}
    lines = [
        "# .PCD v0.7 - Point Cloud Data file format",
        "VERSION 0.7",
        "FIELDS " + " ".join(kinds),
        "SIZE " + " ".join(kind[1:] for kind in kinds.values()),
        "TYPE " + " ".join(letters[kind[0]] for kind in kinds.values()),
        "COUNT " + " ".join("1" for _ in kinds),
        *(f"WIDTH {count}", "HEIGHT 1", "VIEWPOINT 0 0 0 1 0 0 0", f"POINTS {count}", "DATA binary", ""),
    ]
    return "\n".join(lines).encode() + table.tobytes()
