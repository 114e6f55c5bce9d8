"""Many control steps of vehicles in flight within one compiled loop: what it holds, and how a row begins anew in it.

The functions are those of `sim.simulation`, row by row and block by block, so that the numbers are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.flight import begun_vehicle
from sim.engines.flight.control_step import moved
from sim.engines.flight.reading import begun_row
from sim.engines.vector.blocks import inlined, run
from sim.engines.vector.channels import begun, sent_row
from sim.engines.vector.rows import World, started
from sim.engines.vector.simd import ALL, LANES, flags, select
from sim.engines.vector.streams import Streams
from sim.randomize import Array

STEP = np.int64(1)
ZERO, ONE = np.float32(0.0), np.float32(1.0)


class Episodes(NamedTuple):
    """With what episodes begin, one per row (count, ...)."""

    prepared: Array  # of `Flight.prepare`
    slow: Array  # latency of the commands, in control steps
    late: Array  # that of the sensors
    stream: Streams
    limit: NDArray[np.int64]  # control steps until it is over
    known: Array  # (count, steps, k), what no engine knows, at each of so many control steps, or the one that it stays


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


@inlined
def begins(row, index, episodes, rows, room):
    """Begin an episode, one of `episodes`, in a row."""
    world = rows.world
    place, lane = row // LANES, row % LANES
    begun_vehicle(episodes.prepared, index, row, rows.state, rows.derived, rows.values)
    world.steps[row], rows.limit[row] = 0, episodes.limit[index]
    own = episodes.stream[index]
    begun(row, episodes.slow, index, rows.still, rows.bias[:0], own, rows.slow, world.actuators)
    started(row, rows.initial, rows.slow, rows.started, world.orders.past, world.table)
    begun_row(episodes.prepared, index, row, rows.all[0], rows.all[1], world.table)
    for k in range(len(world.places)):
        world.table[place, world.places[k], lane] = episodes.known[index, 0, k]
    begun(row, episodes.late, index, world.table, rows.bias, own, rows.late, world.sensors)
    sent_row(world.sensors, row, world.table, room.added, room.dropped)


@inlined
def steps(place, rows, log, room):
    """One control step of a block under what it was told, the last rows of log; `room.kept` is what it brought.

    What no engine knows stands in the table already. Returns a bit for each lane: whether its episode is over.
    """
    done, limit = run(rows.world.steps, place), run(rows.limit, place)
    done[0, ALL] = done[0, ALL] + STEP
    vehicles = rows.state, rows.derived, rows.substep, rows.substeps
    moved(place, rows.world, vehicles, rows.sense, rows.moving[0], rows.moving[1], log, room)
    alive = room.kept[len(rows.world.rules.costs), ALL]
    return flags(select(done[0, ALL] < limit[0, ALL], alive, ZERO) < ONE)
