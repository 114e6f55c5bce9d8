"""`Cars` on an NVIDIA GPU: the same equations, a thread per world, and one per ray of a lidar, through numba-cuda.

The arrays have the CPU's layout (blocks, rows, LANES), so that neighbouring threads read neighbouring numbers.
`CarsCuda` keeps them on the device. `RaceCars` is what tasks take (`engine=car_cuda`): numpy in and out, copied to the
device and back in every step and scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.car import Array, Cars, dynamics, walls
from sim.engines.car.grids import Grids, grid, in_cells
from sim.engines.car.lidar import traced
from sim.engines.car.rows import COMMAND_ROWS, COS, SIN, X, Y
from sim.engines.vector.blocks import blocks, launch
from sim.engines.vector.gpu import cuda
from sim.engines.vector.simd import LANES
from sim.robots.cars import Car
from sim.scenes.track import Track

THREADS = 64


def step_thread(state, parameters, derived, index, cells, command, shape, h, n):
    """One thread advances one world by n steps of h seconds."""
    world = cuda.grid(1)
    place, lane = world // LANES, world % LANES
    if place < state.shape[0]:
        s, p, q, g, c = state[place], parameters[place], derived[place], index[place], command[place]
        walls.advance(s, p, q, g, c, cells, shape, h, n, lane)


def scan_thread(state, parameters, index, cells, rays, ahead, longest, rows, first, out):
    """A thread follows one beam, of `rays` (2, count: cosines, sines), of one of these rows (n,); see `lidar.scan`."""
    number = cuda.grid(1)
    count = rays.shape[1]
    if number < rows.shape[0] * count:
        row, beam = rows[number // count], number % count
        place, lane = row // LANES, row % LANES
        s, p, g = state[place], parameters[place], index[place]
        cos, sin = s[COS, lane], s[SIN, lane]
        u, v = in_cells(p, s[X, lane] + ahead * cos, s[Y, lane] + ahead * sin, lane)
        x, y = rays[0, beam], rays[1, beam]
        across, up = cos * x - sin * y, sin * x + cos * y
        out[place, first + beam, lane] = traced(cells, *grid(p, g, lane), u, v, across, up, longest)


STEP, SCAN = cuda.jit(step_thread), cuda.jit(scan_thread)


class CarsCuda:
    """The cars of a `Cars` on a GPU. `plan` says what lies where, and how everything begins.

    `state`, `parameters`, `index` and `command` are its arrays there, and may be written into (by torch, say).
    """

    def __init__(self, plan: Cars) -> None:
        if not cuda.is_available():
            raise ValueError("engine car_cuda: no usable NVIDIA GPU and driver; use engine=car")
        self.plan, self._worlds = plan, blocks(plan.num) * LANES
        arrays = plan.arrays()
        self.state, self.parameters = cuda.to_device(arrays["state"]), cuda.to_device(arrays["parameters"])
        self.index, self.cells = cuda.to_device(arrays["index"]), cuda.to_device(plan.grids.cells)
        self.command = cuda.to_device(np.zeros((blocks(plan.num), COMMAND_ROWS, LANES), np.float32))
        self._derived = cuda.device_array((blocks(plan.num), dynamics.DERIVED_ROWS, LANES), np.float32)

    def step(self) -> None:
        """Advance all worlds under `command`."""
        plan = self.plan
        h, n = np.float32(plan.dt / plan.substeps), plan.substeps
        arrays = (self.state, self.parameters, self._derived, self.index, self.cells, self.command)
        STEP[launch(self._worlds, THREADS)](*arrays, plan.shape, h, n)

    def scan(self, rays: Any, ahead: float, longest: float, rows: Any, first: int, out: Any) -> None:
        """As `Cars.scan`, for cosines and sines of the beams (2, count); they, `rows` and `out` are on the device."""
        arrays = (self.state, self.parameters, self.index, self.cells, rays)
        SCAN[launch(len(rows) * rays.shape[1], THREADS)](
            *arrays, np.float32(ahead), np.float32(longest), rows, first, out
        )


class RaceCars(Cars):
    """As `Cars`, stepped on a GPU: its arrays stay here, and are copied there and back in each step and scan."""

    def __init__(
        self, car: Car, num: int, dt: float, tracks: Sequence[Track] | Grids = (), load_transfer: bool = False
    ) -> None:
        super().__init__(car, num, dt, tracks, load_transfer)
        self.device = CarsCuda(self)

    def advance(self, told: Array) -> None:
        device = self._sent()
        device.command.copy_to_device(told)
        device.step()
        device.state.copy_to_host(self._state)

    def scan(self, angle: Array, ahead: float, longest: float, rows: NDArray[np.int64], first: int, out: Array) -> None:
        device, there = self._sent(), cuda.to_device(out)
        device.scan(
            cuda.to_device(np.stack([np.cos(angle), np.sin(angle)])), ahead, longest, cuda.to_device(rows), first, there
        )
        there.copy_to_host(out)

    def _sent(self) -> CarsCuda:
        for name, array in self.arrays().items():
            getattr(self.device, name).copy_to_device(array)
        return self.device
