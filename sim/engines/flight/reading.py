"""The state and the parameters of vehicles in flight, as columns of one array; see `sim.engines.ReadsTogether`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.flight import dynamics
from sim.engines.flight.rows import COLUMNS, QUATERNION, SIGNAL_ROWS, SIGNALS, STATE, STATE_ROWS
from sim.engines.vector.blocks import block, inlined, kernel
from sim.engines.vector.rows import tell
from sim.engines.vector.simd import ALL, LANES
from sim.randomize import Array

if TYPE_CHECKING:
    from sim.engines.flight import Flight

ROTATION = STATE_ROWS + SIGNALS["rotation"].start  # rows of what is read: state, signals, parameters
PARAMETERS = STATE_ROWS + SIGNAL_ROWS


@inlined
def gathered(state, signals, sense, rows, columns, table):
    """One block's columns of table (k, LANES) from rows of the state and, if `sense`, of the signals."""
    if sense:
        dynamics.sense(state, signals, ALL)
    for k in range(len(rows)):
        if rows[k] < STATE_ROWS:
            table[columns[k], ALL] = state[rows[k], ALL]
        else:
            table[columns[k], ALL] = signals[rows[k] - STATE_ROWS, ALL]


@kernel
def gather_rows(state, sense, rows, columns, table):
    """The same of all blocks."""
    signals: Any = np.zeros((SIGNAL_ROWS, LANES), np.float32)
    for place in range(len(state)):
        gathered(block(state, place, STATE_ROWS), signals, sense, rows, columns, block(table, place, table.shape[1]))


@inlined
def gathered_row(state, parameters, robot, rows, columns, table):
    """The same of one robot, with parameters (n, columns)."""
    place, lane = robot // LANES, robot % LANES
    s = block(state, place, STATE_ROWS)
    q = QUATERNION
    r = dynamics.rotation(s[q, lane], s[q + 1, lane], s[q + 2, lane], s[q + 3, lane])
    for k in range(len(rows)):
        row, column = rows[k], columns[k]
        if row < STATE_ROWS:
            table[place, column, lane] = s[row, lane]
        elif row < PARAMETERS:
            table[place, column, lane] = r[row - ROTATION]
        else:
            table[place, column, lane] = parameters[robot, row - PARAMETERS]


@inlined
def begun_row(prepared, index, row, rows, columns, table):
    """The same of one robot that begins as it was prepared, in a row of the table."""
    t, lane = block(table, row // LANES, table.shape[1]), row % LANES
    for k in range(len(rows)):
        t[columns[k], lane] = prepared[index, rows[k]]


@kernel
def rotate_rows(prepared):
    """Fill in the rotation matrices of states (n, STATE_ROWS and more)."""
    for row in prepared:
        r = dynamics.rotation(row[QUATERNION], row[QUATERNION + 1], row[QUATERNION + 2], row[QUATERNION + 3])
        for k in range(len(r)):
            row[ROTATION + k] = r[k]


@kernel
def gather_some(state, parameters, robots, rows, columns, table):
    """The same of some robots (count,)."""
    for robot in robots:
        gathered_row(state, parameters, robot, rows, columns, table)


class Reader:
    """Writes these signals of `flight` into these columns of an array (blocks, k, LANES), always the same one."""

    def __init__(self, flight: Flight, where: Mapping[str, slice]) -> None:
        sources = {name: at.start for name, at in STATE.items()} | {"rotation": ROTATION}
        sources |= {name: PARAMETERS + at.start for name, at in COLUMNS.items()}
        self.flight, self.others = flight, {name: at for name, at in where.items() if name not in sources}
        self.changed = np.ones(flight.num, bool)  # vehicles with parameters that were not read yet
        known = [(sources[name], at) for name, at in where.items() if name in sources]
        pairs = sorted((source + c - at.start, c) for source, at in known for c in range(at.start, at.stop))
        rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
        moving = int(np.searchsorted(rows, PARAMETERS))  # those after them change rarely
        self.all = rows, columns
        self.moving, self.fixed = (rows[:moving], columns[:moving]), (rows[moving:], columns[moving:])
        self.senses, self.everyone = "rotation" in where, np.arange(flight.num)

    def __call__(self, table: Array, robots: NDArray[np.int64] | None = None) -> None:
        flight = self.flight
        if robots is not None:
            gather_some(flight.state, flight.values, robots, *self.all, table)
            self.changed[robots] = False
        else:
            gather_rows(flight.state, self.senses, *self.moving, table)
            self.catch_up(table)
        for name, at in self.others.items():
            tell(flight.read(name), self.everyone, at.start, table)

    def catch_up(self, table: Array) -> None:
        """Read the parameters that were changed."""
        if self.changed.any():
            gather_some(self.flight.state, self.flight.values, self.changed.nonzero()[0], *self.fixed, table)
            self.changed[:] = False
