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

from sim.engines.sumo import COLUMNS, STEP, Simulation, installed
from sim.engines.sumo.demand import QUICKEST, Flow, drawn, flows_of, write
from sim.engines.sumo.network import Network, made
from sim.env import Array, Step, world_of
from sim.tasks.traffic.drawing import drawing
from sim.tasks.traffic.families import draw
from sim.tasks.traffic.folders import intersections, opened
from sim.workers import Workers

if TYPE_CHECKING:
    from sim.tasks.traffic import TrafficEco

NORM = 15.0  # m/s: IntersectionZoo's SPEED_NORMALIZATION


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
    """The only world of this process; see `sim.env.Env`.

    A vehicle takes the first place that is free when it departs, until it has left the network. If none is free, it
    drives as if it were not equipped.
    """

    def __init__(self, task: TrafficEco, num: int, seed: int) -> None:
        if num != task.agents:
            raise ValueError(f"a process has one intersection of {task.agents} places, not {num} rows")
        self.task, self.num, self.seed = task, num, seed
        self._simulation = Simulation()
        self._sources = intersections(task.config.network) if task.config.network else ()
        self._routes = Path(tempfile.mkstemp(".rou.xml", dir=task.folder)[1])
        self._names = [s.name for s in (*task.policy, *task.privileged)]
        self._values = {name: np.zeros((num, 1), np.float32) for name in self._names}
        self._low = task.commands[0].low

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        if len(rows):
            with world_of(self.task.name, rows[0]):
                self._begin(episodes[0])

    def _begin(self, episode: int) -> None:
        config, simulation = self.task.config, self._simulation
        network, flows, fleet = self._drawn(episode)
        seconds = (config.warmup + config.steps) * STEP
        seeds = [self.seed, episode, 1]
        demand, routes = drawn(flows, network, fleet, config.emissions, seconds, seeds)
        write(routes, self._routes)
        simulation.begin(network, demand, self._routes, int(np.random.default_rng(seeds).integers(2**31)))
        self._at: dict[int, int] = {}  # vehicle -> its place
        self._told: set[int] = set()  # vehicles that are not left to their drivers
        for _ in range(config.warmup):
            self._advance()
        self._observe()

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

    def _advance(self) -> None:
        """A step; who departs takes a place, who has left frees it for the step after."""
        simulation, free = self._simulation, sorted(set(range(self.num)) - set(self._at.values()), reverse=True)
        simulation.step()
        for name in simulation.departed:
            number = int(name)
            if simulation.demand.equipped[number]:
                if free:
                    self._at[number] = free.pop()
                else:
                    simulation.dismiss(name)
        on_the_road = {int(number) for number in simulation.agents[:, 0]}
        for number in self._at.keys() - on_the_road:
            del self._at[number]
            self._told.discard(number)

    def _observe(self) -> None:
        simulation, values = self._simulation, np.zeros((self.num, len(COLUMNS) + 1), np.float32)
        agents = simulation.agents
        self._rows = np.array([self._at[int(number)] for number in agents[:, 0]], np.int64)
        values[self._rows, 1:], values[self._rows, 0] = agents, 1.0
        columns = dict(zip(("present", *COLUMNS), values.T[:, :, None], strict=True))
        world = {f"world_{name}": total for name, total in simulation.totals._asdict().items()}
        everywhere = {name: np.full((self.num, 1), total, np.float32) for name, total in world.items()}
        found = {**columns, **everywhere}
        self._worth = columns["worth"][:, 0]
        self._values = {name: found[name] for name in self._names}

    def observe(self) -> dict[str, Array]:
        return dict(self._values)

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        wanted = np.maximum(command["acceleration"][:, 0], self._low)
        speed = self._values["speed"][:, 0]
        told, speeds = [], []
        for number, row in self._at.items():
            if wanted[row] < QUICKEST:
                told.append(number)
                speeds.append(max(float(speed[row] + STEP * wanted[row]), 0.0))
                self._told.add(number)
            elif number in self._told:
                told.append(number)
                speeds.append(-1.0)
                self._told.discard(number)
        self._simulation.command(told, speeds)
        self._advance()
        self._observe()
        nothing = np.zeros(self.num, bool)
        return Step((self._worth / np.float32(NORM)).copy(), nothing, nothing.copy())

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        return drawing(self._simulation.network, *self._simulation.places(), height, width)

    def close(self) -> None:
        self._simulation.close()
        self._routes.unlink(missing_ok=True)
