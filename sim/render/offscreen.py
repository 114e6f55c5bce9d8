"""Films recorded flights, without a display.

MuJoCo draws where OpenGL works without one (EGL, or what MUJOCO_GL names); elsewhere the renderer built in ("raster"),
which needs no graphics library, draws the same scene.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.render import scene as scenes
from sim.render import software
from sim.render.caption import BAND, Caption, captioned
from sim.render.scene import Film, film
from sim.robots.quadrotors import Quadrotor

Frame = NDArray[np.uint8]
Floats = NDArray[np.floating]

SIZE = (640, 480)  # px, with the caption
FPS = 25
BACKENDS = ("auto", "raster", "mujoco")


def render_flight(
    path: str | Path,
    position: Floats,
    quaternion: Floats,
    target: Floats,
    robot: Quadrotor,
    rate_hz: float,
    fps: int = FPS,
    size: tuple[int, int] = SIZE,
    backend: str = "auto",
    motors: Floats | None = None,
    together: bool = True,
    caption: Caption | None = None,
    openings: NDArray[np.float64] | None = None,
    due: NDArray[np.int64] | None = None,
    pillars: NDArray[np.float64] | None = None,
) -> str:
    """Write an mp4 of n vehicles in one picture; returns the name of the renderer that drew it.

    `position` (steps, n, 3) m and `quaternion` (steps, n, 4) w x y z, body to world, were recorded at `rate_hz`;
    `target` is (steps, n, 3) m; `motors` (steps, n, rotors), 0 to 1, turn the rotors. Vehicles that were not `together`
    in a world are drawn beside one another, until all have come to rest. `size` (width, height) is in pixels, both
    even, with the caption. Of `openings` (k, 4, 3) m the one of the number `due` (steps,) comes next; `pillars` (m, 3),
    x, y and radius in m, stand around. The file appears when it is complete.
    """
    if not together:
        place, goal = scenes.apart(position.astype(np.float64), target.astype(np.float64))
        steps = scenes.decided(place, goal, rate_hz)
        position, target, quaternion = place[:steps], goal[:steps], quaternion[:steps]
        motors = None if motors is None else motors[:steps]
    drawn = (size[0], size[1] - BAND) if caption else size
    shown = film(position, quaternion, target, robot, rate_hz, fps, drawn, motors, openings, due, pillars)
    used, pictures = _begun(shown, backend)
    write_film(path, captioned(pictures, caption, fps) if caption else pictures, fps)
    return used


def _begun(shown: Film, backend: str) -> tuple[str, Iterator[Frame]]:
    """Who draws, and the pictures: with "auto" MuJoCo, if its first picture comes."""
    if backend != "auto":
        return backend, frames(shown, backend)
    try:
        pictures = frames(shown, "mujoco")
        first = next(pictures)
    except (RuntimeError, ImportError):
        return "raster", frames(shown, "raster")
    return "mujoco", itertools.chain([first], pictures)


def write_film(path: str | Path, pictures: Iterable[Frame], fps: int) -> str:
    """Write an mp4 of pictures (height, width, 3), both sides even; it appears when it is complete. Its path.

    Raises OSError, which names the file and says what ffmpeg says.
    """
    path, pictures = Path(path), iter(pictures)
    first = next(pictures)
    size = first.shape[1], first.shape[0]
    if size[0] % 2 or size[1] % 2:
        raise ValueError(f"an mp4 needs an even width and height, got {size[0]} x {size[1]}")
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: it is there, and is no file")  # /dev/null is not replaced by a film
    partial = path.with_name(f".{path.stem}.partial.mp4")
    try:
        complaint = _encode(_ffmpeg(partial, size, fps), itertools.chain([first], pictures))
        if complaint:
            raise OSError(f"{path}: {complaint.replace(str(partial), str(path))}")
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return str(path)


def _ffmpeg(path: Path, size: tuple[int, int], fps: int) -> list[str]:
    """The command that reads raw pictures (width, height) from its standard input."""
    import imageio_ffmpeg

    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{size[0]}x{size[1]}", "-r", str(fps), "-i", "-"]
    coded = ["-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", "-preset", "veryfast", "-crf", "17"]
    return [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *raw, *coded, path.absolute().as_posix()]


def _encode(command: list[str], pictures: Iterable[Frame]) -> str:
    """Send the pictures; why it failed, or nothing."""
    with tempfile.TemporaryFile() as said:  # not a pipe, which could fill while we write
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        assert process.stdin is not None
        try:
            for picture in pictures:
                process.stdin.write(np.ascontiguousarray(picture).data)
        except BrokenPipeError:
            pass  # it has ended, and says why
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if process.returncode < 0:
        return f"ffmpeg was ended by {signal.Signals(-process.returncode).name}"
    return (lines or ["ffmpeg failed"])[0].rpartition("] ")[2] if process.returncode else ""


def frames(shown: Film, backend: str = "raster") -> Iterator[Frame]:
    """All frames of the film, (height, width, 3) uint8 each. RuntimeError where MuJoCo is to draw and cannot."""
    if backend not in BACKENDS[1:]:
        raise ValueError(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
    if backend == "raster":
        return software.frames(shown)
    from sim.render.stage import Stage

    return Stage(shown).frames()


def picture(robot: Quadrotor, position: Any, quaternion: Any, target: Any, height: int, width: int) -> Frame:
    """One moment of one vehicle or n: position and target (3,) or (n, 3) m, quaternion (4,) or (n, 4) body to world."""
    pose, turn, goal = (np.reshape(value, (1, -1, np.shape(value)[-1])) for value in (position, quaternion, target))
    return next(frames(film(pose, turn, goal, robot, rate_hz=1.0, fps=1, size=(width, height))))
