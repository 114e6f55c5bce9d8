"""Arms at tables in MuJoCo: a batch of scenes, each in a world of its own, stepped by MuJoCo's own threads."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.render.camera import Camera
from sim.robots.panda import Arm, Double
from sim.scenes.tabletop import Block, block_names, scene_xml

try:
    import mujoco

    from sim.engines.threads import STATE, Threads
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("mujoco is not installed: pip install 'sim2metal[train]'", name="mujoco") from error

STEP = 0.0025  # s, the longest internal step
JOINTS = 7
NOWHERE = (0.0, 0.0, -10.0)  # m: where no camera sees a mark


@dataclass(frozen=True)
class Variation:
    """What differs in one scene from the nominal one. Factors, except for the last two."""

    size: float = 1.0
    mass: float = 1.0
    friction: float = 1.0  # of the blocks on the table
    grip: float = 1.0  # friction of the fingertips
    stiffness: float = 1.0  # of the joints' servos
    damping: float = 1.0  # of the servos and the joints
    colour: tuple[float, float, float] | None = None  # of the blocks
    view: tuple[float, float, float, float, float, float] = (0.0,) * 6  # of the cameras: m, rad, in their own axes


NOMINAL = Variation()


class Workbench:
    """`num` scenes. All arrays are float64, one row per scene; a scene whose state diverges reads NaN.

    Neither a scene's neighbours nor the number of `threads` (None: one per core) change what it does.
    """

    def __init__(self, arm: Arm, blocks: Sequence[Block], num: int, dt: float, threads: int | None = None) -> None:
        self.arm, self.blocks, self.num, self.dt = arm, tuple(blocks), num, dt
        self._substeps = max(1, round(dt / STEP))
        self._nominal = mujoco.MjModel.from_xml_string(scene_xml(arm, self.blocks, dt / self._substeps))
        self._models = [self._nominal] * num
        self._threads = Threads(self._nominal, num, self._substeps, threads)
        self._state = np.zeros((num, mujoco.mj_stateSize(self._nominal, STATE)))
        self._control = np.zeros((num, self._substeps, self._nominal.nu))
        self._reference = np.zeros((num, JOINTS))
        bias = self._nominal.actuator_biasprm[:JOINTS]
        self._lead = bias[:, 2] / bias[:, 1]  # s: how far ahead the servos are told, because they damp
        position, velocity = 1, 1 + self._nominal.nq
        free, moving = 7 * len(self.blocks), 6 * len(self.blocks)
        self._block = slice(position, position + free)
        self._joints = slice(position + free, position + free + JOINTS)
        self._fingers = slice(position + free + JOINTS, velocity)
        self._speeds = slice(velocity + moving, velocity + moving + JOINTS)
        self._cameras: dict[tuple[int, int, bool], Camera] = {}

    @property
    def joints(self) -> Double:
        """Joint positions (num, 7), rad."""
        return self._state[:, self._joints]

    @property
    def joint_speeds(self) -> Double:
        """Joint velocities (num, 7), rad/s."""
        return self._state[:, self._speeds]

    @property
    def reference(self) -> Double:
        """Where the servos were last told to bring the joints (num, 7), rad."""
        return self._reference

    @property
    def opening(self) -> Double:
        """The distance between the fingers (num, 1), m."""
        opening: Double = self._state[:, self._fingers].sum(axis=1, keepdims=True)
        return opening

    @property
    def block_poses(self) -> Double:
        """Position (m) and quaternion (w x y z, body to world) of each block: (num, blocks, 7)."""
        return self._state[:, self._block].reshape(self.num, len(self.blocks), 7)

    def reset(self, rows: Sequence[int], joints: Double, poses: Double, variations: Sequence[Variation]) -> None:
        """Begin anew in these scenes: at rest at `joints` (count, 7), gripper open, blocks at (count, blocks, 7)."""
        for row, at, variation in zip(rows, poses, variations, strict=True):
            self._models[row] = self._nominal if variation == NOMINAL else self._varied(variation)
            self._state[row] = 0.0
            self._state[row, self._block] = at.ravel()
        index = list(rows)
        self._state[index, self._joints] = self._reference[index] = joints
        self._state[index, self._fingers] = self.arm.gripper.opening / 2.0

    def _varied(self, variation: Variation) -> Any:
        model = copy.copy(self._nominal)
        model.actuator_gainprm[:JOINTS, 0] *= variation.stiffness
        model.actuator_biasprm[:JOINTS, 1] *= variation.stiffness
        model.actuator_biasprm[:JOINTS, 2] *= variation.damping
        model.dof_damping[-JOINTS - 2 : -2] *= variation.damping
        for finger in ("left", "right"):
            body = model.body(finger)
            model.geom_friction[body.geomadr[0] : body.geomadr[0] + body.geomnum[0], 0] *= variation.grip
        for name in block_names(len(self.blocks)):
            geom, body = model.geom(name).id, model.body(name).id
            model.geom_size[geom] *= variation.size
            model.geom_rbound[geom] *= variation.size
            model.geom_aabb[geom] *= variation.size
            model.body_mass[body] *= variation.mass
            model.body_inertia[body] *= variation.mass * variation.size**2
            model.geom_friction[geom, 0] *= variation.friction
            if variation.colour is not None:
                model.geom_rgba[geom, :3] = variation.colour
        shift, turn = np.array(variation.view[:3]), np.array(variation.view[3:])
        change = np.array([1.0, *(0.5 * turn)])  # small
        for camera in range(model.ncam):
            axes, before = np.empty(9), model.cam_quat[camera].copy()
            mujoco.mju_quat2Mat(axes, before)
            model.cam_pos[camera] += axes.reshape(3, 3) @ shift
            mujoco.mju_mulQuat(model.cam_quat[camera], before, change / np.linalg.norm(change))
        mujoco.mj_setConst(model, self._threads.data[0])
        return model

    def step(self, joints: Double, opening: Double) -> None:
        """Bring the joints to `joints` (num, 7) rad within dt, at constant speed, the fingers to `opening` (num, 1) m.

        Joints go no further than their limits of speed and position allow.
        """
        furthest = self.arm.velocity * self.dt
        before = self._reference
        move = np.clip(np.clip(joints, self.arm.low, self.arm.high) - before, -furthest, furthest)
        share = np.arange(1, self._substeps + 1)[:, None] / self._substeps
        ahead = before + move / self.dt * self._lead
        self._control[:, :, :JOINTS] = ahead[:, None] + share * move[:, None]
        self._control[:, :, JOINTS] = np.clip(opening, 0.0, self.arm.gripper.opening)
        self._reference = before + move
        broken = ~np.isfinite(self._control).all(axis=(1, 2)) | ~np.isfinite(self._state).all(axis=1)
        if broken.any():  # MuJoCo would write a warning file for them
            self._control[broken] = self._state[broken] = 0.0
        self._state = self._advance()
        self._state[broken] = np.nan

    def _advance(self) -> Double:
        """The states dt later."""
        return self._threads.advance(self._models, self._state, self._control)

    def see(
        self, row: int, camera: str, goal: Double | None, height: int, width: int, fine: bool = False
    ) -> NDArray[Any]:
        """A picture (height, width, 3) uint8 by a named camera of one scene; with a mark at `goal` (3,) m, if given."""
        size = (height, width, fine)
        if size not in self._cameras:
            self._cameras[size] = Camera(self._nominal, height, width, fine)
        model, data = self._models[row], self._threads.data[0]
        mujoco.mj_setState(model, data, np.nan_to_num(self._state[row]), STATE)
        data.mocap_pos[0] = NOWHERE if goal is None else goal
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)
        return self._cameras[size].see(data, camera, model)

    def close(self) -> None:
        """Free threads and OpenGL contexts."""
        self._threads.close()
        for camera in self._cameras.values():
            camera.close()
