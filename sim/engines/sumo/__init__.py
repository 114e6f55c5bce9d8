"""SUMO (Alvarez Lopez et al. 2018; wheels libsumo and eclipse-sumo): one simulation, which is all that a process has.

Everybody who departs is subscribed to once; a step reads all of them at once. It is configured here alone: no file of a
stranger reaches SUMO (`network`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from operator import itemgetter, neg
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engines.sumo import installed
from sim.engines.sumo.demand import Demand, called
from sim.engines.sumo.network import GREEN, Network
from sim.engines.sumo.surrogate import Surrogate

STEP = 0.5  # s
STOPPED = 0.1  # m/s: who is slower stands
FAR = 200.0  # s: what changes later than that
RANGE = 300.0  # m: what lies further ahead nobody is told
MILLI = 1e-3
NOWHERE = (RANGE, RANGE, 0.0, False)  # of no lane: length, limit, grade, whether it leads to the signal


# What is known of an equipped vehicle, in this order.
COLUMNS = (
    "number",  # in the demand
    "speed",  # m/s
    "distance",  # m to the stop line; RANGE when beyond it
    "green",  # 1 or 0
    "change",  # s until that changes
    "lasts",  # s for which it lasts then
    "gap",  # m to who drives ahead on its lane
    "leader_speed",  # m/s of that; the lane's limit where there is nobody
    "limit",  # m/s
    "grade",  # rise over run, ahead
    "emission",  # g/s of CO2
    "followers",  # how many drive behind on its lane, up to the next equipped one
    "worth",  # the mean over itself and these
)
STOP_PENALTY, STOP_SPEED, EMISSION_PENALTY = 35.0, 1.0, 3.0  # IntersectionZoo's


class Totals(NamedTuple):
    """Of all vehicles on the road, in the last step."""

    vehicles: int
    speed: float  # m/s, their sum
    emission: float  # g/s of CO2
    stops: int  # that began
    arrived: int
    faults: int  # who ran into another on a lane, or stood for so long (300 s) that SUMO moved him


class _Lanes(dict[str, int]):
    """Which of the lanes that is; the last one stands for no lane, on which somebody is who is moved aside."""

    def __missing__(self, name: str) -> int:
        return -1


class Simulation:
    """One episode after the other in this process.

    `agents` are the equipped vehicles on the road, each with COLUMNS. What one is worth to a step, in m/s, is its
    speed above the limit, minus penalties for standing and for emissions (per g/s).
    """

    def __init__(self) -> None:
        self._sumo = installed.library()
        self._begun = False

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
        self._wanted = [sumo.VAR_SPEED, sumo.VAR_LANE_ID, sumo.VAR_LANEPOSITION, sumo.VAR_CO2EMISSION]
        self._told = [
            sumo.VAR_DEPARTED_VEHICLES_IDS,
            sumo.VAR_ARRIVED_VEHICLES_NUMBER,
            sumo.VAR_COLLIDING_VEHICLES_NUMBER,
            sumo.VAR_TELEPORT_STARTING_VEHICLES_NUMBER,
        ]
        self._values = itemgetter(*self._wanted)
        self._surrogates, self._moment = dict(surrogates or {}), itemgetter(sumo.VAR_SPEED)
        if surrogates:
            self._moment = itemgetter(sumo.VAR_SPEED, sumo.VAR_ACCELERATION, sumo.VAR_SLOPE)
            self._wanted += [sumo.VAR_ACCELERATION, sumo.VAR_SLOPE]
        sumo.simulation.subscribe(self._told)
        self.network, self.demand, self.time = network, demand, 0.0
        self._lane = _Lanes({name: k for k, name in enumerate(network.lanes)})
        self._lanes = [*network.lanes.values(), NOWHERE]
        names = [called(number) for number in range(len(demand.length))]
        ways = zip(names, demand.equipped.tolist(), demand.movement.tolist(), strict=True)
        self._equipped = {name: way for name, equipped, way in ways if equipped}
        self._long, self._standing = dict(zip(names, demand.length.tolist(), strict=True)), set[str]()
        self._program()
        self.departed: tuple[str, ...] = ()
        self.agents: list[list[float]] = []
        self.totals = Totals(0, 0.0, 0.0, 0, 0, 0)

    def _program(self) -> None:
        """Of each phase and movement: whether it is green, how long until that changes, and how long it lasts then."""
        network, durations = self.network, self.network.durations.tolist()
        phases = len(durations)
        links = [movement.link for movement in network.movements]
        self._ends = np.cumsum(durations).tolist()
        self._states: list[list[tuple[float, float, float]]] = []
        for phase in range(phases):
            self._states.append([])
            for link in links:
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
                self._states[phase].append((float(now), after, lasts))

    def step(self) -> None:
        """Half a second."""
        sumo = self._sumo
        sumo.simulationStep()
        self.time += STEP
        told = sumo.simulation.getSubscriptionResults()
        departed, arrived, collided, removed = self._told
        self.departed = told[departed]
        for who in self.departed:
            sumo.vehicle.subscribe(who, self._wanted)
        seen = sumo.vehicle.getAllSubscriptionResults()
        self._look(seen, told[arrived], told[collided] + told[removed])

    def _look(self, seen: Mapping[str, Mapping[int, Any]], arrived: int, faults: int) -> None:
        """All at once, in Python: arrays of so few take longer."""
        speeds, lanes, places, emissions = zip(*map(self._values, seen.values()), strict=True) if seen else ((),) * 4
        if self._surrogates:
            emissions = self._emitted(seen, emissions)
        roads = map(self._lane.__getitem__, lanes)
        found = sorted(zip(roads, map(neg, places), seen, speeds, emissions, strict=True))  # on a lane the first first
        standing = {who for who, speed in zip(seen, speeds, strict=True) if speed < STOPPED}
        stops, self._standing = len(standing - self._standing), standing
        at = (self.time - self.network.offset) % self._ends[-1]
        phase = min(bisect_right(self._ends, at + 1e-6), len(self._ends) - 1)
        left, states = self._ends[phase] - at, self._states[phase]
        long, equipped, rows = self._long, self._equipped, list[list[float]]()
        lane, end, quick = -2, 0.0, 0.0  # of the last one: its lane, and where and how fast it drives
        length, limit, grade, leads = NOWHERE
        row: list[float] | None = None
        for road, back, who, speed, emission in found:
            nobody = road != lane
            if nobody:
                lane, row = road, None
                length, limit, grade, leads = self._lanes[road]
            if who in equipped:
                distance = length + back
                if leads and distance < RANGE:
                    green, after, lasts = states[equipped[who]]
                    change, lasts = min(left + after, FAR), min(lasts, FAR)
                else:
                    distance, green, change, lasts = RANGE, 1.0, FAR, FAR
                gap, leader = (RANGE, limit) if nobody or end + back >= RANGE else (max(end + back, 0.0), quick)
                row = [int(who), speed, distance, green, change, lasts, gap, leader, limit, grade, emission, -1.0, 0.0]
                rows.append(row)
            if row:
                slow = STOP_PENALTY * (STOP_SPEED - speed) if speed < STOP_SPEED else 0.0
                row[11] += 1.0
                row[12] += speed - limit - slow - EMISSION_PENALTY * MILLI * emission
            end, quick = -back - long[who], speed
        for row in rows:
            row[10] *= MILLI
            row[12] /= row[11] + 1.0
        self.agents = rows
        self.totals = Totals(len(found), sum(speeds), MILLI * sum(emissions), stops, arrived, faults)

    def _emitted(self, seen: Mapping[str, Mapping[int, Any]], emissions: Iterable[float]) -> tuple[float, ...]:
        """mg/s of everybody: what surrogates say of vehicles of their kind, and SUMO of the others."""
        found, kinds = np.array([*emissions]), self.demand.kind[[int(who) for who in seen]]
        moments = np.array([self._moment(values) for values in seen.values()]).reshape(-1, 3)
        moments[:, 2] = np.tan(np.radians(moments[:, 2]))
        for kind, surrogate in self._surrogates.items():
            of = kinds == kind
            found[of] = surrogate.co2(moments[of]) / MILLI
        return tuple(found.tolist())

    def dismiss(self, name: str) -> None:
        """That vehicle is not equipped after all."""
        del self._equipped[name]
        self.agents = [row for row in self.agents if row[0] != int(name)]

    def command(self, numbers: Iterable[int], speeds: Iterable[float]) -> None:
        """The speeds to have in half a second, as far as SUMO holds them for safe; below 0: as the driver likes."""
        set_speed: Any = self._sumo.vehicle.setSpeed
        for number, speed in zip(numbers, speeds, strict=True):
            set_speed(called(number), speed)

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
