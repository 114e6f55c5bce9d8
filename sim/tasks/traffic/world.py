"""One intersection at a time in this process, its equipped vehicles as rows; and such worlds in processes."""

from __future__ import annotations

import copy
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.engines.sumo import COLUMNS, STEP, TOTALS, Simulation, installed
from sim.engines.sumo.demand import QUICKEST, Flow, drawn, flows_of, write
from sim.engines.sumo.network import Network, made
from sim.env import Array, Step, world_of
from sim.tasks.traffic.drawing import drawing
from sim.tasks.traffic.families import draw
from sim.tasks.traffic.folders import intersections, opened
from sim.workers import Workers

if TYPE_CHECKING:
    from sim.tasks.traffic import TrafficEco

NORM = np.float32(15.0)  # m/s: IntersectionZoo's SPEED_NORMALIZATION
TABLE = (*COLUMNS, *(f"world_{name}" for name in TOTALS))  # what is known of a row
SPEED, WORTH = TABLE.index("speed"), TABLE.index("worth")


class Intersections(Workers):
    """Worlds in processes of their own, one in each: SUMO's state is a process's. A process that dies is replaced."""

    def __init__(self, task: TrafficEco, num: int, seed: int) -> None:
        """ModuleNotFoundError, naming the extra, where SUMO is missing."""
        installed.check()
        folder = tempfile.mkdtemp(prefix="sim2metal-traffic-")
        self._remove = weakref.finalize(self, shutil.rmtree, folder, True)
        alone = copy.copy(task)
        alone.folder = folder  # of networks that were made, for all of them
        super().__init__(alone, num, seed, num // task.agents)  # type: ignore[arg-type]  # `open` there is one world

    def close(self) -> None:
        """End them."""
        super().close()
        self._remove()


class Intersection:
    """The only world of this process; see `sim.env.Env`. Its places are the simulation's rows."""

    def __init__(self, task: TrafficEco, num: int, seed: int) -> None:
        if num != task.agents:
            raise ValueError(f"a process has one intersection of {task.agents} places, not {num} rows")
        self.task, self.num, self.seed = task, num, seed
        self._simulation = Simulation(num, (task.config.standing, task.config.carbon))
        self._sources = intersections(task.config.network) if task.config.network else ()
        self._routes = Path(tempfile.mkstemp(".rou.xml", dir=task.folder)[1])
        self._columns = [(s.name, TABLE.index(s.name)) for s in (*task.policy, *task.privileged)]
        self._table = np.zeros((num, len(TABLE)), np.float32)
        self._low = task.commands[0].low
        self._told: set[int] = set()  # vehicles that are not left to their drivers
        self._begun = False

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        if len(rows):
            with world_of(self.task.name, rows[0]):
                self._begin(episodes[0])

    def _begin(self, episode: int) -> None:
        config, simulation = self.task.config, self._simulation
        network, flows, fleet = self._drawn(episode)
        seconds = (config.warmup + config.steps) * STEP
        seeds = [self.seed, episode, 1]
        demand, routes = drawn(flows, network, fleet, self.task.fleet, seconds, seeds)
        write(routes, self._routes)
        number = int(np.random.default_rng(seeds).integers(2**31))
        simulation.begin(network, demand, self._routes, number, self.task.surrogates)
        self._told, self._begun = set(), True
        for _ in range(config.warmup):
            simulation.step()
        self._table = simulation.table.astype(np.float32)

    def _drawn(self, episode: int) -> tuple[Network, list[Flow], Mapping[str, float]]:
        config, rng = self.task.config, np.random.default_rng([self.seed, episode])
        if self._sources:
            path = self._sources[int(rng.integers(len(self._sources)))]
            network, flows = opened(path, self.task.folder, config.inflow)
            fleet = {"penetration": config.penetration, "diesel": 0.3, "electric": 0.0, "trucks": 0.05}
            return network, flows, fleet
        context = draw(config.family, rng, config.penetration)
        network = made(context, self.task.folder)
        names = ("penetration", "diesel", "electric", "trucks")
        return network, flows_of(network, context), {name: getattr(context, name) for name in names}

    def observe(self) -> dict[str, Array]:
        return {name: self._table[:, k : k + 1] for name, k in self._columns}

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        if not self._begun:  # as when others of a batch begin earlier
            return Step(np.zeros(self.num, np.float32), np.zeros(self.num, bool), np.zeros(self.num, bool))
        simulation, told = self._simulation, self._told
        wanted, speeds = command["acceleration"].ravel().tolist(), simulation.table[:, SPEED].tolist()
        for number, row in simulation.taken.items():
            if (acceleration := wanted[row]) < QUICKEST:
                simulation.command(number, max(speeds[row] + STEP * max(acceleration, self._low), 0.0))
                told.add(number)
            elif number in told:
                simulation.command(number, -1.0)
                told.discard(number)
        simulation.step()
        self._table = table = simulation.table.astype(np.float32)
        return Step(table[:, WORTH] / NORM, np.zeros(self.num, bool), np.zeros(self.num, bool))

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        return drawing(self._simulation.network, *self._simulation.places(), height, width)

    def close(self) -> None:
        self._simulation.close()
        self._routes.unlink(missing_ok=True)
