"""Occupancy maps as ROS's map_server writes them: a YAML file, and a picture of what is free beside it.

Both may be a stranger's: sizes are checked before anything is read, YAML makes plain values only, and the picture lies
in the YAML file's folder or below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from sim import plain_yaml

TEXT = 8000  # bytes of a YAML file at most
PIXELS, SIDE = 4096 * 4096, 16_384  # of a picture at most, in all and along a side
FINEST, COARSEST = 0.01, 0.5  # m of a pixel
FARTHEST = 1e5  # m of its origin
MODES = ("trinary", "scale", "raw")
FORMATS = ("PNG", "PPM")  # as Pillow calls them: PGM is one of PPM's


@dataclass(frozen=True, eq=False)
class Occupancy:
    """What a map says. Its corner is that of the last row's first pixel: rows of pictures go down, y goes up."""

    name: str
    free: NDArray[np.bool_]  # (rows, columns); what is unknown is not free
    resolution: float  # m of a pixel
    origin: tuple[float, float, float]  # m and rad of the corner, in the map's frame


def _number(name: str, key: str, value: Any, low: float, high: float) -> float:
    """A number of the YAML file; words too, as YAML 1.1 takes 5e-2 for one."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{name}: {key} is no number")
    if not low <= number <= high:  # nor is what is not finite
        raise ValueError(f"{name}: {key} must be between {low:g} and {high:g}, got {max(min(number, 1e99), -1e99):.6g}")
    return float(number)


def _settings(path: str | Path) -> dict[str, Any]:
    try:
        found = plain_yaml.read(path, TEXT)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read as a map: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: a map's YAML file holds keys and values: image, resolution, origin ...")
    if missing := [key for key in ("image", "resolution", "origin") if key not in found]:
        raise ValueError(f"{path}: has no {', '.join(missing)}")
    return found


def _picture(path: str | Path, image: Any) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Shades (rows, columns) of 0 to 255, and where the picture is opaque."""
    if not isinstance(image, str):
        raise ValueError(f"{path}: image is no file's name")
    folder = Path(path).resolve().parent
    try:
        file = (folder / image).resolve()
        inside, there = file.is_relative_to(folder), file.is_file()
    except (OSError, ValueError, RuntimeError):  # a name too long, a null byte, a circle of links
        inside, there = True, False
    if not inside:
        raise ValueError(f"{path}: its image {image[:200]!r} must be in the same folder, or below")
    if not there:
        raise ValueError(f"{path}: there is no image {image[:200]!r} beside it")
    try:
        with Image.open(file, formats=FORMATS) as picture:
            columns, rows = picture.size
            if columns * rows > PIXELS or max(columns, rows) > SIDE:  # before it is unpacked
                raise ValueError(
                    f"{path}: its image has {columns} x {rows} pixels; at most {PIXELS}, and {SIDE} along a side"
                )
            if picture.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
                raise ValueError(f"{path}: its image must have 8 bits per channel, not those of mode {picture.mode}")
            colours = np.asarray(picture.convert("RGBA" if picture.mode in ("P", "RGB", "RGBA") else "LA"))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise ValueError(f"{path}: its image is no whole PNG or PGM: {str(error)[:200]}") from None
    shades = colours[..., 0] if colours.shape[2] == 2 else colours[..., :3].mean(axis=2, dtype=np.float32)
    return np.round(shades).astype(np.uint8), colours[..., -1] == 255


def read_occupancy(path: str | Path) -> Occupancy:
    """A map of map_server's: image, resolution and origin; negate, mode and the thresholds have its defaults.

    Free is what is less occupied than free_thresh. ValueError that names the file where it is no map.
    """
    name, found = str(path), _settings(path)
    resolution = _number(name, "resolution", found["resolution"], FINEST, COARSEST)
    origin = found["origin"]
    if not isinstance(origin, list) or len(origin) != 3:
        raise ValueError(f"{name}: origin must be three numbers: x and y in m, yaw in rad")
    limits = (FARTHEST, FARTHEST, 2.0 * math.pi)
    x, y, yaw = (
        _number(name, f"origin's {which}", value, -most, most)
        for which, value, most in zip(("x", "y", "yaw"), origin, limits, strict=True)
    )
    threshold = _number(name, "free_thresh", found.get("free_thresh", 0.196), 0.0, 1.0)
    if _number(name, "occupied_thresh", found.get("occupied_thresh", 0.65), 0.0, 1.0) < threshold:
        raise ValueError(f"{name}: occupied_thresh must not be below free_thresh")
    negate, mode = found.get("negate", 0), found.get("mode", "trinary")
    if not isinstance(negate, bool | int) or negate not in (0, 1):
        raise ValueError(f"{name}: negate must be 0 or 1")
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"{name}: mode must be one of {', '.join(MODES)}")
    shades, opaque = _picture(path, found["image"])
    dark = shades if negate or mode == "raw" else 255 - shades
    occupied = dark / np.float32(100.0 if mode == "raw" else 255.0)
    return Occupancy(name, (occupied < threshold) & opaque, resolution, (x, y, yaw))
