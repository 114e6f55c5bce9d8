"""quad_any on the simulated Crazyflie as owners have it: flow deck, Kalman filter, a battery that sags.

python tests/benchmarks/rehearsal.py [--quick] [--only "flow, quad_any" ...]

Faster than real time, without sockets' clients: packets go straight to the firmware.
"""

import math
import statistics
import struct
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import report

from deploy.crazyflie.crtp import Packet, Port
from deploy.crazyflie.guard import REASONS
from deploy.crazyflie.simulator import Config
from deploy.crazyflie.simulator.sensed import Sensed
from deploy.crazyflie.simulator.simulation import Simulation
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
WAIT, CLIMB, FLIGHT, LAST, DESCENT, REST = 1.5, 2.0, 6.0, 1.0, 2.5, 1.5  # s
TAKE_OFF, LAND, POSITION = 7, 8, 7  # commands of the planner; a set point
DOWN = 0.03  # m


class Flight:
    """One vehicle, from the floor to the floor. Everything drawn is drawn from `seed`."""

    def __init__(self, positioning: str, flown_by: str, seed: int) -> None:
        rng = np.random.default_rng((2026, seed))
        self.target = np.array([*rng.uniform(-0.5, 0.5, 2), rng.uniform(0.4, 1.0)])  # m
        config = Config(
            uri="udp://127.0.0.1:0",
            robot=ROBOTS[seed % len(ROBOTS)],
            policy="deploy/pretrained/quad_any.onnx",
            positioning=positioning,
            battery=float(rng.uniform(3.7, 4.2)),
            resistance=float(rng.uniform(0.1, 0.3)),
            seed=seed,
        )
        self.simulation, self.flown_by = Simulation(config), flown_by

    @property
    def truth(self) -> Sensed:
        (sensed,) = self.simulation.world.sense()
        return sensed

    def send(self, port: Port, data: bytes) -> None:
        self.firmware.receive(Packet(port, 0, data))

    def run(self, seconds: float) -> list[tuple[float, float]]:
        """Advance; m from the target and m that the estimate is off, every 0.1 s."""
        found = []
        for step in range(round(seconds / DT)):
            self.simulation.tick()
            if step % 50 == 0:
                x, s = np.array(self.truth.position), self.firmware.sensed
                found.append((float(np.linalg.norm(x - self.target)), float(np.linalg.norm(x - s.position))))
        return found

    def hold(self, seconds: float) -> list[tuple[float, float]]:
        """The client streams the target."""
        found = []
        for _ in range(round(seconds / 0.1)):
            self.send(Port.COMMANDER_GENERIC, struct.pack("<Bffff", POSITION, *self.target, 0.0))
            found += self.run(0.1)
        return found

    def fly(self) -> dict[str, Any]:
        """Take-off under PID, the target, landing."""
        self.firmware = firmware = self.simulation.vehicles[0].firmware
        self.run(WAIT)
        self.send(Port.HIGH_LEVEL, struct.pack("<BBff?f", TAKE_OFF, 0, float(self.target[2]), 0.0, True, CLIMB))
        self.run(CLIMB + 0.5)
        if self.flown_by == QUAD_ANY:
            firmware.parameters["policy.spread"] = 10.0  # a flow deck knows no place: its variance is at its bound
            firmware.parameters["stabilizer.controller"] = 6
        self.hold(FLIGHT - LAST)
        last = self.hold(LAST)
        reason = REASONS[firmware.app.reason]
        firmware.parameters["stabilizer.controller"] = 1
        firmware.receive(Packet(Port.COMMANDER_GENERIC, 1, b"\0\0\0\0\0"))  # the planner may take over
        self.send(Port.HIGH_LEVEL, struct.pack("<BBff?f", LAND, 0, 0.0, 0.0, True, DESCENT))
        self.run(DESCENT + REST)
        height, upright = self.truth.position[2], self.truth.rotation[8]
        still = max(firmware.ratios) == 0.0
        return {
            "worst": max(error for error, _ in last),
            "off": max(off for _, off in last),
            "landed": height < DOWN
            and upright > 0.9
            and still
            and firmware.supervisor.state.name in ("FLYING", "LANDED"),
            "reason": reason,
            "lowest": firmware.battery.lowest,
        }


def flights(positioning: str, flown_by: str, count: int) -> dict[str, Any]:
    """Fly them; what they have in common."""
    began, found = time.process_time(), []
    for seed in range(count):
        flight = Flight(positioning, flown_by, seed)
        try:
            found.append(flight.fly())
        finally:
            flight.simulation.close()
        print(f"{seed}: {found[-1]}", file=sys.stderr, flush=True)
    near, landed = (sum(each) for each in zip(*((f["worst"] <= NEAR, f["landed"]) for f in found), strict=True))
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
        "cpu_s": time.process_time() - began,
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
        f"(PID), a target within half a metre and {FLIGHT:g} s to get there and stay, landing (PID). Counted: true "
        f"distance from the target at most {NEAR:g} m for the whole last second. In cm: the worst of that second, "
        "median and 95 % of the flights, and by how much the estimate is off (median)."
    )
    head = ["positioning, who flies", f"within {NEAR:g} m", "95 % interval", "landed", "median", "95 %", "estimate off"]
    head += ["handed back", "lowest V", "CPU s"]
    return f"{text}\n\n{report.table(head, lines)}"


if __name__ == "__main__":
    report.main("rehearsal", CASES, measure, apart=True)
