"""Meshes from .obj, .stl and .ply files, and to .ply. Strangers' files are data: what they refer to is not opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.perception.files import MOST, FormatError, content, replace
from sim.perception.meshes import Double, Mesh
from sim.perception.ply import CORNERS, fans, ply_bytes, read_ply

Numbers = NDArray[np.int64]
SUFFIXES = (".obj", ".stl", ".ply")
STL_HEADER, STL_TRIANGLE = 84, 50  # bytes


def read_mesh(path: str | Path, scale: float = 1.0) -> Mesh:
    """`scale`: m in the file's unit, 0.001 for millimetres. ValueError in one line for what is none."""
    path = Path(path)
    readers = {".obj": _obj, ".stl": _stl, ".ply": _ply}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise ValueError(f"{path}: the name of a mesh's file ends in {', '.join(SUFFIXES)}")
    vertices, triangles = readers[suffix](path)
    try:
        return Mesh(vertices * scale, triangles)
    except ValueError as error:
        raise FormatError(path, str(error)) from None


def save_mesh(path: str | Path, mesh: Mesh) -> None:
    """As .ply, in double precision."""
    path = Path(path)
    if path.suffix.lower() != ".ply":
        raise ValueError(f"{path}: meshes are saved as .ply")
    replace(path, ply_bytes(dict(zip("xyz", mesh.vertices.T, strict=True)), mesh.triangles))


def _ply(path: Path) -> tuple[Double, Numbers]:
    found = read_ply(path)
    if missing := [name for name in "xyz" if name not in found.vertices]:
        raise FormatError(path, f"its vertices have no {', '.join(missing)}")
    return np.stack([found.vertices[name] for name in "xyz"], axis=1), found.triangles


def _obj(path: Path) -> tuple[Double, Numbers]:
    """Wavefront's: vertices and faces; materials, textures and groups are passed over."""
    vertices: list[tuple[float, ...]] = []
    faces: list[tuple[int, ...]] = []
    for number, line in enumerate(content(path).splitlines(), 1):
        words = line.split()
        try:
            if words[:1] == [b"v"]:
                x, y, z = (float(word) for word in words[1:4])
                vertices.append((x, y, z))
            elif words[:1] == [b"f"] and len(words) <= CORNERS:
                corners = [int(word.partition(b"/")[0]) for word in words[1:]]
                faces.append(tuple(_number(k, len(vertices)) for k in corners))
        except ValueError:
            raise FormatError(path, f"line {number} is no {'vertex' if words[0] == b'v' else 'face'}") from None
        if max(len(vertices), len(faces)) > MOST:
            raise FormatError(path, f"more than {MOST} vertices or faces")
    return np.array(vertices, np.float64).reshape(-1, 3), fans(faces)


def _number(told: int, before: int) -> int:
    """Of a vertex, from 0, where files count from 1, or back from the last one; -1: of none."""
    number = told - 1 if told > 0 else before + told
    return number if told and 0 <= number <= MOST else -1


def _stl(path: Path) -> tuple[Double, Numbers]:
    data = content(path)
    count = int.from_bytes(data[80:STL_HEADER], "little")
    if len(data) == STL_HEADER + STL_TRIANGLE * count:  # some binary files begin with "solid", too
        kind = np.dtype([("normal", "<f4", (3,)), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
        table = np.frombuffer(data, kind, count, STL_HEADER)
        vertices = table["corners"].astype(np.float64).reshape(-1, 3)
    elif data.lstrip().startswith(b"solid"):
        words = [line.split() for line in data.splitlines()]
        try:
            corners = [[float(word) for word in row[1:4]] for row in words if row[:1] == [b"vertex"]]
            vertices = np.array(corners, np.float64).reshape(-1, 3)
        except ValueError:
            raise FormatError(path, "a line of a vertex has no three numbers") from None
    else:
        raise FormatError(path, "this is no STL file")
    if len(vertices) % 3:
        raise FormatError(path, "its last triangle is not whole")
    return vertices, np.arange(len(vertices)).reshape(-1, 3)
