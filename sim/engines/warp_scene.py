"""Any MuJoCo model in a batch in MuJoCo Warp: on a GPU, or, where there is none, slowly on the CPU.

The same steps as in MuJoCo by another program, in single precision. On a GPU the order of additions is not fixed: there
an episode repeats itself but for rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

from sim.engines.scene import Double, Scene

try:
    import mujoco_warp
    import warp
except ModuleNotFoundError as error:
    hint = f"{error.name} is not installed: pip install 'sim2metal[warp]'"
    raise ModuleNotFoundError(hint, name=error.name) from error

# What may differ from world to world, and what MuJoCo derives from that.
VARIED = (
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_acc0",
    "dof_damping",
    "dof_invweight0",
    "geom_friction",
    "body_mass",
    "body_inertia",
    "body_ipos",
    "body_subtreemass",
    "body_invweight0",
)
UNKNOWN = int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)  # to Warp, which never resets a diverged world


class NoRoomError(RuntimeError):
    """There are more contacts, or rows of constraints, than room was made for."""


class WarpScene(Scene):
    """A `Scene` whose worlds are stepped by MuJoCo Warp. `threads` mean nothing to it.

    Kernels are compiled when they are first needed on a machine, which takes a minute, and kept by Warp.
    """

    contacts = 64  # room for so many per world, on average over the worlds
    rows = 256  # and for so many rows of constraints in each

    def __init__(self, model: Any, num: int, dt: float, threads: int | None = None, shown: Any = None) -> None:
        super().__init__(model, num, dt, 1, shown)
        if self.model.na:
            raise ValueError("actuators with a state of their own are not stepped by mujoco_warp here: engine=mujoco")
        warp.config.log_level = warp.LOG_WARNING
        common = copy.copy(self.model)
        common.opt.disableflags &= ~UNKNOWN
        self._common = mujoco_warp.put_model(common, dict.fromkeys(VARIED, num))
        self._common.opt.warn_overflow = False  # `_advance` says it
        self._batch = mujoco_warp.make_data(common, num, nconmax=self.contacts, njmax=self.rows)
        self._commands = warp.zeros(self._control.transpose(1, 0, 2).shape, dtype=float)
        self._varying = {name: getattr(self._common, name).numpy().copy() for name in VARIED}
        self._changed = False
        self._sensed = np.zeros((num, self.model.nsensordata))

    def vary(self, row: int, change: Callable[[Any], None]) -> None:
        super().vary(row, change)
        for name, values in self._varying.items():
            values[row] = getattr(self.models[row], name).reshape(values[row].shape)
        self._changed = True

    @property
    def sensed(self) -> Double:
        return self._sensed

    def _advance(self) -> Double:
        if self._changed:
            for name, values in self._varying.items():
                getattr(self._common, name).assign(values)
            self._changed = False
        batch, end = self._batch, 1 + self.model.nq
        batch.qpos.assign(self._state[:, 1:end])
        batch.qvel.assign(self._state[:, end:])
        batch.qacc_warmstart.zero_()  # so that only the state decides what comes next
        batch.overflow.zero_()
        self._commands.assign(self._control.transpose(1, 0, 2))
        for k in range(self.substeps):
            warp.copy(batch.ctrl, self._commands[k])
            mujoco_warp.step(self._common, batch)
        if (full := np.flatnonzero(batch.overflow.numpy())).size:
            raise NoRoomError(
                f"world {full[0]} has no room for its contacts: {self.contacts} per world and {self.rows} rows are too "
                f"few; set more in {type(self).__name__}.contacts and .rows"
            )
        self._sensed = batch.sensordata.numpy().astype(np.float64)
        time = self._state[:, :1] + self.dt
        return np.concatenate([time, batch.qpos.numpy(), batch.qvel.numpy()], axis=1, dtype=np.float64)
