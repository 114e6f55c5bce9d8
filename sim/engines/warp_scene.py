"""Any MuJoCo model in a batch in MuJoCo Warp; see `sim.engines.warp_batch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.engines.scene import Double, Scene
from sim.engines.warp_batch import WarpBatch
from sim.engines.warp_limits import INSTEAD, batched, changed


class WarpScene(Scene):
    """A `Scene` whose worlds are stepped by MuJoCo Warp. `threads` mean nothing to it."""

    contacts = 64  # room for so many per world, on average over the worlds
    rows = 256  # and for so many rows of constraints in each

    def __init__(self, model: Any, num: int, dt: float, threads: int | None = None, shown: Any = None) -> None:
        super().__init__(model, num, dt, 1, shown)
        self._varied = batched(self.model)
        self._batch = WarpBatch(self.model, num, self.substeps, self._varied, self.contacts, self.rows)
        self._looked_at: set[int] = set()

    def vary(self, row: int, change: Callable[[Any], None]) -> None:
        """ValueError names what cannot differ from world to world in Warp."""
        super().vary(row, change)
        if row not in self._looked_at:  # it takes longer than all the rest, and a task changes the same each time
            if other := changed(self.model, self.models[row], self._varied):
                raise ValueError(f"mujoco_warp cannot step worlds that differ in {', '.join(other)}; {INSTEAD}")
            self._looked_at.add(row)
        self._batch.vary(row, self.models[row])

    @property
    def sensed(self) -> Double:
        return self._batch.sensed

    def _advance(self) -> Double:
        return self._batch.advance(self._state, self._control, self.dt, type(self).__name__)
