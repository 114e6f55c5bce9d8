"""Arms at tables in MuJoCo Warp: all scenes are one batch on the GPU, or, where there is none, slowly on the CPU.

The same model and the same steps as in MuJoCo, but in single precision; and where boxes have sunk deep into each other,
MuJoCo drops contacts that Warp keeps. On a GPU the order of additions is not fixed: there an episode repeats itself but
for rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import mujoco
import numpy as np

from sim.engines.workbench import Variation, Workbench
from sim.robots.panda import Arm, Double
from sim.scenes.tabletop import Block

try:
    import mujoco_warp
    import warp
except ModuleNotFoundError as error:
    hint = f"{error.name} is not installed: pip install 'sim2metal[warp]'"
    raise ModuleNotFoundError(hint, name=error.name) from error

# What a `Variation` changes in the model, and what MuJoCo derives from that.
VARIED = (
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_acc0",
    "dof_damping",
    "dof_invweight0",
    "geom_friction",
    "geom_size",
    "geom_rbound",
    "geom_aabb",
    "body_mass",
    "body_inertia",
    "body_subtreemass",
    "body_invweight0",
    "tendon_invweight0",
)
WITHOUT = int(mujoco.mjtDisableBit.mjDSBL_NATIVECCD) | int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
UNKNOWN = int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)  # to Warp, which never resets a diverged scene


class NoRoomError(RuntimeError):
    """There are more contacts, or rows of constraints, than room was made for."""


class WarpBench(Workbench):
    """A `Workbench` whose scenes are stepped by MuJoCo Warp. `threads` mean nothing to it.

    Kernels are compiled when they are first needed on a machine, which takes half a minute, and kept by Warp.
    """

    contacts = 64  # room for so many per scene, on average over the scenes
    rows = 192  # and for so many rows of constraints in each

    def __init__(self, arm: Arm, block: Block | None, num: int, dt: float, threads: int | None = None) -> None:
        super().__init__(arm, block, num, dt, threads=1)
        warp.config.log_level = warp.LOG_WARNING
        model = copy.copy(self._nominal)
        # Boxes touch boxes as in MuJoCo, by the analytic function instead of the general one.
        model.opt.disableflags = (model.opt.disableflags | WITHOUT) & ~UNKNOWN
        self._common = mujoco_warp.put_model(model, dict.fromkeys(VARIED, num))
        self._common.opt.warn_overflow = False  # `_advance` says it
        self._batch = mujoco_warp.make_data(model, num, nconmax=self.contacts, njmax=self.rows)
        self._commands = warp.zeros(self._control.transpose(1, 0, 2).shape, dtype=float)
        self._varying = {name: getattr(self._common, name).numpy().copy() for name in VARIED}
        self._graph = None
        if warp.get_device().is_cuda:
            mujoco_warp.step(self._common, self._batch)  # compiles, which cannot be captured
            with warp.ScopedCapture() as capture:
                mujoco_warp.step(self._common, self._batch)
            self._graph = capture.graph

    def reset(self, rows: Sequence[int], joints: Double, pose: Double, variations: Sequence[Variation]) -> None:
        before = [self._models[row] for row in rows]
        super().reset(rows, joints, pose, variations)
        changed = [row for row, model in zip(rows, before, strict=True) if self._models[row] is not model]
        for name, values in self._varying.items() if changed else ():
            for row in changed:
                values[row] = getattr(self._models[row], name).reshape(values[row].shape)
            getattr(self._common, name).assign(values)  # in place: the graph knows where it is

    def _advance(self) -> Double:
        batch, end = self._batch, 1 + self._nominal.nq
        batch.qpos.assign(self._state[:, 1:end])
        batch.qvel.assign(self._state[:, end:])
        batch.qacc_warmstart.zero_()  # so that only the state decides what comes next
        batch.overflow.zero_()
        self._commands.assign(self._control.transpose(1, 0, 2))
        for k in range(self._substeps):
            warp.copy(batch.ctrl, self._commands[k])
            if self._graph is None:
                mujoco_warp.step(self._common, batch)
            else:
                warp.capture_launch(self._graph)
        if (full := np.flatnonzero(batch.overflow.numpy())).size:
            raise NoRoomError(
                f"scene {full[0]} has no room for its contacts: {self.contacts} per scene and {self.rows} rows are too "
                f"few; set more in {type(self).__name__}.contacts and .rows"
            )
        time = self._state[:, :1] + self.dt
        return np.concatenate([time, batch.qpos.numpy(), batch.qvel.numpy()], axis=1, dtype=np.float64)
