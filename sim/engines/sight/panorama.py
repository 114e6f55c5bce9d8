"""What lies around a pitch: pictures of all directions, drawn at random, or of a file that somebody has.

Tables (count, rows, columns, 3), 0..1, as `camera.looked_up` reads them. Columns go around, from straight along x on,
to the left. The lowest row is the horizon; rows go up with the tangent t of the elevation: t until 45 degrees, above
that 2 - 1/t, which is 2 overhead. The highest row is at `top`: 1 or 2.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.registry import check_named

Array = NDArray[np.float32]
Picture = NDArray[np.uint8]

SUFFIXES = (".png", ".jpg", ".jpeg", ".npy", ".ppm")
FEWEST, MOST = 8, 8192  # rows of a file's picture
OVERHEAD = 2.0  # `top` of a file's
SAMPLES = 8  # of the file's picture each way, for one element of the table
COLUMNS = (64, 2048)  # of a table, at least and at most


def landscapes(count: int, rows: int = 16, columns: int = 128, seed: int = 0) -> Array:
    """Panoramas up to 45 degrees: a hall's or a landscape's light and dark things before a plain sky."""
    rng, made = np.random.default_rng(seed), np.empty((count, rows, columns, 3), np.float32)
    height = np.linspace(1.0, 0.0, rows)[:, None, None]

    def colour() -> Array:
        """Mostly pale."""
        drawn = rng.uniform(0.05, 0.9) + rng.uniform(-0.1, 0.1, 3) * (4.0 if rng.random() < 0.2 else 1.0)
        return drawn.astype(np.float32)

    for k in range(count):
        made[k] = rng.uniform(0.4, 0.95) + rng.uniform(-0.1, 0.1, 3) + rng.uniform(-0.2, 0.2, 3) * height
        for _ in range(24):
            start, wide, tall = rng.integers(columns), int(rng.integers(3, 24)), rng.uniform(0.1, 0.9)
            where = np.arange(start, start + wide) % columns
            made[k][:, where] = np.where(height < tall, colour(), made[k][:, where])
    return np.clip(made, 0.0, 1.0)


def loaded(path: str) -> Picture:
    """The equirectangular picture (rows, 2 rows, 3) of a file: 360 degrees across, zenith on top, its middle along x.

    PNG and JPEG need pillow. A .npy file holds uint8 (rows, 2 rows, 3), a .ppm is binary (P6). ValueError, in one line,
    for anything else; StrangerError for a path that only a file names (`sim.registry.names_from`).
    """
    check_named("panorama", path)
    file = Path(path).expanduser()
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"panorama {path}: a file of this name is none; known are {', '.join(SUFFIXES)}")
    if not file.is_file():
        raise ValueError(f"panorama {path}: there is no such file")
    reader = {".npy": _from_npy, ".ppm": _from_ppm}.get(suffix, _from_image)
    return reader(path, file)


def _check(path: str, rows: int, columns: int) -> None:
    if not (FEWEST <= rows <= MOST and columns == 2 * rows):
        raise ValueError(
            f"panorama {path}: {columns} x {rows} pixels, but all directions are twice as wide as high, "
            f"{2 * FEWEST} x {FEWEST} to {2 * MOST} x {MOST}"
        )


def _from_image(path: str, file: Path) -> Picture:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file, formats=("PNG", "JPEG")) as picture:
            _check(path, picture.height, picture.width)  # before it is unpacked
            return np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise ValueError(f"panorama {path}: no picture in PNG or JPEG: {error}") from None


def _from_npy(path: str, file: Path) -> Picture:
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"panorama {path}: no array of numpy's: {error}") from None
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] != 3:
        what = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else "an archive"
        raise ValueError(f"panorama {path}: {what}, but needs uint8 (rows, 2 rows, 3)")
    _check(path, *found.shape[:2])
    return np.array(found)


def _from_ppm(path: str, file: Path) -> Picture:
    with file.open("rb") as stream:
        words: list[bytes] = []
        while len(words) < 4 and (line := stream.readline(200)):
            words += line.partition(b"#")[0].split()
        if len(words) != 4 or words[0] != b"P6" or words[3] != b"255" or not all(w.isdigit() for w in words[1:3]):
            raise ValueError(f"panorama {path}: no binary PPM (P6) of 8 bits")
        columns, rows = int(words[1][:9]), int(words[2][:9])
        _check(path, rows, columns)
        pixels = stream.read(3 * rows * columns)
    if len(pixels) < 3 * rows * columns:
        raise ValueError(f"panorama {path}: cut off after {len(pixels)} of {3 * rows * columns} bytes")
    return np.frombuffer(pixels, np.uint8).reshape(rows, columns, 3).copy()


def table(picture: Picture, degrees: float) -> Array:
    """The table (1, rows, columns, 3) up to overhead of an equirectangular picture, `degrees` to an element.

    Each is the mean of some of the picture's pixels there.
    """
    columns = int(np.clip(math.ceil(360.0 / degrees), *COLUMNS))
    rows = max(2, round(OVERHEAD * columns / (2.0 * math.pi)))
    height, width = picture.shape[:2]
    step = (np.arange(SAMPLES) + 0.5) / SAMPLES
    around = (np.arange(columns)[:, None] + step).reshape(-1) / columns  # of a turn, to the left of x
    high = OVERHEAD * (rows - (np.arange(rows)[:, None] + step).reshape(-1)) / rows
    tangent = np.where(high < 1.0, high, 1.0 / np.maximum(OVERHEAD - high, 1e-9))
    row = np.clip(((0.5 - np.arctan(tangent) / math.pi) * height).astype(int), 0, height - 1)
    column = np.floor((0.5 - around) * width).astype(int) % width
    made = np.empty((1, rows, columns, 3), np.float32)
    for k in range(rows):  # a row of the table at a time: a large picture's samples fill the memory
        some = picture[row[k * SAMPLES : (k + 1) * SAMPLES]][:, column].astype(np.float32)
        made[0, k] = some.reshape(SAMPLES, columns, SAMPLES, 3).mean(axis=(0, 2)) / 255.0
    return made
