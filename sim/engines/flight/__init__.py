"""Batched quadrotor flight on the CPU; every vehicle has its own parameters. `flight_cuda.py` does the same on a GPU.

The equations and their adjoint are in `dynamics.py`; here they are laid over blocks of vehicles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.engines.flight import dynamics
from sim.engines.flight.airspace import blow
from sim.engines.flight.control_step import WholeStep
from sim.engines.flight.reading import PARAMETERS, Reader, rotate_rows
from sim.engines.flight.rows import (
    COLUMNS,
    COMMAND_ROWS,
    PARAMETER_ROWS,
    REST,
    SIGNAL_ROWS,
    STATE,
    STATE_ROWS,
    derive_values,
)
from sim.engines.vector.blocks import block, blocks, from_lanes, inlined, kernel, to_lanes
from sim.engines.vector.simd import ALL, LANES
from sim.randomize import Array
from sim.robots.quadrotors import Quadrotor


@kernel
def step_blocks(state, parameters, command, h, substeps):
    """Advance all vehicles by `substeps` steps of h seconds, in place. Arrays are (blocks, rows, LANES)."""
    for index in range(state.shape[0]):
        s = block(state, index, STATE_ROWS)
        p = block(parameters, index, PARAMETER_ROWS)
        c = block(command, index, COMMAND_ROWS)
        for _ in range(substeps):
            dynamics.advance(s, p, c, s, ALL, h)


@kernel
def step_adjoint_blocks(state, parameters, command, gradient, g_command, h):
    """The adjoint of one substep: `gradient` goes from the new state's to the old one's, g_command is added to."""
    for index in range(state.shape[0]):
        s = block(state, index, STATE_ROWS)
        p = block(parameters, index, PARAMETER_ROWS)
        c = block(command, index, COMMAND_ROWS)
        g = block(gradient, index, STATE_ROWS)
        gc = block(g_command, index, COMMAND_ROWS)
        dynamics.advance_adjoint(s, p, c, g, gc, ALL, h)


@kernel
def sense_blocks(state, out):
    """Position, rotation matrix, velocity and body rate of every vehicle: out (blocks, SIGNAL_ROWS, LANES)."""
    for index in range(state.shape[0]):
        s = block(state, index, STATE_ROWS)
        o = block(out, index, SIGNAL_ROWS)
        dynamics.sense(s, o, ALL)


@kernel
def sense_adjoint_blocks(state, gradient, g_state):
    """The adjoint of `sense_blocks`: adds to g_state (blocks, STATE_ROWS, LANES), given the gradient of its result."""
    for index in range(state.shape[0]):
        s = block(state, index, STATE_ROWS)
        g = block(gradient, index, SIGNAL_ROWS)
        gs = block(g_state, index, STATE_ROWS)
        dynamics.sense_adjoint(s, g, gs, ALL)


@kernel
def fill(values, lanes):
    """lanes (blocks, k, LANES) from values (n, k)."""
    for vehicle in range(values.shape[0]):
        for k in range(values.shape[1]):
            lanes[vehicle // LANES, k, vehicle % LANES] = values[vehicle, k]


@kernel
def put(values, vehicles, lanes):
    """Vehicles (count,) in lanes (blocks, k, LANES) from values (count, k)."""
    for index in range(len(vehicles)):
        place, lane = vehicles[index] // LANES, vehicles[index] % LANES
        for k in range(values.shape[1]):
            lanes[place, k, lane] = values[index, k]


@inlined
def begun_vehicle(prepared, index, vehicle, state, derived, values):
    """One vehicle from row `index` of what was prepared; see `Flight.prepare`."""
    place, lane, count = vehicle // LANES, vehicle % LANES, values.shape[1]
    s, d = block(state, place, STATE_ROWS), block(derived, place, PARAMETER_ROWS)
    for k in range(STATE_ROWS):
        s[k, lane] = prepared[index, k]
    for k in range(count):
        values[vehicle, k] = prepared[index, PARAMETERS + k]
    for k in range(PARAMETER_ROWS):
        d[k, lane] = prepared[index, PARAMETERS + count + k]


@kernel
def begin_vehicles(prepared, vehicles, state, derived, values):
    """Vehicles (count,) in lanes from what was prepared, values (n, columns)."""
    for index in range(len(vehicles)):
        begun_vehicle(prepared, index, vehicles[index], state, derived, values)


def _rows(count: int, state: Mapping[str, Any]) -> Array:
    """States (count, STATE_ROWS) from name -> (count, k)."""
    rows = np.empty((count, STATE_ROWS), np.float32)
    rows[:] = REST
    for name, value in state.items():
        if name not in STATE:
            raise KeyError(f"a quadrotor has no state {name!r}; it has: {', '.join(STATE)}")
        rows[:, STATE[name]] = value
    return rows


class Flight:
    """`num` quadrotors. With `downwash`, each `downwash` consecutive vehicles share an airspace (`airspace.py`)."""

    cuda: ClassVar[str] = "sim.engines.flight.cuda:FlightCuda"

    def __init__(
        self, robot: Quadrotor, num: int, dt: float, device: str = "cpu", substeps: int = 1, downwash: int = 0
    ) -> None:
        if num < 1 or dt <= 0.0 or substeps < 1:
            raise ValueError(f"Flight needs num >= 1, dt > 0 and substeps >= 1, got {num}, {dt}, {substeps}")
        if downwash and num % downwash:
            raise ValueError(f"{num} vehicles cannot be split into airspaces of {downwash}")
        if device != "cpu":
            raise ValueError(f"Flight runs on the CPU, {self.cuda} on a GPU; got device {device!r}")
        self.robot, self.num, self.dt, self.device = robot, num, dt, device
        self.substeps, self.downwash = substeps, downwash
        nominal = robot.parameters()
        nominal = {name: nominal[name] for name in COLUMNS} | nominal  # a robot may have more of its own, after these
        self.nominal, ends = np.concatenate([*nominal.values()]), np.cumsum([len(v) for v in nominal.values()])
        self.columns = {k: slice(end - len(v), end) for (k, v), end in zip(nominal.items(), ends, strict=True)}
        self.values = np.tile(self.nominal, (num, 1))
        self.parameters = {name: self.values[:, at] for name, at in self.columns.items()}
        self.substep = np.float32(dt / substeps)
        self._readers: list[Reader] = []
        self.state = to_lanes(np.tile(REST, (num, 1)))
        self.washed = np.zeros(num, np.float32)  # N of downwash on each, in the last step
        self._command = np.zeros((blocks(num), COMMAND_ROWS, LANES), np.float32)
        self.signals = np.zeros((blocks(num), SIGNAL_ROWS, LANES), np.float32)
        self.derived = np.zeros((blocks(num), PARAMETER_ROWS, LANES), np.float32)
        self._derive(self._index(None))

    def _derive(self, index: Any) -> None:
        put(derive_values(self.values[index], self.dt / self.substeps), index, self.derived)
        for reader in self._readers:
            reader.changed[index] = True

    def prepare(self, count: int, state: Mapping[str, Any], parameters: Mapping[str, Any]) -> Array:
        """Each vehicle's state and parameters with the rows of `reading`, and its derived parameters."""
        last = PARAMETERS + len(self.nominal)
        prepared = np.empty((count, last + PARAMETER_ROWS), np.float32)
        prepared[:, :STATE_ROWS] = _rows(count, state)
        values = prepared[:, PARAMETERS:last]
        values[:] = self.nominal
        for name, value in parameters.items():
            values[:, self._column(name)] = value
        prepared[:, last:] = derive_values(values, self.dt / self.substeps)
        rotate_rows(prepared)
        return prepared

    def begin(self, robots: NDArray[np.int64], prepared: Array) -> None:
        begin_vehicles(prepared, robots, self.state, self.derived, self.values)
        for reader in self._readers:
            reader.changed[robots] = True

    def _column(self, name: str) -> slice:
        if name not in self.columns:
            raise KeyError(f"a quadrotor has no parameter {name!r}; it has: {', '.join(self.columns)}")
        return self.columns[name]

    def _index(self, mask: Any | None) -> Any:
        return np.arange(self.num) if mask is None else np.asarray(mask, bool).nonzero()[0]

    def reset(self, mask: Any | None, state: Mapping[str, Any]) -> None:
        index = self._index(mask)
        put(_rows(len(index), state), index, self.state)

    def check(self, command: Any) -> None:
        """ValueError unless there are as many commands as motors, for each vehicle."""
        if np.shape(command) != (self.num, COMMAND_ROWS):
            raise ValueError(f"{self.num} quadrotors take {COMMAND_ROWS} commands each, got {np.shape(command)}")

    def step(self, command: Any) -> None:
        self.check(command)
        if self.downwash:
            blow(self.state, self.values, self.derived, self.downwash, self.washed)
        fill(np.ascontiguousarray(command, np.float32), self._command)
        step_blocks(self.state, self.derived, self._command, self.substep, self.substeps)

    def read(self, name: str) -> Array:
        if name in STATE:
            return from_lanes(self.state[:, STATE[name]], self.num)
        if name == "rotation":
            sense_blocks(self.state, self.signals)
            return from_lanes(self.signals[:, 3:12], self.num)
        if name in self.parameters:
            return self.parameters[name].copy()
        choices = ", ".join([*STATE, "rotation", *self.parameters])
        raise KeyError(f"a quadrotor in flight has no {name!r}; it has: {choices}")

    def reader(self, where: Mapping[str, slice]) -> Reader:
        known = all(name in STATE or name in COLUMNS or name == "rotation" for name in where)
        made = (WholeStep if known and not self.downwash else Reader)(self, where)
        self._readers.append(made)
        return made

    def set_parameters(self, mask: Any | None, parameters: Mapping[str, Any]) -> None:
        index = self._index(mask)
        for name, value in parameters.items():
            self.values[index, self._column(name)] = value
        self._derive(index)
