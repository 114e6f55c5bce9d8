"""python -m deploy.mavlink.simulator [robot=x500] [uri=udpout://...]: a simulated vehicle that speaks PX4's MAVLink."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from deploy import cli
from deploy.mavlink.simulator import Config


def main(argv: Sequence[str]) -> None:
    """Say where, simulate."""
    if cli.wants_help(argv):
        print(f"{__doc__}\n\n{cli.usage(Config)}")
        return
    (config,) = cli.parse(argv, Config)
    from deploy.mavlink.simulator.simulation import Simulation  # takes a while, in which Ctrl-C is one line too

    simulation = Simulation(config)
    print(f"{simulation.world.robot.name} at {config.uri}", flush=True)
    try:
        simulation.run()
    finally:
        simulation.close()
        if simulation.slipped:
            print(f"behind the clock: {simulation.slipped:.2f} s in {simulation.world.time:.2f} s")


if __name__ == "__main__":
    sys.exit(cli.call(main))
