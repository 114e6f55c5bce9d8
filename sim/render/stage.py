"""A film's scene in MuJoCo: drawn by OpenGL without a display, where there is one (EGL, or what MUJOCO_GL names)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.render import scene as colours
from sim.render.scene import AZIMUTH, ELEVATION, FIELD_OF_VIEW, Double, Film
from sim.scenes.gates import BAR

Frame = NDArray[np.uint8]

SAMPLES = 4  # per pixel
SLICES = 16  # of what is round
# Of a camera that follows: m around the vehicle that it sees, how much larger that is drawn, degrees, and s that it is
# late in following and in turning.
CHASED, CLOSER, CHASING, FOLLOWS, SWINGS = 1.5, 1.6, -14.0, 0.08, 0.45


def scene_xml(scene: Film) -> str:
    """The film's scene as MJCF: a floor, the vehicles with rotors on hinges, and for each a target moved by hand."""
    count = scene.position.shape[1]
    vehicles = "".join(_vehicle_xml(scene, k) for k in range(count))
    targets = "" if len(scene.openings) else "".join(_target_xml(scene, k) for k in range(count))
    sky, horizon, ground, lines = (
        _numbers(colour) for colour in (colours.SKY, colours.HORIZON, colours.GROUND, colours.LINES)
    )
    x, y, z = scene.centre
    away = scene.distance
    return f"""<mujoco>
  <visual>
    <global offwidth="{scene.width}" offheight="{scene.height}" fovy="{FIELD_OF_VIEW}"/>
    <quality shadowsize="0" offsamples="{SAMPLES}" numslices="{SLICES}" numstacks="{SLICES // 2}"/>
    <headlight ambient="0.45 0.45 0.45" diffuse="0.15 0.15 0.15" specular="0 0 0"/>
    <map znear="0.01" zfar="50" fogstart="{2.0 * away}" fogend="{6.0 * away}" haze="0.4" shadowclip="1"/>
    <rgba fog="{horizon} 1" haze="{horizon} 1"/>
  </visual>
  <statistic extent="{2.0 * scene.radius}" center="{x} {y} {z}"/>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="{sky}" rgb2="{horizon}" width="64" height="384"/>
    <texture name="grid" type="2d" builtin="flat" mark="edge" rgb1="{ground}" rgb2="{ground}" markrgb="{lines}"
      width="400" height="400"/>
    <material name="grid" texture="grid" texrepeat="3 3" texuniform="true" specular="0" shininess="0"/>
  </asset>
  <worldbody>
    <light directional="true" pos="{x - away} {y - 0.5 * away} {z + 3.0 * away}" dir="0.25 0.12 -1"
      diffuse="0.55 0.55 0.55" specular="0.2 0.2 0.2"/>
    <geom type="plane" size="0 0 0.1" pos="0 0 {scene.ground}" material="grid"/>
    {vehicles}{targets}
  </worldbody>
</mujoco>"""


def _numbers(values: Any) -> str:
    return " ".join(f"{v:.6g}" for v in values)


def _target_xml(scene: Film, index: int) -> str:
    """The goal: a ball."""
    size = 0.03 * scene.radius
    colour = _numbers((*colours.TARGET, 0.6))
    ball = f'<geom type="sphere" size="{size}" rgba="{colour}"/>'
    return f'<body name="target{index}" mocap="true">{ball}</body>'


