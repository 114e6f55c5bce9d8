"""SUMO (Alvarez Lopez et al. 2018; wheels libsumo and eclipse-sumo): one simulation, which is all that a process has.

Everybody who departs is subscribed to once; a step reads all of them at once, into one array, over which a compiled
loop goes (`looking`). It is configured here alone: no file of a stranger reaches SUMO (`network`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.sumo import installed
from sim.engines.sumo.demand import Demand, called
from sim.engines.sumo.network import GREEN, Network
from sim.engines.sumo.surrogate import Surrogate
from sim.engines.sumo.told import (
    COLUMNS,
    EMISSION,
    EMISSION_PENALTY,
    EQUIPPED,
    FAR,
    MEASURED,
    MILLI,
    RANGE,
    ROW,
    STOP_PENALTY,
    TOTALS,
)

__all__ = ["COLUMNS", "FAR", "MILLI", "RANGE", "STEP", "TOTALS", "Simulation"]
STEP = 0.5  # s
NOWHERE = (RANGE, RANGE, 0.0, False)  # of no lane: length, limit, grade, whether it leads to the signal


class _Lanes(dict[str, float]):
    """Which of the lanes that is; the last one stands for no lane, on which somebody is who is moved aside."""

    def __missing__(self, name: str) -> float:
        return -1.0


class Simulation:
    """One episode after the other in this process.

    `table` (room, COLUMNS and TOTALS) is of the equipped vehicles on the road. One takes the first row that is free
    when it departs, until it has left the network: `taken` says who has which. If none is free, it drives as if it were
    not equipped. What one is worth to a step, in m/s, is its speed above the limit, minus `penalties` for standing (per
    m/s below 1 m/s) and for emissions (per g/s).
    """

    def __init__(self, room: int = 0, penalties: tuple[float, float] = (STOP_PENALTY, EMISSION_PENALTY)) -> None:
        from sim.engines.sumo.looking import look  # Numba: not for who asks only what there is

        self._sumo, self._fill = installed.library(), look
        self._begun, self._penalties = False, tuple(map(float, penalties))
        self._all = np.zeros((room + 1, len(COLUMNS) + len(TOTALS)))  # the last row is nobody's
        self.table = self._all[:room]

    def begin(
        self,
        network: Network,
        demand: Demand,
        routes: Path,
        seed: int,
        surrogates: Mapping[str, Surrogate] | None = None,
    ) -> None:
        """Load a network and its traffic; time is 0. `surrogates`, by kind of vehicle, say of CO2 what SUMO would."""
        data = installed.home() / installed.PHEMLIGHT
        options = {
            "--net-file": network.path,
            "--route-files": str(routes),
            "--step-length": str(STEP),
            "--seed": str(seed % 2**31),
            "--no-step-log": "true",
            "--no-warnings": "true",
            "--xml-validation": "never",
            "--xml-validation.net": "never",
            "--collision.action": "warn",
            "--phemlight-path": f"{data}/",
        }
        words = [word for pair in options.items() for word in pair]
        if self._begun:
            self._sumo.load(words)
        else:
            self._sumo.start(["sumo", *words])
        self._begun, sumo = True, self._sumo
        self._set_speed: Any = sumo.vehicle.setSpeed
        self._measured = [sumo.VAR_SPEED, sumo.VAR_LANE_ID, sumo.VAR_LANEPOSITION, sumo.VAR_CO2EMISSION]
        self._told = [
            sumo.VAR_DEPARTED_VEHICLES_IDS,
            sumo.VAR_ARRIVED_VEHICLES_NUMBER,
            sumo.VAR_COLLIDING_VEHICLES_NUMBER,
            sumo.VAR_TELEPORT_STARTING_VEHICLES_NUMBER,
        ]
        self._surrogates = dict(surrogates or {})
        if surrogates:
            self._measured += [sumo.VAR_ACCELERATION, sumo.VAR_SLOPE]
        self._wanted = sorted(self._measured)  # in this order SUMO answers
        self._places = slice(self._wanted.index(sumo.VAR_LANE_ID), None, len(self._wanted))
        sumo.simulation.subscribe(self._told)
        self.network, self.demand, self.time = network, demand, 0.0
        self._lane = _Lanes({name: float(k) for k, name in enumerate(network.lanes)})
        self._lanes = np.array([*network.lanes.values(), NOWHERE], np.float64)
        columns = np.broadcast_arrays(demand.equipped, demand.length, demand.movement, 0.0, len(self.table))
        self._fleet = np.column_stack(columns).astype(np.float64)
        self._called = [called(number) for number in range(len(self._fleet))]
        self._names: tuple[str, ...] = ()  # of all on the road, and their numbers
        self._numbers = np.zeros(0, np.int64)
        self._program()
        self.taken: dict[int, int] = {}  # number in the demand -> its row
        self._all[:] = 0.0

    def _program(self) -> None:
        """Of each phase and movement: whether it is green, how long until that changes, and how long it lasts then."""
        network, durations = self.network, self.network.durations.tolist()
        phases = len(durations)
        links = [movement.link for movement in network.movements]
        self._ends = np.cumsum(durations).tolist()
        self._states = [np.zeros((len(links), 3)) for _ in durations]
        for phase in range(phases):
            for k, link in enumerate(links):
                now, waited, changes = network.states[phase][link] in GREEN, 0.0, list[float]()
                for later in range(1, 2 * phases + 1):
                    at = (phase + later) % phases
                    if (network.states[at][link] in GREEN) == (now ^ (len(changes) % 2 == 1)):
                        waited += durations[at]
                        continue
                    changes.append(waited)
                    waited += durations[at]
                    if len(changes) == 2:
                        break
                after = changes[0] if changes else FAR
                lasts = changes[1] - changes[0] if len(changes) == 2 else FAR
                self._states[phase][k] = float(now), after, lasts

    def step(self) -> None:
        """Half a second."""
        sumo = self._sumo
        sumo.simulationStep()
        self.time += STEP
        told = sumo.simulation.getSubscriptionResults()
        departed, arrived, collided, removed = self._told
        for who in told[departed]:
            sumo.vehicle.subscribe(who, self._wanted)
        self._look(
            sumo.vehicle.getAllSubscriptionResults(), told[departed], told[arrived], told[collided] + told[removed]
        )

    def _look(self, seen: Mapping[str, dict[int, Any]], departed: Iterable[str], arrived: int, faults: int) -> None:
        """One array of what SUMO says of all, in the order of their numbers; the rest is compiled."""
        too_many: list[int] = []
        if (names := tuple(seen)) != self._names:
            self._names, self._numbers = names, np.array([*map(int, names)], np.int64)
            too_many = self._come_and_go(map(int, departed))
        said: list[Any] = [*chain.from_iterable(map(dict.values, seen.values()))]
        lanes = self._places
        said[lanes] = map(self._lane.__getitem__, said[lanes])
        measured = np.array(said, np.float64)
        if self._surrogates:
            measured = self._emitted(measured.reshape(-1, len(self._wanted)))
        at = (self.time - self.network.offset) % self._ends[-1]
        phase = min(bisect_right(self._ends, at + 1e-6), len(self._ends) - 1)
        signal = self._states[phase], self._ends[phase] - at
        self._fill(
            measured, self._numbers, self._fleet, self._lanes, *signal, arrived, faults, self._penalties, self._all
        )
        if too_many:
            self._fleet[too_many, EQUIPPED] = 0.0

    def _come_and_go(self, departed: Iterable[int]) -> list[int]:
        """Give rows to who departed, and take them from who has left; who is equipped, but found none."""
        free, too_many = sorted({*range(len(self.table))} - {*self.taken.values()}, reverse=True), []
        for number in departed:
            if self._fleet[number, EQUIPPED]:
                if free:
                    self.taken[number] = self._fleet[number, ROW] = free.pop()
                else:
                    too_many.append(number)
        for number in self.taken.keys() - {*self._numbers.tolist()}:
            del self.taken[number]
        return too_many

    def _emitted(self, said: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is measured (n, 4), with what surrogates say of vehicles of their kind in the place of SUMO."""
        kinds, columns = self.demand.kind[self._numbers], [self._wanted.index(name) for name in self._measured]
        measured = np.ascontiguousarray(said[:, columns[: len(MEASURED)]])
        moments = said[:, [columns[0], *columns[len(MEASURED) :]]]
        moments[:, 2] = np.tan(np.radians(moments[:, 2]))
        for kind, surrogate in self._surrogates.items():
            of = kinds == kind
            measured[of, EMISSION] = surrogate.co2(moments[of]) / MILLI
        return measured

    def command(self, number: int, speed: float) -> None:
        """The speed to have in half a second, as far as SUMO holds it for safe; -1: as the driver likes."""
        self._set_speed(self._called[number], speed)

    def places(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Where vehicles are (n, 2), m, and which are equipped (n,): for pictures."""
        who = self._sumo.vehicle.getIDList()
        points = np.array([self._sumo.vehicle.getPosition(one) for one in who], np.float64).reshape(-1, 2)
        return points, self.demand.equipped[[int(one) for one in who]]

    def moments(self) -> list[tuple[float, ...]]:
        """Of everybody: number, m/s, m/s^2, degrees of slope; and mg/s of CO, CO2, HC, PMx, NOx and fuel."""
        one: Any = self._sumo.vehicle
        moving = (one.getSpeed, one.getAcceleration, one.getSlope)
        emitting = (one.getCOEmission, one.getCO2Emission, one.getHCEmission, one.getPMxEmission, one.getNOxEmission)
        told = (*moving, *emitting, one.getFuelConsumption)
        return [(int(who), *(ask(who) for ask in told)) for who in one.getIDList()]

    def close(self) -> None:
        """End it."""
        if self._begun:
            self._sumo.close()
            self._begun = False
