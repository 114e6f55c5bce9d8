"""Many control steps of vehicles in flight within one compiled loop: what it holds, and how a row begins anew in it.

The functions are those of `sim.simulation`, row by row and block by block, so that the numbers are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.flight import begun_vehicle
from sim.engines.flight.control_step import moved
from sim.engines.flight.reading import gathered_row
from sim.engines.vector.blocks import inlined
from sim.engines.vector.channels import begun, sent_row
from sim.engines.vector.rows import Outcome, World, started
from sim.engines.vector.simd import LANES
from sim.engines.vector.streams import Streams
from sim.randomize import Array


class Episodes(NamedTuple):
    """With what episodes begin, one per row (count, ...)."""

    prepared: Array  # of `Flight.prepare`
    slow: Array  # latency of the commands, in control steps
    late: Array  # that of the sensors
    stream: Streams
    limit: NDArray[np.int64]  # control steps until it is over
    known: Array  # (count, steps, k), what no engine knows, at each of so many control steps


class Rows(NamedTuple):
    """What a compiled loop reads and writes: n rows, of which LANES are a block."""

    world: World
    state: Array
    derived: Array
    values: Array  # (n, k) physical parameters
    substep: np.float32
    substeps: int
    sense: bool  # whether rotation matrices are read
    moving: tuple[NDArray[np.int64], NDArray[np.int64]]  # rows of the vehicles that are read in each step; columns
    all: tuple[NDArray[np.int64], NDArray[np.int64]]  # the same as an episode begins
    initial: Array  # action
    still: Array  # (blocks, k, LANES), its command
    started: NDArray[np.int64]  # see `sim.engines.vector.rows.start`
    slow: Array  # (n, commands)
    late: Array  # (n, signals)
    bias: Array  # standard deviations of the sensors' offsets
    limit: NDArray[np.int64]  # (n,)
    outcome: Outcome


@inlined
def begins(row, index, episodes, rows, room):
    """Begin an episode, one of `episodes`, in a row."""
    world, late, lost = rows.world, room[2], room[3]
    place, lane = row // LANES, row % LANES
    begun_vehicle(episodes.prepared, index, row, rows.state, rows.derived, rows.values)
    world.steps[row], rows.limit[row] = 0, episodes.limit[index]
    own = episodes.stream[index]
    begun(row, episodes.slow, index, rows.still, rows.bias[:0], own, rows.slow, world.actuators)
    started(row, rows.initial, rows.slow, rows.started, world.orders.past, world.table)
    gathered_row(rows.state, rows.values, row, rows.all[0], rows.all[1], world.table)
    for k in range(len(world.places)):
        world.table[place, world.places[k], lane] = episodes.known[index, 0, k]
    begun(row, episodes.late, index, world.table, rows.bias, own, rows.late, world.sensors)
    sent_row(world.sensors, row, world.table, late, lost)


@inlined
def steps(place, told, known, rows, log, room):
    """One control step of a block under told (n, k), with known (n, columns) of what no engine knows."""
    first = place * LANES
    for lane in range(LANES):
        rows.world.steps[first + lane] += 1
    vehicles = rows.state, rows.derived, rows.substep, rows.substeps
    moved(place, told, known, rows.world, vehicles, rows.sense, rows.moving[0], rows.moving[1], log, rows.outcome, room)