def _vehicle_xml(scene: Film, index: int) -> str:
    frame, blade_shape = _numbers((*colours.FRAME, 1.0)), (1.0, 0.16, 0.03)
    scale = scene.enlargement
    arms = scale * np.array(scene.robot.rotor_position)
    size, radius = float(np.linalg.norm(arms[0])), scale * scene.robot.propeller_radius
    top = 0.14 * size
    geoms = [f'<geom type="ellipsoid" size="{_numbers((0.45 * size, 0.24 * size, 0.17 * size))}" rgba="{frame}"/>']
    rotors = []
    for k, (x, y) in enumerate(arms):
        colour = colours.FRONT if x > 0.0 else colours.BACK
        angle = float(np.arctan2(y, x))
        half, middle = 0.5 * float(np.hypot(x, y)), (0.5 * x, 0.5 * y, 0.0)
        turn = (np.cos(0.5 * angle), 0.0, 0.0, np.sin(0.5 * angle))
        geoms += [
            f'<geom type="box" pos="{_numbers(middle)}" quat="{_numbers(turn)}" '
            f'size="{_numbers((half, 0.06 * size, 0.045 * size))}" rgba="{frame}"/>',
            f'<geom type="cylinder" fromto="{x} {y} {-0.05 * size} {x} {y} {top}" size="{0.09 * size}" '
            f'rgba="{frame}"/>',
        ]
        blade, disc = _numbers(radius * np.array(blade_shape)), f"{radius} {0.01 * radius}"
        rotors.append(
            f'<body name="rotor{index}.{k}" pos="{x} {y} {top}"><joint type="hinge"/>'
            f'<geom type="box" size="{blade}" rgba="{_numbers((*colour, 1.0))}" mass="0.01"/>'
            f'<geom type="cylinder" size="{disc}" rgba="{_numbers((*colour, 0.3))}" mass="0.01"/></body>'
        )
    return f'<body name="vehicle{index}"><freejoint/>{"".join(geoms)}{"".join(rotors)}</body>'


def chased(scene: Film) -> tuple[Double, Double]:
    """Where a camera that follows the first vehicle looks, (frames, 3) m, and its azimuth (frames,) in degrees."""
    place = scene.position[:, 0]
    ahead = scene.openings.mean(axis=1)[scene.due] - place
    ahead /= np.maximum(np.linalg.norm(ahead, axis=1, keepdims=True), 1e-6)
    moved, turned = place.copy(), ahead.copy()
    follow, swing = (1.0 - np.exp(-1.0 / (seconds * scene.fps)) for seconds in (FOLLOWS, SWINGS))
    for k in range(1, len(place)):
        moved[k] = moved[k - 1] + follow * (place[k] - moved[k - 1])
        turned[k] = turned[k - 1] + swing * (ahead[k] - turned[k - 1])
    return moved + 0.25 * turned, np.degrees(np.arctan2(turned[:, 1], turned[:, 0]))


