"""quad_any on the simulated Crazyflie as owners have it: flow deck, Kalman filter, a battery that sags.

python tests/benchmarks/rehearsal.py [--quick] [--only "flow, quad_any" ...]

Faster than real time, without sockets' clients: packets go straight to the firmware.
"""

import itertools
import math
import statistics
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import report

from deploy.crazyflie.crtp import Packet, Port
from deploy.crazyflie.guard import FLY, REASONS
from deploy.crazyflie.simulator import Config
from deploy.crazyflie.simulator.battery import Battery
from deploy.crazyflie.simulator.estimator.sensors import FlowDeck
from deploy.crazyflie.simulator.sensed import Sensed
from deploy.crazyflie.simulator.simulation import Simulation, Vehicle
from deploy.crazyflie.simulator.world import DT
from policies.runner.report import wilson

QUAD_ANY, PID = "quad_any", "the PID controller on board"
# Row -> positioning, who flies, flights.
CASES: dict[str, tuple[str, str, int]] = {
    "flow, quad_any": ("flow", QUAD_ANY, 200),
    "flow, PID": ("flow", PID, 100),
    "lighthouse, quad_any": ("lighthouse", QUAD_ANY, 50),
    "mocap, quad_any": ("mocap", QUAD_ANY, 50),
    "truth, quad_any": ("truth", QUAD_ANY, 50),
}
ROBOTS = ("crazyflie", "crazyflie_decks")
NEAR = 0.3  # m from the target for the whole last second
WAIT, CLIMB, FLIGHT, LAST, DESCENT, REST = 0.7, 1.7, 5.0, 1.0, 2.0, 1.0  # s
TOGETHER = 10  # vehicles in one world
TAKE_OFF, LAND, POSITION = 7, 8, 7  # commands of the planner; a set point
DOWN = 0.03  # m


class Flight:
    """One vehicle among others that share a world, from the floor to the floor. What is drawn is drawn from `seed`."""

    def __init__(self, vehicle: Vehicle, start: Sequence[float], flown_by: str, seed: int) -> None:
        rng = np.random.default_rng((2026, seed))
        self.vehicle, self.flown_by = vehicle, flown_by
        self.start = np.array(start)
        self.target = np.array([*rng.uniform(-0.5, 0.5, 2), rng.uniform(0.4, 1.0)])  # m from there
        battery = Battery(rng.uniform(3.7, 4.2), vehicle.power.battery.capacity, rng.uniform(0.1, 0.3))
        vehicle.power.battery = vehicle.firmware.battery = battery
        knows_places = vehicle.firmware.estimator.decks != FlowDeck.decks
        self.origin = np.zeros(3) if knows_places else self.start  # m: where its estimator begins to count
        self.errors: list[float] = []  # m from the target in the last second
        self.off: list[float] = []  # m that the estimate is off then

    def send(self, port: Port, data: bytes, channel: int = 0) -> None:
        self.vehicle.firmware.receive(Packet(port, channel, data))

    def take_off(self) -> None:
        self.send(Port.HIGH_LEVEL, struct.pack("<BBff?f", TAKE_OFF, 0, float(self.target[2]), 0.0, True, CLIMB))

    def hand_over(self) -> None:
        if self.flown_by == QUAD_ANY:
            parameters = self.vehicle.firmware.parameters
            parameters["policy.spread"] = 10.0  # a flow deck knows no place: its variance is at its bound
            parameters["policy.mode"] = FLY
            parameters["stabilizer.controller"] = 6

    def hold(self) -> None:
        place = self.start + self.target - self.origin
        self.send(Port.COMMANDER_GENERIC, struct.pack("<Bffff", POSITION, *place, 0.0))

    def note(self, truth: Sensed) -> None:
        place, believed = np.array(truth.position), self.origin + self.vehicle.firmware.sensed.position
        self.errors.append(float(np.linalg.norm(place - self.start - self.target)))
        self.off.append(float(np.linalg.norm(place - believed)))

    def land(self) -> None:
        self.reason = REASONS[self.vehicle.firmware.app.reason]
        self.vehicle.firmware.parameters["stabilizer.controller"] = 1
        self.send(Port.COMMANDER_GENERIC, b"\0\0\0\0\0", 1)  # the planner may take over
        self.send(Port.HIGH_LEVEL, struct.pack("<BBff?f", LAND, 0, 0.0, 0.0, True, DESCENT))

    def end(self, truth: Sensed) -> dict[str, Any]:
        """What became of it."""
        firmware = self.vehicle.firmware
        rests = truth.position[2] < DOWN and truth.rotation[8] > 0.9 and max(firmware.ratios) == 0.0
        return {
            "worst": max(self.errors),
            "off": max(self.off),
            "landed": rests and firmware.supervisor.state.name in ("FLYING", "LANDED"),
            "reason": self.reason,
            "lowest": firmware.battery.lowest,
        }


