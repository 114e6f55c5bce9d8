"""Pictures of cameras <-> PNG files and H.264 films. (steps, height, width, 3) uint8."""

from __future__ import annotations

import contextlib
import io
import math
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from policies.datasets.bounds import PICTURES
from policies.datasets.features import Array, DatasetError

# A key frame at every second picture: any moment decodes at once. No B-frames: the first picture is at time zero.
H264 = ["-c:v", "libx264", "-preset", "fast", "-crf", "18", "-g", "2", "-bf", "0", "-pix_fmt", "yuv420p"]
PATIENCE = 600.0  # s that a film may take
LONGEST = 10_000  # characters of what ffmpeg says
RAW = ["-f", "rawvideo", "-pix_fmt", "rgb24"]


def to_png(picture: Array) -> bytes:
    """(height, width, 3) uint8, without loss."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "png", compress_level=4)
    return file.getvalue()


def from_png(pictures: Iterable[bytes], shape: tuple[int, ...]) -> Array:
    """(n, *shape). Raises DatasetError when one is no picture, or of another size: found before it is unpacked."""
    from PIL import Image, UnidentifiedImageError

    found = []
    try:
        for each in pictures:
            picture = Image.open(io.BytesIO(each), formats=("PNG", "JPEG"))
            if (picture.height, picture.width, 3) != shape:
                raise DatasetError(f"pictures have shape {(picture.height, picture.width, 3)}, not {shape}")
            found.append(np.asarray(picture.convert("RGB")))
        return np.stack(found)
    except DatasetError:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError, TypeError) as error:
        raise DatasetError(f"a picture is damaged: {error}") from None


def size_of(content: bytes) -> tuple[int, int]:
    """(height, width) of a PNG or JPEG by its head: nothing is unpacked. DatasetError when it is neither."""
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(content), formats=("PNG", "JPEG"))
        return picture.height, picture.width
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError, TypeError) as error:
        raise DatasetError(f"a picture is damaged, or neither PNG nor JPEG: {error}") from None


def _ffmpeg(arguments: list[str], sent: bytes | None = None, most: int = 0) -> bytes:
    """What it writes: of a film's decoder no more than `most` bytes and one."""
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-nostdin" if sent is None else "-y", *arguments]
    with tempfile.TemporaryFile() as complaints:
        source = subprocess.DEVNULL if sent is None else subprocess.PIPE
        with subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=complaints) as process:
            ending = threading.Timer(PATIENCE, process.kill)
            ending.start()
            try:
                if sent is not None and process.stdin is not None:
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.write(sent)
                        process.stdin.close()
                assert process.stdout is not None
                made = process.stdout.read(most + 1)
                if len(made) > most:
                    process.kill()
            finally:
                process.wait()
                ending.cancel()
        complaints.seek(0)
        said = complaints.read(LONGEST).decode(errors="replace").strip().splitlines()
    if process.returncode and len(made) <= most:
        raise OSError(f"ffmpeg failed: {said[-1] if said else 'it says nothing'}")
    return made


def write_film(path: Path, pictures: Array, fps: int) -> None:
    """An mp4 in which picture i is shown at i / fps. Raises OSError when it cannot be written."""
    steps, height, width, _ = pictures.shape
    if height % 2 or width % 2:
        raise DatasetError(f"a film needs an even width and height, got {width} x {height}; choose dtype 'image'")
    sent = [*RAW, "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    _ffmpeg([*sent, *H264, "-frames:v", str(steps), str(path)], np.ascontiguousarray(pictures).tobytes())


def read_film(path: Path, start: float, steps: int, fps: float, shape: tuple[int, ...]) -> Array:
    """`steps` pictures from the time `start` (s) on. Raises DatasetError when the film is damaged or too short."""
    size = steps * int(np.prod(shape))
    if not (math.isfinite(start) and size <= PICTURES):
        raise DatasetError(f"{path}: {steps} pictures of shape {shape} from {start:g} s on are too many to read")
    seek = ["-ss", f"{max(0.0, start - 0.5 / fps):.6f}"]  # half a picture early: a rounded time cannot skip it
    # Whatever the file is named, it is an mp4: no list of other files or addresses, which ffmpeg would follow.
    film = ["-protocol_whitelist", "file", "-f", "mov", *seek, "-i", f"file:{path}"]
    try:
        raw = _ffmpeg([*film, "-frames:v", str(steps), *RAW, "-fps_mode", "passthrough", "-"], most=size)
    except OSError as error:
        raise DatasetError(f"{path} is damaged: {error}") from None
    if len(raw) != size:
        pictures = len(raw) / np.prod(shape)
        raise DatasetError(f"{path}: {pictures:g} pictures of shape {shape} from {start:g} s on, but {steps} needed")
    return np.frombuffer(bytearray(raw), np.uint8).reshape(steps, *shape)  # bytes could not be written to