class Stage:
    """Draws a film's frames. RuntimeError where there is no OpenGL."""

    def __init__(self, scene: Film) -> None:
        scene = dataclasses.replace(scene, radius=CHASED, enlargement=CLOSER) if len(scene.openings) else scene
        self.scene = scene
        self.model = mujoco.MjModel.from_xml_string(scene_xml(scene))
        self.data = mujoco.MjData(self.model)
        self.camera, self.option = mujoco.MjvCamera(), mujoco.MjvOption()
        self.camera.lookat[:] = scene.centre
        self.camera.distance, self.camera.azimuth, self.camera.elevation = scene.distance, AZIMUTH, ELEVATION
        self._chased = chased(scene) if len(scene.openings) else None
        self._open = contextlib.ExitStack()
        try:
            self._connect()
        except Exception as error:  # a missing library, device or extension: drivers fail in many ways
            self._open.close()
            raise RuntimeError(f"MuJoCo cannot draw here ({error}); backend=raster needs no OpenGL") from error

    def _connect(self) -> None:
        if os.environ.get("MUJOCO_GL", "egl") == "osmesa":
            from mujoco.osmesa import GLContext
        else:
            from mujoco.egl import GLContext
        context = GLContext(self.scene.width, self.scene.height)
        self._open.callback(context.free)
        context.make_current()
        self.view = mujoco.MjvScene(self.model, maxgeom=4000)
        for costly in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):  # two thirds of a frame
            self.view.flags[costly] = 0
        self.view.flags[mujoco.mjtRndFlag.mjRND_FOG] = 1
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
        scene, count = self.scene, self.scene.position.shape[1]
        places = self.data.qpos.reshape(count, -1)  # of each: position, quaternion, its rotors' angles
        places[:, :3] = scene.position[index]
        for k in range(count):
            mujoco.mju_mat2Quat(places[k, 3:7], scene.rotation[index, k].ravel())
        places[:, 7:] = scene.spin[index]
        if self.model.nmocap:
            self.data.mocap_pos[:] = scene.target[index]
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
        if self._chased:
            where, azimuth = self._chased
            self.camera.lookat[:], self.camera.azimuth, self.camera.elevation = where[index], azimuth[index], CHASING
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self.model, self.data, self.option, None, self.camera, everything, self.view)
        trail = scene.trail(index)
        for k in range(count):
            self._shadow(scene.position[index, k], scene.rotation[index, k])
            self._line(trail[:, k], colours.TRAILS[k % len(colours.TRAILS)], 3.0)
            if not len(scene.openings):
                foot = np.array([*scene.target[index, k, :2], scene.ground])
                self._line(np.stack([foot, scene.target[index, k]]), colours.TARGET, 1.0)
        for pillar in scene.pillars:
            self._pillar(pillar)
        for k, corners in enumerate(scene.openings):
            self._opening(corners, colours.TARGET if k == scene.due[index] else colours.GATE)
        frame = np.empty((scene.height, scene.width, 3), np.uint8)
        rectangle = mujoco.MjrRect(0, 0, scene.width, scene.height)
        mujoco.mjr_render(rectangle, self.view, self.pixels)
        mujoco.mjr_readPixels(frame, None, rectangle, self.pixels)
        return np.flipud(frame)

    def _opening(self, corners: Double, colour: tuple[float, float, float]) -> None:
        """Bars along the edges (4, 3) of an opening, just outside of it."""
        middle = corners.mean(axis=0)
        for one, other in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            along, away = other - one, 0.5 * (one + other) - middle
            length, off = float(np.linalg.norm(along)), float(np.linalg.norm(away))
            frame = np.stack([along / length, away / off, np.cross(along / length, away / off)], axis=1)
            place = middle + away * (1.0 + 0.5 * BAR / off)
            half = np.array([0.5 * length + BAR, 0.5 * BAR, 0.5 * BAR])
            self._add(mujoco.mjtGeom.mjGEOM_BOX, half, place, frame, np.array([*colour, 1.0], np.float32))

    def _pillar(self, pillar: Double) -> None:
        """From the floor to above everybody, (3,) x, y and radius; one can see through it."""
        ground, top = self.scene.ground, self.scene.top
        place = np.array([*pillar[:2], 0.5 * (ground + top)])
        half = np.array([pillar[2], pillar[2], 0.5 * (top - ground)])
        rgba = np.array([*colours.PILLAR, 0.6], np.float32)
        self._add(mujoco.mjtGeom.mjGEOM_CYLINDER, half, place, np.eye(3), rgba)

    def _shadow(self, position: Double, turn: Double) -> None:
        """Of the rotors, straight below them: flat ellipses."""
        arms = self.scene.enlargement * np.array([(x, y, 0.0) for x, y in self.scene.robot.rotor_position])
        shape, size, _ = np.linalg.svd(self.scene.enlargement * self.scene.robot.propeller_radius * turn[:2, :2])
        frame, lift = np.eye(3), 2e-3 * self.scene.distance  # above the floor, which would hide half of it
        frame[:2, :2] = shape
        half = np.array([*np.maximum(size, 1e-3), 1e-3 * self.scene.radius])
        rgba = np.array([*colours.SHADOW, 0.4], np.float32)
        for place in position + arms @ turn.T:
            self._add(
                mujoco.mjtGeom.mjGEOM_ELLIPSOID, half, np.array([*place[:2], self.scene.ground + lift]), frame, rgba
            )

    def _add(self, kind: Any, size: Double, place: Double, frame: Double, rgba: NDArray[np.float32]) -> Any:
        """Something that belongs to this picture only; None when the picture is full."""
        if self.view.ngeom >= self.view.maxgeom:
            return None
        geom = self.view.geoms[self.view.ngeom]
        mujoco.mjv_initGeom(geom, kind, size, place, frame.ravel(), rgba)
        self.view.ngeom += 1
        return geom

    def _line(self, points: Double, colour: tuple[float, float, float], width: float) -> None:
        """Through points (m, 3), fading toward the first; so many pixels wide."""
        kind, nothing = mujoco.mjtGeom.mjGEOM_LINE, np.zeros(3)
        for k in range(len(points) - 1):
            rgba = np.array([*colour, 0.1 + 0.9 * (k + 1) / len(points)], np.float32)
            geom = self._add(kind, nothing, nothing, np.eye(3), rgba)
            if geom is not None:
                mujoco.mjv_connector(geom, kind, width, points[k], points[k + 1])