def fly(positioning: str, flown_by: str, robot: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """All at once, five metres apart: take-off under PID, the target, landing."""
    config = Config(
        uri="udp://127.0.0.1:0",
        vehicles=len(seeds),
        spacing=5.0,
        robot=robot,
        policy="deploy/pretrained/quad_any.onnx",
        positioning=positioning,
        seed=seeds[0],
    )
    simulation = Simulation(config)
    world = simulation.world
    flights = [
        Flight(vehicle, truth.position, flown_by, seed)
        for vehicle, truth, seed in zip(simulation.vehicles, world.sense(), seeds, strict=True)
    ]

    def run(seconds: float, *each: Callable[[Flight], None]) -> None:
        for step in range(round(seconds / DT)):
            if step % 50 == 0:
                for do, flight in itertools.product(each, flights):
                    do(flight)
                if noting:
                    for flight, truth in zip(flights, world.sense(), strict=True):
                        flight.note(truth)
            simulation.tick()

    noting = False
    run(WAIT)
    for flight in flights:
        flight.take_off()
    run(CLIMB + 0.3)
    for flight in flights:
        flight.hand_over()
    run(FLIGHT - LAST, Flight.hold)
    noting = True
    run(LAST, Flight.hold)
    noting = False
    for flight in flights:
        flight.land()
    run(DESCENT + REST)
    simulation.close()
    return [flight.end(truth) for flight, truth in zip(flights, world.sense(), strict=True)]


def flights(positioning: str, flown_by: str, count: int) -> dict[str, Any]:
    """Fly them; what they have in common."""
    began, found = time.process_time(), []
    for first in range(0, count, TOGETHER):
        seeds = range(first, min(first + TOGETHER, count))
        found += fly(positioning, flown_by, ROBOTS[first // TOGETHER % len(ROBOTS)], seeds)
        print(f"{len(found)}: {found[first:]}", file=sys.stderr, flush=True)
    return summary(found) | {"cpu_s": time.process_time() - began}


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What flights have in common."""
    count = len(found)
    near = sum(
        f["worst"] <= NEAR and f["reason"] == REASONS[0] for f in found
    )  # one handed back is none, wherever it is
    landed = sum(f["landed"] for f in found)
    return {
        "flights": count,
        "near": near,
        "near_ci": wilson(near, count),
        "landed": landed,
        "landed_ci": wilson(landed, count),
        "median_m": statistics.median(f["worst"] for f in found),
        "p95_m": float(np.percentile([f["worst"] for f in found], 95)),
        "off_m": statistics.median(f["off"] for f in found),
        "handed_back": dict(Counter(f["reason"] for f in found if f["reason"] != REASONS[0])),
        "lowest_v": min(f["lowest"] for f in found),
    }


def measure(cases: list[str], quick: bool) -> report.Rows:
    """What each of the cases gives."""
    rows: report.Rows = {}
    for case in cases:
        positioning, flown_by, count = CASES[case]
        rows[case] = flights(positioning, flown_by, 2 if quick else count)
    return rows


def markdown(rows: report.Rows) -> str:
    """One line per row."""
    lines = []
    for name, row in rows.items():
        low, high = (math.floor(1000 * bound + 0.5) / 10 for bound in row["near_ci"])
        lines.append(
            [
                name,
                f"{row['near']} of {row['flights']}",
                f"{low:.1f} to {high:.1f} %",
                f"{row['landed']}",
                f"{100 * row['median_m']:.1f}",
                f"{100 * row['p95_m']:.1f}",
                f"{100 * row['off_m']:.1f}",
                f"{sum(row['handed_back'].values())}",
                f"{row['lowest_v']:.2f}",
                f"{row['cpu_s']:.0f}",
            ]
        )
    text = (
        "Simulated Crazyflie 2.1, bare and with decks in turn; battery 3.7 to 4.2 V with 0.1 to 0.3 Ohm. Take-off "
        f"(PID), a target within half a metre and {FLIGHT:g} s to get there and stay, landing (PID). Counted: not "
        f"handed back, nor refused, true distance from the target at most {NEAR:g} m for the whole last second. In cm: "
        "the worst of that second, median and 95 % of the flights, and by how much the estimate is off (median)."
    )
    head = ["positioning, who flies", f"within {NEAR:g} m", "95 % interval", "landed", "median", "95 %", "estimate off"]
    head += ["handed back", "lowest V", "CPU s"]
    return f"{text}\n\n{report.table(head, lines)}"


if __name__ == "__main__":
    report.main("rehearsal", CASES, measure, apart=True)
