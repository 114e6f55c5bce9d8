"""Films recorded flights, without a display.

The built-in renderer ("raster") needs no graphics library, and where there is no GPU it is some ten times as fast as
MuJoCo's, which then draws in software. "mujoco" is there for machines with a GPU.
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

from sim.render import scene as colours
from sim.render import software
from sim.render.scene import AZIMUTH, ELEVATION, FIELD_OF_VIEW, Film, film
from sim.robots.quadrotors import Quadrotor

Frame = NDArray[np.uint8]

SIZE = (640, 480)  # px
BACKENDS = ("raster", "mujoco")


def render_flight(
    path: str | Path,
    position: NDArray[np.floating],
    quaternion: NDArray[np.floating],
    target: NDArray[np.floating],
    robot: Quadrotor,
    rate_hz: float,
    fps: int = 25,
    size: tuple[int, int] = SIZE,
    backend: str = "raster",
) -> str:
    """Write an mp4 of n vehicles that share a scene; returns the name of the renderer that drew it.

    `position` (steps, n, 3) m and `quaternion` (steps, n, 4) w x y z, body to world, were recorded at `rate_hz`;
    `target` is (steps, n, 3) m. `size` (width, height) is in pixels, both even. The file appears when it is complete.
    """
    scene = film(position, quaternion, target, robot, rate_hz, fps, size)
    write_film(path, frames(scene, backend), fps)
    return backend


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
    coded = ["-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", "15"]
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


def frames(scene: Film, backend: str = "raster") -> Iterator[Frame]:
    """All frames of the film, (height, width, 3) uint8 each."""
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
    return software.frames(scene) if backend == "raster" else Stage(scene).frames()


def picture(robot: Quadrotor, position: Any, quaternion: Any, target: Any, height: int, width: int) -> Frame:
    """One moment of one vehicle or n: position and target (3,) or (n, 3) m, quaternion (4,) or (n, 4) body to world."""
    pose, turn, goal = (np.reshape(value, (1, -1, np.shape(value)[-1])) for value in (position, quaternion, target))
    return next(frames(colours.film(pose, turn, goal, robot, rate_hz=1.0, fps=1, size=(width, height))))


def scene_xml(scene: Film) -> str:
    """The film's scene as MJCF: a floor, and for each vehicle a body and a target that are moved by hand."""
    count = scene.position.shape[1]
    vehicles = "".join(_vehicle_xml(scene, k) for k in range(count))
    ball = f'<geom type="sphere" size="{0.025 * scene.radius}" rgba="{_numbers((*colours.TARGET, 0.55))}"/>'
    targets = "".join(f'<body name="target{k}" mocap="true">{ball}</body>' for k in range(count))
    sky, horizon, ground, lines = (
        _numbers(colour) for colour in (colours.SKY, colours.HORIZON, colours.GROUND, colours.LINES)
    )
    x, y, z = scene.centre
    return f"""<mujoco>
  <visual>
    <global offwidth="{scene.width}" offheight="{scene.height}" fovy="{FIELD_OF_VIEW}"/>
    <quality shadowsize="2048" offsamples="4"/>
    <headlight ambient="0.5 0.5 0.5" diffuse="0.1 0.1 0.1" specular="0 0 0"/>
    <map znear="0.01" zfar="50" fogstart="4" fogend="9" haze="0.4" shadowclip="1.5"/>
    <rgba fog="{horizon} 1" haze="{horizon} 1"/>
  </visual>
  <statistic extent="{2.0 * scene.radius}" center="{x} {y} {z}"/>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="{sky}" rgb2="{horizon}" width="64" height="384"/>
    <texture name="grid" type="2d" builtin="flat" mark="edge" rgb1="{ground}" rgb2="{ground}" markrgb="{lines}"
      width="256" height="256"/>
    <material name="grid" texture="grid" texrepeat="4 4" texuniform="true" specular="0" shininess="0"/>
  </asset>
  <worldbody>
    <light directional="true" pos="{x} {y} {z + 2.0}" dir="0 0 -1" diffuse="0.5 0.5 0.5" specular="0 0 0"/>
    <geom type="plane" size="0 0 0.1" pos="0 0 {scene.ground}" material="grid"/>
    {vehicles}{targets}
  </worldbody>
</mujoco>"""


def _numbers(values: Any) -> str:
    return " ".join(f"{v:.6g}" for v in values)


