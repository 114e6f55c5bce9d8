"""Worlds of one MuJoCo model that MuJoCo Warp steps: on a GPU, or, where there is none, slowly on the CPU.

The same steps as in MuJoCo by another program, in single precision. On a GPU the order of additions is not fixed: there
an episode repeats itself but for rounding. Kernels are compiled when they are first needed on a machine, which takes
half a minute to a minute, and kept by Warp.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

try:
    import mujoco_warp
    import warp

    from sim.engines.warp_limits import put_model
except ModuleNotFoundError as error:
    hint = f"{error.name} is not installed: pip install 'sim2metal[warp]'"
    raise ModuleNotFoundError(hint, name=error.name) from error

Double = NDArray[np.float64]

# What may differ from world to world in every task, and what MuJoCo derives from that.
VARIED = (
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_acc0",
    "dof_damping",
    "dof_invweight0",
    "geom_friction",
    "body_mass",
    "body_inertia",
    "body_subtreemass",
    "body_invweight0",
)
FURTHEST = mujoco.mjMAXVAL  # of positions and velocities
# Unknown to Warp, and without an effect there: it never resets a diverged world, has no middle phase of collisions, and
# compares no forward dynamics with inverse ones.
IGNORED = int(mujoco.mjtDisableBit.mjDSBL_AUTORESET) | int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
UNASKED = int(mujoco.mjtEnableBit.mjENBL_FWDINV)


class NoRoomError(RuntimeError):
    """There are more contacts, or rows of constraints, than room was made for."""


class WarpBatch:
    """`num` worlds of a model, in which the arrays `varied` (names of the model's) may differ."""

    def __init__(self, model: Any, num: int, substeps: int, varied: Sequence[str], contacts: int, rows: int) -> None:
        """Each advance makes `substeps` of the model's steps. There is room for so many contacts per world, on average
        over the worlds, and so many rows of constraints in each.
        """
        self.contacts, self.rows = contacts, rows
        self._parts = {"qpos": model.nq, "qvel": model.nv, "act": model.na, "history": model.nhistory}
        warp.config.log_level = warp.LOG_WARNING
        common = copy.copy(model)
        common.opt.disableflags &= ~IGNORED
        common.opt.enableflags &= ~UNASKED
        self._common = put_model(common, dict.fromkeys(varied, num))
        self._common.opt.warn_overflow = False  # `advance` says it
        self._data = mujoco_warp.make_data(common, num, nconmax=contacts, njmax=rows)
        self._commands = warp.zeros((substeps, num, model.nu), dtype=float)
        self._varying = {name: getattr(self._common, name).numpy().copy() for name in varied}
        self._changed: set[str] = set()
        self._graph = None
        if warp.get_device().is_cuda:
            mujoco_warp.step(self._common, self._data)  # compiles, which cannot be captured
            with warp.ScopedCapture() as capture:
                mujoco_warp.step(self._common, self._data)
            self._graph = capture.graph

    def vary(self, row: int, model: Any) -> None:
        """That world is as this model says from now on."""
        for name, values in self._varying.items():
            told = getattr(model, name).astype(values.dtype).reshape(values[row].shape)
            if not np.array_equal(values[row], told):
                values[row] = told
                self._changed.add(name)

    def advance(self, state: Double, control: Double, dt: float, owner: str) -> Double:
        """The states (num, size: as `sim.engines.threads.STATE` has them) dt later, under control (num, substeps, nu).

        NoRoomError names the class `owner`, where more room can be asked for.
        """
        for name in self._changed:
            getattr(self._common, name).assign(self._varying[name])  # in place: the graph knows where it is
        self._changed.clear()
        data, at = self._data, 1
        data.time.assign(state[:, 0])
        for name, size in self._parts.items():
            if size:
                getattr(data, name).assign(state[:, at : at + size])
            at += size
        data.qacc_warmstart.zero_()  # so that only the state decides what comes next
        data.overflow.zero_()
        if control.size:
            self._commands.assign(control.transpose(1, 0, 2))
        for k in range(control.shape[1]):
            if control.shape[2]:
                warp.copy(data.ctrl, self._commands[k])
            if self._graph is None:
                mujoco_warp.step(self._common, data)
            else:
                warp.capture_launch(self._graph)
        if (full := np.flatnonzero(data.overflow.numpy())).size:
            raise NoRoomError(
                f"scene {full[0]} has no room for its contacts: {self.contacts} per scene and {self.rows} rows are too "
                f"few; set more in {owner}.contacts and .rows"
            )
        parts = [getattr(data, name).numpy() for name, size in self._parts.items() if size]
        after = np.concatenate([state[:, :1] + dt, *parts], axis=1, dtype=np.float64)
        after[(np.abs(after[:, 1:]) > FURTHEST).any(axis=1)] = np.nan  # there MuJoCo gives up
        return after

    @property
    def sensed(self) -> Double:
        """What the model's sensors said (num, nsensordata) when the last step began."""
        told: Double = self._data.sensordata.numpy().astype(np.float64)
        return told
