"""Pictures of cameras <-> PNG files and H.264 films. (steps, height, width, 3) uint8."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from policies.datasets.features import Array, DatasetError

# A key frame at every second picture: any moment decodes at once. No B-frames: the first picture is at time zero.
H264 = ["-c:v", "libx264", "-preset", "fast", "-crf", "18", "-g", "2", "-bf", "0", "-pix_fmt", "yuv420p"]
RAW = ["-f", "rawvideo", "-pix_fmt", "rgb24"]


def to_png(picture: Array) -> bytes:
    """(height, width, 3) uint8, without loss."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "png", compress_level=4)
    return file.getvalue()


def from_png(pictures: Iterable[bytes]) -> Array:
    """Raises DatasetError when one is no picture, or they differ in size."""
    from PIL import Image, UnidentifiedImageError

    try:
        return np.stack([np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in pictures])
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise DatasetError(f"a picture is damaged: {error}") from None


def _ffmpeg(arguments: list[str], sent: bytes | None = None) -> bytes:
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-nostdin" if sent is None else "-y", *arguments]
    done = subprocess.run(command, input=sent, stdin=subprocess.DEVNULL if sent is None else None, capture_output=True)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise OSError(f"ffmpeg failed: {lines[-1]}")
    return done.stdout


def write_film(path: Path, pictures: Array, fps: int) -> None:
    """An mp4 in which picture i is shown at i / fps. Raises OSError when it cannot be written."""
    steps, height, width, _ = pictures.shape
    if height % 2 or width % 2:
        raise DatasetError(f"a film needs an even width and height, got {width} x {height}; choose dtype 'image'")
    sent = [*RAW, "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    _ffmpeg([*sent, *H264, "-frames:v", str(steps), str(path)], np.ascontiguousarray(pictures).tobytes())


def read_film(path: Path, start: float, steps: int, fps: int, shape: tuple[int, ...]) -> Array:
    """`steps` pictures from the time `start` (s) on. Raises DatasetError when the film is damaged or too short."""
    seek = ["-ss", f"{max(0.0, start - 0.5 / fps):.6f}"]  # half a picture early: a rounded time cannot skip it
    try:
        raw = _ffmpeg([*seek, "-i", str(path), "-frames:v", str(steps), *RAW, "-fps_mode", "passthrough", "-"])
    except OSError as error:
        raise DatasetError(f"{path} is damaged: {error}") from None
    if len(raw) != steps * int(np.prod(shape)):
        pictures = len(raw) / np.prod(shape)
        raise DatasetError(f"{path}: {pictures:g} pictures of shape {shape} from {start:g} s on, but {steps} needed")
    return np.frombuffer(bytearray(raw), np.uint8).reshape(steps, *shape)  # bytes could not be written to