def _vehicle_xml(scene: Film, index: int) -> str:
    frame = _numbers((*colours.FRAME, 1.0))
    scale = scene.enlargement
    arms = scale * np.array(scene.robot.rotor_position)
    size, radius = float(np.linalg.norm(arms[0])), scale * scene.robot.propeller_radius
    geoms = [f'<geom type="ellipsoid" size="{_numbers((0.42 * size, 0.20 * size, 0.14 * size))}" rgba="{frame}"/>']
    for x, y in arms:
        rotor = _numbers((*(colours.FRONT if x > 0.0 else colours.BACK), 1.0))
        top = 0.10 * size
        geoms += [
            f'<geom type="capsule" fromto="0 0 0 {x} {y} 0" size="{0.055 * size}" rgba="{frame}"/>',
            f'<geom type="cylinder" fromto="{x} {y} 0 {x} {y} {top}" size="{0.06 * size}" rgba="{frame}"/>',
            f'<geom type="cylinder" pos="{x} {y} {top}" size="{radius} {0.03 * radius}" rgba="{rotor}"/>',
        ]
    return f'<body name="vehicle{index}" mocap="true">{"".join(geoms)}</body>'


class Stage:
    """The film's scene in MuJoCo, with an OpenGL context that needs no display (EGL, or what MUJOCO_GL names)."""

    def __init__(self, scene: Film) -> None:
        import mujoco

        self.scene, self._mujoco = scene, mujoco
        self.model = mujoco.MjModel.from_xml_string(scene_xml(scene))
        self.data = mujoco.MjData(self.model)
        self.camera = mujoco.MjvCamera()
        self.camera.lookat[:] = scene.centre
        self.camera.distance, self.camera.azimuth, self.camera.elevation = scene.distance, AZIMUTH, ELEVATION
        self._open = contextlib.ExitStack()
        try:
            self._connect()
        except Exception as error:  # a missing library, device or extension: drivers fail in many ways
            self._open.close()
            raise RuntimeError(f"MuJoCo cannot draw here ({error}); backend=raster needs no OpenGL") from error

    def _connect(self) -> None:
        mujoco = self._mujoco
        if os.environ.get("MUJOCO_GL", "egl") == "osmesa":
            from mujoco.osmesa import GLContext
        else:
            from mujoco.egl import GLContext
        context = GLContext(self.scene.width, self.scene.height)
        self._open.callback(context.free)
        context.make_current()
        self.view = mujoco.MjvScene(self.model, maxgeom=2000)
        self.pixels = mujoco.MjrContext(self.model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        self._open.callback(self.pixels.free)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self.pixels)

    def frames(self) -> Iterator[Frame]:
        """All frames, then the context is given back."""
        with self._open:
            for index in range(len(self.scene.position)):
                yield self.draw(index)

    def draw(self, index: int) -> Frame:
        """Frame `index` as (height, width, 3) uint8."""
        mujoco, scene = self._mujoco, self.scene
        count = scene.position.shape[1]
        self.data.mocap_pos[:count] = scene.position[index]
        self.data.mocap_pos[count:] = scene.target[index]
        for k in range(count):
            mujoco.mju_mat2Quat(self.data.mocap_quat[k], scene.rotation[index, k].ravel())
        mujoco.mj_forward(self.model, self.data)
        option, everything = mujoco.MjvOption(), mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self.model, self.data, option, None, self.camera, everything, self.view)
        for k in range(count):
            self._trail(scene.trail(index)[:, k], colours.TRAILS[k % len(colours.TRAILS)])
        frame = np.empty((scene.height, scene.width, 3), np.uint8)
        rectangle = mujoco.MjrRect(0, 0, scene.width, scene.height)
        mujoco.mjr_render(rectangle, self.view, self.pixels)
        mujoco.mjr_readPixels(frame, None, rectangle, self.pixels)
        return np.flipud(frame)

    def _trail(self, points: NDArray[np.float64], colour: tuple[float, float, float]) -> None:
        mujoco = self._mujoco
        for k in range(len(points) - 1):
            if self.view.ngeom >= self.view.maxgeom:
                return
            geom = self.view.geoms[self.view.ngeom]
            rgba = np.array([*colour, 0.1 + 0.8 * (k + 1) / len(points)], np.float32)
            kind = mujoco.mjtGeom.mjGEOM_CAPSULE
            mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.eye(3).ravel(), rgba)
            mujoco.mjv_connector(geom, kind, 0.004 * self.scene.radius, points[k], points[k + 1])
            self.view.ngeom += 1
