"""A control step of vehicles in flight in one pass: commands, latency, physics, sensing, rewards.

The same functions as where each has a pass of its own (`sim.simulation`), so that the numbers are equal; but a block of
vehicles stays in the cache from its commands to its reward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sim.engines.flight import dynamics
from sim.engines.flight.reading import Reader, gathered
from sim.engines.flight.rows import COMMAND_ROWS, PARAMETER_ROWS, SIGNAL_ROWS, STATE_ROWS
from sim.engines.vector.blocks import block, borrowed, inlined, kernel
from sim.engines.vector.channels import room, sent
from sim.engines.vector.rows import Outcome, World, judged, noted, ordered, reported
from sim.engines.vector.simd import ALL, LANES
from sim.randomize import Array


class Room(NamedTuple):
    """For what one block's control step needs in between."""

    late: Array  # of the actuators
    lost: Array
    added: Array  # of the sensors
    dropped: Array
    signals: Array
    kept: Array  # (costs + 2, LANES), each unweighted cost, 1 where not lost, and the reward


@inlined
def moved(place, world, vehicles, sense, rows, columns, log, room):
    """One block's control step under what it was told, the last rows of log (k, LANES). See `control_step`."""
    state, derived, h, substeps = vehicles
    actuators, sensors = world.actuators, world.sensors
    t = block(world.table, place, world.table.shape[1])
    ordered(world.orders, place, t, log)
    sent(actuators, place, log, room.late, room.lost)
    s, p = block(state, place, STATE_ROWS), block(derived, place, PARAMETER_ROWS)
    c = block(actuators.arrived, place, COMMAND_ROWS)
    for _ in range(substeps):
        dynamics.advance(s, p, c, s, ALL, h)
    gathered(s, room.signals, sense, rows, columns, t)
    sent(sensors, place, t, room.added, room.dropped)
    judged(world.rules, t, room.kept)


@inlined
def rooms(world):
    """For `moved`."""
    signals: Any = np.zeros((SIGNAL_ROWS, LANES), np.float32)
    kept: Any = np.zeros((len(world.rules.costs) + 2, LANES), np.float32)
    late, lost = room(world.actuators)
    added, dropped = room(world.sensors)
    return Room(late, lost, added, dropped, signals, kept)


@kernel
def control_step(told, known, world, vehicles, sense, rows, columns, log, outcome):
    """Advance all vehicles under told (n, k); whether some that is not lost has made its last step.

    `vehicles` are (state, derived parameters, s of a substep, substeps); `rows` of theirs are read into `columns`.
    """
    world, vehicles, outcome = borrowed((world, vehicles, outcome))
    rest, ended = rooms(world), False
    for place in range(len(world.table)):
        o, t = block(log, place, log.shape[1]), block(world.table, place, world.table.shape[1])
        noted(told, place, t, o)
        for lane in range(min(LANES, len(told) - place * LANES)):
            for k in range(len(world.places)):
                t[world.places[k], lane] = known[place * LANES + lane, k]
        moved(place, world, vehicles, sense, rows, columns, o, rest)
        ended |= reported(world.rules, place, world.steps, rest.kept, outcome)
    return ended


class WholeStep(Reader):
    """A reader that carries out whole control steps, too."""

    def whole_step(self, told: Array, known: Array, world: World, log: Array, outcome: Outcome) -> bool:
        flight = self.flight
        flight.check(told)
        told = np.ascontiguousarray(told)  # of columns that lie apart the kernel would be compiled once more
        self.catch_up(world.table)
        vehicles = flight.state, flight.derived, flight.substep, flight.substeps
        ended: bool = control_step(told, known, world, vehicles, self.senses, *self.moving, log, outcome)
        return ended
