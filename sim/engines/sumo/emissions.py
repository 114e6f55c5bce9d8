"""What vehicles emit according to SUMO (HBEFA4, PHEMlight5 and its other models): at any moment, and on whole trips."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.engines.sumo import MILLI, STEP, Simulation, installed
from sim.engines.sumo.context import Context
from sim.engines.sumo.demand import drawn, flows_of, write
from sim.engines.sumo.network import made

Array = NDArray[np.float64]

# In the order in which `emissionsDrivingCycle` writes them; electricity, which comes last, is none of these.
QUANTITIES = ("CO", "CO2", "HC", "PMx", "NOx", "fuel")
LONGEST = 600.0  # s that the program may take


class EmissionClassError(ValueError):
    """SUMO has no such emission class, or not its data."""


def emitted(emission_class: str, speed: Array, acceleration: Array, grade: Array) -> Array:
    """g/s (n, 6) of QUANTITIES at speeds (n,), m/s, accelerations (n,), m/s^2, and grades (n,), rise over run.

    SUMO's own program works it out. EmissionClassError, in its words, for a class that it does not know.
    """
    program, environment = installed.tool("emissionsDrivingCycle")
    slope = np.degrees(np.arctan(grade))  # as SUMO counts it
    with tempfile.TemporaryDirectory(prefix="sim2metal-emissions-") as folder:
        cycle, found = Path(folder) / "cycle.csv", Path(folder) / "found.csv"
        np.savetxt(cycle, np.column_stack([np.arange(len(speed)), speed, acceleration, slope]), "%.9g", ";")
        options = {
            "--timeline-file": str(cycle),
            "--emission-class": emission_class,
            "--output": str(found),
            "--precision": "9",
            "--phemlight-path": f"{installed.home() / installed.PHEMLIGHT}/",
        }
        command = [program, "--have-slope", *(word for pair in options.items() for word in pair)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LONGEST)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["it failed"]
            raise EmissionClassError(f"emission class {emission_class!r}: SUMO says: {said[0].removeprefix('Error: ')}")
        rows: Array = np.loadtxt(found, delimiter=";", ndmin=2)
    return MILLI * rows[:, 4 : 4 + len(QUANTITIES)]


@dataclass(frozen=True)
class Trips:
    """Every vehicle at every step of a simulation, half a second each (n,)."""

    vehicle: NDArray[np.int64]  # its number in the demand
    speed: Array  # m/s
    acceleration: Array  # m/s^2
    grade: Array  # rise over run
    emitted: Array  # g/s (n, 6), QUANTITIES


def trips(context: Context, emission_class: str, seconds: float, seed: int) -> Trips:
    """What all vehicles do and emit at an intersection, each of them of that class, from an empty road on."""
    simulation = Simulation()
    fleet = {"penetration": 0.0, "diesel": 0.0, "electric": 0.0, "trucks": 0.0}
    rows: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory(prefix="sim2metal-emissions-") as folder:
        network = made(context, folder)
        demand, routes = drawn(flows_of(network, context), network, fleet, "hbefa4", seconds, [seed])
        for kind in routes.iter("vType"):
            kind.set("emissionClass", emission_class)
        write(routes, Path(folder) / "all.rou.xml")
        try:
            simulation.begin(network, demand, Path(folder) / "all.rou.xml", seed)
            for _ in range(round(seconds / STEP)):
                simulation.step()
                rows += simulation.moments()
        finally:
            simulation.close()
    table = np.array(rows, np.float64).reshape(len(rows), 4 + len(QUANTITIES))
    grade = np.tan(np.radians(table[:, 3]))
    return Trips(table[:, 0].astype(np.int64), table[:, 1], table[:, 2], grade, MILLI * table[:, 4:])
