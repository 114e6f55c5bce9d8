"""Clouds of points, saved to and loaded from .ply, .pcd and .xyz files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.perception.files import MOST, FormatError, content, replace
from sim.perception.meshes import Double
from sim.perception.pcd import pcd_bytes, read_pcd
from sim.perception.ply import ply_bytes, read_ply

SUFFIXES = (".ply", ".pcd", ".xyz")
AXES, NORMALS, COLOURS = ("x", "y", "z"), ("nx", "ny", "nz"), ("red", "green", "blue")
PCD_NORMALS = ("normal_x", "normal_y", "normal_z")


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points (n, 3) in m, with normals (n, 3) of length 1 and colours (n, 3) uint8 where there are any."""

    points: Double
    normals: Double | None = None
    colours: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        points = np.asarray(self.points, np.float64)
        if points.ndim != 2 or points.shape[1] != 3:
            raise ValueError(f"points are (count, 3), got {points.shape}")
        if not np.isfinite(points).all():
            raise ValueError(f"{(~np.isfinite(points).all(axis=1)).sum()} points are not finite")
        object.__setattr__(self, "points", points)
        for name, value in (("normals", self.normals), ("colours", self.colours)):
            if value is not None and np.shape(value) != points.shape:
                raise ValueError(f"{name} must be {points.shape}, as the points are, got {np.shape(value)}")
        if self.normals is not None:
            length = np.linalg.norm(self.normals, axis=1)
            if not (np.abs(length - 1.0) < 1e-3).all():  # nor NaN
                raise ValueError("normals have length 1")
            object.__setattr__(self, "normals", np.asarray(self.normals, np.float64))
        if self.colours is not None and np.asarray(self.colours).dtype != np.uint8:
            raise ValueError("colours are uint8, 0 to 255")

    def __len__(self) -> int:
        return len(self.points)

    def moved(self, pose: Any) -> Cloud:
        """In the world, of one given in axes with this pose (4, 4)."""
        pose = np.asarray(pose, np.float64)
        normals = None if self.normals is None else self.normals @ pose[:3, :3].T
        return Cloud(self.points @ pose[:3, :3].T + pose[:3, 3], normals, self.colours)


def save(path: str | Path, cloud: Cloud) -> None:
    """As the file's name says: .ply keeps double precision, .pcd single (as PCL's points are), .xyz points alone."""
    path = Path(path)
    if len(cloud) > MOST:
        raise ValueError(f"{path}: a file holds at most {MOST} points, got {len(cloud)}")
    replace(path, {".ply": _ply, ".pcd": _pcd, ".xyz": _xyz}[_suffix(path)](cloud))


def load(path: str | Path, skip_invalid: bool = False) -> Cloud:
    """`skip_invalid` leaves out points that are not finite, as depth cameras' files have them.

    ValueError in one line for what is no such file, or has such points. Columns that a cloud lacks are passed over.
    """
    path = Path(path)
    suffix = _suffix(path)
    columns = _read_xyz(path) if suffix == ".xyz" else read_pcd(path) if suffix == ".pcd" else read_ply(path).vertices
    if missing := [name for name in AXES if name not in columns]:
        raise FormatError(path, f"its points have no {', '.join(missing)}")
    points = np.stack([columns[name] for name in AXES], axis=1)
    good: NDArray[np.bool_] = np.asarray(np.isfinite(points).all(axis=1))
    if not good.all() and not skip_invalid:
        raise FormatError(path, f"{(~good).sum()} of its {len(good)} points are not finite: see skip_invalid")
    normals = next((_directions(columns, names, good) for names in (NORMALS, PCD_NORMALS) if names[0] in columns), None)
    colours = _colours(columns)
    return Cloud(points[good], normals, None if colours is None else colours[good])


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: the name of a cloud's file ends in {', '.join(SUFFIXES)}")
    return suffix


def _stacked(columns: Mapping[str, Double], names: tuple[str, ...]) -> Double | None:
    return np.stack([columns[n] for n in names], axis=1) if all(n in columns for n in names) else None


def _directions(columns: Mapping[str, Double], names: tuple[str, ...], good: NDArray[np.bool_]) -> Double | None:
    """Of length 1, of the good ones; None where one of them has none."""
    stacked = _stacked(columns, names)
    if stacked is None:
        return None
    kept = stacked[good]
    if not (np.abs(kept) < 1e3).all():  # nor NaN
        return None
    length = np.linalg.norm(kept, axis=1, keepdims=True)
    return kept / length if (length > 1e-3).all() else None


def _colours(columns: Mapping[str, Double]) -> NDArray[np.uint8] | None:
    stacked = _stacked(columns, COLOURS)
    packed = columns.get("rgb", columns.get("rgba"))
    if stacked is None and packed is not None:
        whole = np.where(np.isfinite(packed), packed, 0.0).astype(np.int64)
        stacked = np.stack([(whole >> shift) & 255 for shift in (16, 8, 0)], axis=1).astype(np.float64)
    if stacked is None or not ((stacked >= 0.0) & (stacked <= 255.0)).all():  # nor NaN
        return None
    return np.rint(stacked).astype(np.uint8)


def _of(names: tuple[str, ...], values: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    return dict(zip(names, values.T, strict=True))


def _ply(cloud: Cloud) -> bytes:
    columns = _of(AXES, cloud.points)
    if cloud.normals is not None:
        columns |= _of(NORMALS, cloud.normals)
    if cloud.colours is not None:
        columns |= _of(COLOURS, cloud.colours)
    return ply_bytes(columns)


def _pcd(cloud: Cloud) -> bytes:
    columns = _of(AXES, cloud.points.astype(np.float32))
    if cloud.normals is not None:
        columns |= _of(PCD_NORMALS, cloud.normals.astype(np.float32))
    if cloud.colours is not None:
        red, green, blue = cloud.colours.astype(np.uint32).T
        columns["rgb"] = (red << 16 | green << 8 | blue).view(np.float32)  # as PCL packs it
    return pcd_bytes(columns)


def _xyz(cloud: Cloud) -> bytes:
    return "".join(f"{x:.17g} {y:.17g} {z:.17g}\n" for x, y, z in cloud.points).encode()


def _read_xyz(path: Path) -> dict[str, Double]:
    """Three numbers to a line, separated by blanks or commas; what follows them is passed over."""
    rows = []
    for number, line in enumerate(content(path).splitlines(), 1):
        words = line.replace(b",", b" ").split()
        if not words or words[0].startswith(b"#"):
            continue
        try:
            x, y, z = (float(word) for word in words[:3])
        except ValueError:
            raise FormatError(path, f"line {number} has no three numbers") from None
        rows.append((x, y, z))
        if len(rows) > MOST:
            raise FormatError(path, f"more than {MOST} points")
    return dict(zip(AXES, np.array(rows, np.float64).reshape(-1, 3).T, strict=True))
