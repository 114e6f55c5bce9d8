"""Who drives when, of which kind and where to: drawn for an episode, and written as SUMO reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from sim.engines.sumo.context import ARMS, TURNS, Context
from sim.engines.sumo.network import Movement, Network

HOUR = 3600.0  # s
SHARES = {"s": 0.8, "l": 0.1, "r": 0.1}  # that go straight, left, right; IntersectionZoo's
# Emission classes of SUMO. HBEFA 4.2's passenger cars and lorries; of PHEMlight 5 two cars are free, and no lorry.
HBEFA = {
    "petrol": "HBEFA4/PC_petrol_Euro-6ab",
    "diesel": "HBEFA4/PC_diesel_Euro-6ab",
    "electric": "HBEFA4/PC_BEV",
    "truck": "HBEFA4/RT_gt26-28t_Euro-VI_A-C",
}
EMISSIONS: dict[str, dict[str, str]] = {
    "hbefa4": HBEFA,
    "phemlight5": {**HBEFA, "petrol": "PHEMlight5/PC_EU4_G", "diesel": "PHEMlight5/PC_EU4_D_MW"},
}
# Treiber's intelligent driver. Estimates, between the 1.0 and 1.5 m/s^2 that are usual for it and SUMO's 2.6 and 4.5; a
# lorry starts more slowly.
QUICKEST = 1.5  # m/s^2: as fast as anybody starts
CAR = {"length": "4.5", "accel": f"{QUICKEST}", "decel": "2.0", "minGap": "2.0", "tau": "1.2", "speedFactor": "1.0"}
DRIVERS = {
    "petrol": CAR,
    "diesel": CAR,
    "electric": CAR,
    "truck": {**CAR, "length": "12.0", "accel": "0.8", "vClass": "truck"},
}


@dataclass(frozen=True)
class Flow:
    """Vehicles that all go one way, and how many of them are what."""

    movement: Movement
    rate: float  # veh/h


@dataclass
class Demand:
    """All vehicles of an episode, in the order in which they depart (n,)."""

    movement: NDArray[np.int64]  # which of the network's
    equipped: NDArray[np.bool_]
    length: NDArray[np.float64]  # m
    kind: NDArray[np.str_]  # of DRIVERS


def called(number: int) -> str:
    """The name of a vehicle in SUMO."""
    return f"{number:06d}"


def flows_of(network: Network, context: Context) -> list[Flow]:
    """Those of a context, in the network that was made of it."""
    found = []
    ways = {(m.origin, m.target): m for m in network.movements}
    for k, arm in enumerate(context.arms):
        for turn, share in zip(TURNS, arm.turns, strict=True):
            way = f"{ARMS[k]}2TL", f"TL2{ARMS[context.leads_to(k, turn)]}"
            if share > 0.0 and arm.inflow > 0.0:
                found.append(Flow(ways[way], share * arm.inflow))
    return found


def even_flows(network: Network, per_lane: Mapping[str, float]) -> list[Flow]:
    """Those of any network, of so many veh/h on each lane of an approach; nobody says where they turn."""
    found = []
    for approach, inflow in per_lane.items():
        movements = [movement for movement in network.movements if movement.origin == approach]
        weights = [SHARES.get(movement.turn, SHARES["l"]) for movement in movements]
        rate = inflow * network.lanes_of[approach] / sum(weights)
        found += [Flow(one, rate * weight) for one, weight in zip(movements, weights, strict=True)]
    return found


def drawn(
    flows: list[Flow], network: Network, fleet: Mapping[str, float], emissions: str, seconds: float, seed: list[int]
) -> tuple[Demand, Element]:
    """Poisson arrivals of all flows for so long, and the routes for SUMO.

    `fleet`: penetration, and shares of diesel, electric and trucks. Vehicles are called by their number.
    """
    rng = np.random.default_rng(seed)
    counts = rng.poisson([flow.rate * seconds / HOUR for flow in flows])
    departs = np.concatenate([np.zeros(0), *(rng.uniform(0.0, seconds, count) for count in counts)])
    order = np.argsort(departs, kind="stable")
    places = {movement: k for k, movement in enumerate(network.movements)}
    movement = np.repeat([places[flow.movement] for flow in flows], counts)[order].astype(np.int64)
    equipped = rng.random(len(order)) < fleet["penetration"]
    cars = np.where(rng.random(len(order)) < fleet["electric"], "electric", "petrol").astype("<U8")
    combustion = max(1.0 - fleet["electric"], 1e-9)
    cars[(cars == "petrol") & (rng.random(len(order)) < fleet["diesel"] / combustion)] = "diesel"
    kinds = np.where(rng.random(len(order)) < fleet["trucks"], "truck", cars)
    root = Element("routes")
    for kind, driver in DRIVERS.items():
        emits = {"emissionClass": EMISSIONS[emissions][kind]}
        ElementTree.SubElement(root, "vType", {"id": kind, "carFollowModel": "IDM", **emits, **driver})
    for k, way in enumerate(network.movements):
        ElementTree.SubElement(root, "route", id=str(k), edges=way.route)
    how = {"departLane": "best", "departSpeed": "max"}
    for number, (kind, way, depart) in enumerate(zip(kinds, movement, departs[order], strict=True)):
        who = {"id": called(number), "type": str(kind), "route": str(way), "depart": f"{depart:.2f}"}
        ElementTree.SubElement(root, "vehicle", {**who, **how})
    length = np.array([float(DRIVERS[str(kind)]["length"]) for kind in kinds])
    return Demand(movement, equipped, length, kinds), root


def write(root: Element, path: Path) -> None:
    """The routes, into a file."""
    ElementTree.ElementTree(root).write(path)
