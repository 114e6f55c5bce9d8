"""Cars on tracks with walls, on the CPU: `num` worlds, each with one car and a track of its own out of several.

The equations are in `dynamics.py`, walls in `walls.py`; here they are laid over blocks of worlds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.car import dynamics, walls
from sim.engines.car.grids import INDEX_ROWS, PLACE_ROWS, Grids, grids_of
from sim.engines.car.lidar import rays_of, scan
from sim.engines.car.rows import COMMAND_ROWS, COS, PARAMETER_ROWS, STATE_ROWS, STATES, shape_of
from sim.engines.vector.blocks import block, borrowed, from_lanes, kernel, to_lanes
from sim.engines.vector.simd import ALL, LANES
from sim.robots.cars import Car
from sim.scenes.track import Track

Array = NDArray[np.float32]
SUBSTEP = 0.025  # s


@kernel
def step_blocks(state: Any, parameters: Any, index: Any, cells: Any, command: Any, shape: Any, h: Any, n: Any) -> None:
    """Advance all worlds by n steps of h seconds, in place. Arrays are (blocks, rows, LANES)."""
    cells, shape = borrowed((cells, shape))
    q = np.empty((dynamics.DERIVED_ROWS, LANES), np.float32)
    for place in range(state.shape[0]):
        s, p = block(state, place, STATE_ROWS), block(parameters, place, PARAMETER_ROWS + PLACE_ROWS)
        g, c = block(index, place, INDEX_ROWS), block(command, place, COMMAND_ROWS)
        walls.advance(s, p, q, g, c, cells, shape, h, n, ALL)


class Cars:
    """`num` worlds of one car each. Arrays are float32, (num, k).

    State names: position (m, world, of the centre of mass), heading (cosine, sine), velocity (m/s, ahead and to the
    left), turning (rad/s), steering_angle (rad), push (m/s^2, the motor's), touched (1: a wall, in the last step),
    impact (m/s at which it did). Without `tracks` there are no walls. `load_transfer`: braking loads the front wheels.
    """

    solid = True  # else lidars see walls, and cars drive through them

    def __init__(
        self, car: Car, num: int, dt: float, tracks: Sequence[Track] | Grids = (), load_transfer: bool = False
    ) -> None:
        if num < 1 or dt <= 0.0:
            raise ValueError(f"Cars needs num >= 1 and dt > 0, got {num}, {dt}")
        self.car, self.num, self.dt = car, num, dt
        self.shape = shape_of(car, load_transfer)
        self.substeps = max(1, round(dt / SUBSTEP))
        self._h = np.float32(dt / self.substeps)
        nothing = Grids(np.zeros(0, np.int16), np.zeros((1, PLACE_ROWS), np.float32), np.zeros((1, 2), np.int32))
        self.grids = tracks if isinstance(tracks, Grids) else grids_of(tracks) if tracks else nothing
        own = car.parameters()
        nominal = np.concatenate([*own.values(), self.grids.place[0]])
        self._state = to_lanes(np.tile(self._rest(), (num, 1)))
        self._parameters = to_lanes(np.tile(nominal, (num, 1)))
        self._index = to_lanes(np.tile(self.grids.places[0], (num, 1)), np.int32)
        self._where = {name: slice(k, k + 1) for k, name in enumerate(own)}

    def _rest(self) -> Array:
        rest = np.zeros(STATE_ROWS, np.float32)
        rest[COS] = 1.0
        return rest

    def _rows(self, name: str) -> tuple[Array, slice]:
        """The array that holds what has this name, and its rows."""
        if name in STATES:
            return self._state, STATES[name]
        if name in self._where:
            return self._parameters, self._where[name]
        raise KeyError(f"a car has no {name!r}; it has: {', '.join([*STATES, *self._where])}")

    def read(self, name: str) -> Array:
        """A copy of a state or parameter by name."""
        array, where = self._rows(name)
        return from_lanes(array[:, where], self.num)

    def write(self, worlds: NDArray[np.int64], values: Mapping[str, Any]) -> None:
        """Set states and parameters of these worlds (count,) from name -> (count, k)."""
        place, lane = np.divmod(worlds, self._state.shape[2])
        for name, value in values.items():
            array, where = self._rows(name)
            array[place[:, None], np.arange(where.start, where.stop), lane[:, None]] = np.asarray(value, np.float32)

    def on(self, worlds: NDArray[np.int64], tracks: NDArray[np.int64]) -> None:
        """Put these worlds (count,) on these tracks (count,)."""
        place, lane = np.divmod(worlds, self._state.shape[2])
        self._parameters[place, PARAMETER_ROWS:, lane] = self.grids.place[tracks]
        self._index[place, :, lane] = self.grids.places[tracks]

    def rows(self, name: str) -> slice:
        """Where what has this name lies in its array of `arrays`."""
        return self._rows(name)[1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All states and parameters, to be saved and written into."""
        return {"state": self._state, "parameters": self._parameters, "index": self._index}

    def reset(self, worlds: NDArray[np.int64], state: Mapping[str, Any]) -> None:
        """Begin anew in these worlds from name -> values; what is left out is at rest in the origin."""
        place, lane = np.divmod(worlds, self._state.shape[2])
        self._state[place, :, lane] = self._rest()
        self.write(worlds, state)

    def step(self, command: Array) -> None:
        """Advance all worlds by `dt` under (num, 2): steering (rad, to the left) and speed (m/s)."""
        if np.shape(command) != (self.num, COMMAND_ROWS):
            raise ValueError(f"{self.num} cars take {COMMAND_ROWS} commands each, got {np.shape(command)}")
        self.advance(to_lanes(np.asarray(command, np.float32)))

    def advance(self, told: Array) -> None:
        """The same under (blocks, 2, LANES)."""
        cells = self.grids.cells if self.solid else self.grids.cells[:0]
        step_blocks(self._state, self._parameters, self._index, cells, told, self.shape, self._h, self.substeps)

    def scan(self, angle: Array, ahead: float, longest: float, rows: NDArray[np.int64], first: int, out: Array) -> None:
        """What lidars of these rows see, m along beams (count,) rad from ahead: in out (blocks, rows, LANES).

        There they are the rows from `first` on.
        """
        arrays, rays = (self._state, self._parameters, self._index, self.grids.cells), rays_of(angle)
        scan(*arrays, rays, len(angle), np.float32(ahead), np.float32(longest), rows, first, out)

    def close(self) -> None:
        """Nothing is held."""
