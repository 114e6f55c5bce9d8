"""python -m deploy.crazyflie_sim [vehicles=2] [policy=FILE]: simulated Crazyflies that official clients connect to."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from deploy import cli
from deploy.crazyflie.simulator import Config

BOOT = 0.2  # s, simulated before clients may come: the vehicles pass their checks, and what is needed is compiled


def main(argv: Sequence[str]) -> None:
    """Listen, say where, simulate."""
    from deploy.crazyflie.simulator.simulation import Simulation  # takes a while, in which Ctrl-C is one line too

    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    simulation = Simulation(config)
    while simulation.world.time < BOOT:
        simulation.tick()
    for vehicle in simulation.vehicles:
        print(f"listening: {vehicle.uri}", flush=True)
    try:
        simulation.run()
    finally:
        simulation.close()
        if simulation.slipped:
            print(f"behind the clock: {simulation.slipped:.2f} s in {simulation.world.time:.2f} s")


if __name__ == "__main__":
    sys.exit(cli.call(main))
