"""MuJoCo's own threads, which step a batch of worlds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from mujoco import rollout
from numpy.typing import NDArray

from sim.engines import cores

Double = NDArray[np.float64]
STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS  # time, qpos, qvel, activations


class Threads:
    """Steps `num` worlds by `substeps` at a time. Their number (None: one per core) changes no result."""

    def __init__(self, model: Any, num: int, substeps: int, threads: int | None = None) -> None:
        threads = min(cores() if threads is None else threads, num)
        self.substeps = substeps
        self.data = [mujoco.MjData(model) for _ in range(max(1, threads))]  # one per thread
        self._pool = rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._path = np.zeros((num, substeps, mujoco.mj_stateSize(model, STATE)))
        self._sensed = np.zeros((num, substeps, model.nsensordata))

    def advance(self, models: Sequence[Any], state: Double, control: Double) -> Double:
        """The states (num, size) after `substeps` from `state` (num, size), under `control` (num, substeps, nu)."""
        how = {"nstep": self.substeps, "state": self._path, "sensordata": self._sensed, "skip_checks": True}
        self._pool.rollout(models, self.data, state, control, **how)
        return self._path[:, -1].copy()

    @property
    def sensed(self) -> Double:
        """What the models' sensors said (num, nsensordata) at the beginning of the last step of all."""
        return self._sensed[:, -1]

    def close(self) -> None:
        """End them."""
        self._pool.close()
