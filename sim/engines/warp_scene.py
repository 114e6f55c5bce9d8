"""Any MuJoCo model in a batch in MuJoCo Warp; see `sim.engines.warp_batch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.engines.scene import Double, Scene
from sim.engines.warp_batch import VARIED, WarpBatch


class WarpScene(Scene):
    """A `Scene` whose worlds are stepped by MuJoCo Warp. `threads` mean nothing to it."""

    contacts = 64  # room for so many per world, on average over the worlds
    rows = 256  # and for so many rows of constraints in each

    def __init__(self, model: Any, num: int, dt: float, threads: int | None = None, shown: Any = None) -> None:
        super().__init__(model, num, dt, 1, shown)
        if self.model.na:
            raise ValueError("actuators with a state of their own are not stepped by mujoco_warp here: engine=mujoco")
        varied = (*VARIED, "body_ipos", "tendon_stiffness")
        self._batch = WarpBatch(self.model, num, self.substeps, varied, self.contacts, self.rows)

    def vary(self, row: int, change: Callable[[Any], None]) -> None:
        super().vary(row, change)
        self._batch.vary(row, self.models[row])

    @property
    def sensed(self) -> Double:
        return self._batch.sensed

    def _advance(self) -> Double:
        return self._batch.advance(self._state, self._control, self.dt, type(self).__name__)
