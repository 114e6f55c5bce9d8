"""Pictures of MuJoCo scenes without a display: small and quick, for policies.

Without a GPU, OpenGL draws in software; then shadows, reflections, sky and multisampling cost most of a frame, and
nobody trains on them. They are off unless `fine`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

COSTLY = (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION, mujoco.mjtRndFlag.mjRND_SKYBOX)
MAXIMAL_GEOMS = 2000


class Camera:
    """Takes pictures of `height` x `width` pixels, with an OpenGL context of its own (EGL, or what MUJOCO_GL names).

    It serves every MjData of `model` and of copies of it; geometries of the groups `hidden` it does not see.
    RuntimeError where there is no OpenGL.
    """

    def __init__(self, model: Any, height: int, width: int, fine: bool = False, hidden: Sequence[int] = ()) -> None:
        if not (1 <= height <= 4096 and 1 <= width <= 4096):
            raise ValueError(f"a picture has 1 to 4096 pixels per side, got height {height} and width {width}")
        self.size = (height, width)
        self._rectangle = mujoco.MjrRect(0, 0, width, height)
        self._camera, self._option = mujoco.MjvCamera(), mujoco.MjvOption()
        self._option.geomgroup[list(hidden)] = 0
        opened = contextlib.ExitStack()
        self._end = weakref.finalize(self, opened.close)
        try:
            self._connect(model, fine, opened)
        except Exception as error:  # a missing library, device or extension: drivers fail in many ways
            self.close()
            raise RuntimeError(f"MuJoCo cannot draw here: there is no OpenGL without a display ({error})") from error
        atexit.register(self._end)  # later than MuJoCo's own, so it runs before the display is shut down

    def _connect(self, model: Any, fine: bool, opened: contextlib.ExitStack) -> None:
        if os.environ.get("MUJOCO_GL", "egl") == "osmesa":
            from mujoco.osmesa import GLContext
        else:
            from mujoco.egl import GLContext
        height, width = self.size
        self._context = GLContext(width, height)
        opened.callback(self._context.free)
        self._context.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=MAXIMAL_GEOMS)
        with _quality(model, height, width, fine):
            self._pixels = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        opened.callback(self._pixels.free)
        opened.callback(self._context.make_current)  # undone last to first: what is freed must be current
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._pixels)
        for flag in COSTLY:
            self._scene.flags[flag] &= fine

    def see(self, data: Any, camera: str | Mapping[str, Any], model: Any = None) -> NDArray[np.uint8]:
        """What the camera sees, (height, width, 3), first row on top. Positions in `data` must be up to date.

        `camera` is a name, or a free one's `lookat` (m), `distance` (m), `azimuth` and `elevation` (degrees). `model`
        replaces the one `data` was made for: a copy with other colours or sizes. KeyError lists the cameras when there
        is none of that name.
        """
        if not self._end.alive:
            raise RuntimeError("this camera is closed")
        model = data.model if model is None else model
        self._aim(camera, model)
        self._context.make_current()
        mujoco.mjv_updateScene(
            model, data, self._option, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL.value, self._scene
        )
        picture = np.empty((*self.size, 3), np.uint8)
        mujoco.mjr_render(self._rectangle, self._scene, self._pixels)
        mujoco.mjr_readPixels(picture, None, self._rectangle, self._pixels)
        return picture[::-1].copy()

    def _aim(self, camera: str | Mapping[str, Any], model: Any) -> None:
        if not isinstance(camera, str):
            self._camera.type = mujoco.mjtCamera.mjCAMERA_FREE.value
            self._camera.lookat[:] = camera["lookat"]
            for name in ("distance", "azimuth", "elevation"):
                setattr(self._camera, name, camera[name])
            return
        number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        if number < 0:
            names = ", ".join(model.camera(i).name for i in range(model.ncam)) or "none"
            raise KeyError(f"no camera {camera!r}; there are: {names}")
        self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, number

    def close(self) -> None:
        """Free the OpenGL context; no pictures after that."""
        self._end()


@contextlib.contextmanager
def _quality(model: Any, height: int, width: int, fine: bool) -> Any:
    """The model with the sizes and qualities that a context reads when it is made; its own are put back."""
    screen, quality = model.vis.global_, model.vis.quality
    before = screen.offheight, screen.offwidth, quality.shadowsize, quality.offsamples
    screen.offheight, screen.offwidth = height, width
    if not fine:
        quality.shadowsize, quality.offsamples = 0, 0
    try:
        yield
    finally:
        screen.offheight, screen.offwidth, quality.shadowsize, quality.offsamples = before
