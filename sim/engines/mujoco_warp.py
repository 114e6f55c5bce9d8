"""Arms at tables in MuJoCo Warp: all scenes are one batch; see `sim.engines.warp_batch`.

The same model and the same steps as in MuJoCo; but where boxes have sunk deep into each other, MuJoCo drops contacts
that Warp keeps.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import mujoco

from sim.engines.warp_batch import VARIED, WarpBatch
from sim.engines.workbench import Variation, Workbench
from sim.robots.panda import Arm, Double
from sim.scenes.tabletop import Block

# What a `Variation` changes besides, and what MuJoCo derives from that.
SIZES = ("geom_size", "geom_rbound", "geom_aabb", "tendon_invweight0")
WITHOUT = int(mujoco.mjtDisableBit.mjDSBL_NATIVECCD) | int(mujoco.mjtDisableBit.mjDSBL_SENSOR)


class WarpBench(Workbench):
    """A `Workbench` whose scenes are stepped by MuJoCo Warp. `threads` mean nothing to it."""

    contacts = 64  # room for so many per scene, on average over the scenes
    rows = 192  # and for so many rows of constraints in each

    def __init__(self, arm: Arm, blocks: Sequence[Block], num: int, dt: float, threads: int | None = None) -> None:
        super().__init__(arm, blocks, num, dt, threads=1)
        model = copy.copy(self._nominal)
        # Boxes touch boxes as in MuJoCo, by the analytic function instead of the general one.
        model.opt.disableflags |= WITHOUT
        self._batch = WarpBatch(model, num, self._substeps, (*VARIED, *SIZES), self.contacts, self.rows)

    def reset(self, rows: Sequence[int], joints: Double, poses: Double, variations: Sequence[Variation]) -> None:
        before = [self._models[row] for row in rows]
        super().reset(rows, joints, poses, variations)
        for row, model in zip(rows, before, strict=True):
            if self._models[row] is not model:
                self._batch.vary(row, self._models[row])

    def _advance(self) -> Double:
        return self._batch.advance(self._state, self._control, self.dt, type(self).__name__)
