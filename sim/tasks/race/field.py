"""Races of several cars side by side, each on one track, as an `Env` for the task of `sim.tasks.race.multi`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.car import Cars
from sim.engines.vector.blocks import to_lanes
from sim.env import Array, Step
from sim.spec import Group, pack, unpack
from sim.tasks.race.world import WEIGHTS, Race

if TYPE_CHECKING:
    from sim.tasks.race.multi import CarRaceMulti

GAP = 1.2, 3.0  # m along the centreline from one car to the next, where they begin
PACE = 0.4, 0.9  # of rivals of mixed paces: shares of the speed of pure pursuit
GRID, PACES = 3, 4  # a race's own streams of random numbers, beside those of its cars


class Field(Race):
    """All cars of some races: rows that follow one another are on the same track. Each has an episode of its own.

    That of car k in race number n has the number n x cars + k.
    """

    # Beside those of who is alone: per place won, less those lost; per step in which it runs into another car, and per
    # m/s with which it does.
    weights: Mapping[str, float] = {**WEIGHTS, "places": 2.0, "ran_into": -2.0, "blow": -1.0}
    task: CarRaceMulti

    def __init__(self, task: CarRaceMulti, num: int, seed: int) -> None:
        self.each = task.cars
        self.ahead = np.zeros((num // task.cars, task.cars, task.cars), bool)  # whether the one is ahead of the other
        self.pace = np.ones((num, 1), np.float32)
        self._before = self.ahead
        super().__init__(task, num, seed)

    def _opened(self, engine: Any) -> Cars:
        made: Cars = engine(self.task.driven, self.num, 1.0 / self.task.rate_hz, self.tracks, each=self.each)
        return made

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        """Begin races of these numbers, said for each of the rows, which are all cars of some races."""
        where, races = np.asarray(rows, np.int64), np.asarray(episodes, np.int64)
        if not len(where):
            return
        drawn = [np.random.default_rng([self.seed, race, PACES]) for race in races[:: self.each].tolist()]
        self.pace[where] = np.concatenate([rng.uniform(*PACE, (self.each, 1)) for rng in drawn])
        super().reset(rows, (races * self.each + where % self.each).tolist())

    def _starts(
        self, random: Sequence[np.random.Generator], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Array, Array]:
        """All on one track, one behind the other, all as fast: rivals before the one who learns, else in any order."""
        own, n = np.array([rng.uniform((-1.0, -1.0), 1.0) for rng in random]).T, self.each
        track, steps, point, fast = (np.zeros((len(numbers) // n, n)) for _ in range(4))
        for k, race in enumerate((numbers[::n] // n).tolist()):
            rng = np.random.default_rng([self.seed, race, GRID])
            track[k], pole, fast[k] = which, _, _ = rng.integers(len(self.tracks)), rng.random(), rng.random()
            behind = np.cumsum(np.append(0.0, rng.uniform(*GAP, n - 1)))
            order = rng.permutation(n) if self.task.agents == n else np.roll(np.arange(n), -1)
            steps[k, order] = np.round(behind / self.courses.spacing[which])
            point[k] = (int(pole * self.courses.points[which]) - steps[k]) % self.courses.points[which]
        tracks, way = track.reshape(-1).astype(np.int64), -steps.reshape(-1)
        starts = np.concatenate([own, fast.reshape(1, -1)])
        return tracks, point.reshape(-1).astype(np.int64), starts, way * self.courses.spacing[tracks]

    def _look(self, rows: NDArray[np.int64]) -> None:
        super()._look(rows)
        n = self.each
        lead = self.way.reshape(-1, n, 1) - self.way.reshape(-1, 1, n)
        fresh = (self.age == 0).reshape(-1, n, 1)
        clear = np.where(fresh, 0.0, self.task.robot.length)  # who passes another one is ahead by as much
        self.ahead = (lead > clear) | (self.ahead & (lead >= -clear))
        beside = np.array([[k for k in range(n) if k != own] for own in range(n)])
        near = np.take_along_axis(beside[None], np.abs(lead[:, np.arange(n)[:, None], beside]).argsort(axis=2), axis=2)
        (cos, sin), velocity = self.cars.read("heading").T, self.cars.read("velocity")
        moving = np.stack([velocity[:, 0] * cos - velocity[:, 1] * sin, velocity[:, 0] * sin + velocity[:, 1] * cos], 1)
        own = {"place": 1.0 + self.ahead.sum(axis=1).reshape(-1, 1)}
        own |= {name: self.cars.read(name) for name in ("met", "ran_into")}
        for name, value in (("others", self.cars.read("position")), ("others_velocity", moving)):
            each = value.reshape(-1, n, 2)
            off = each[np.arange(len(each))[:, None, None], near] - each[:, :, None]
            x, y = off.reshape(self.num, n - 1, 2).transpose(2, 0, 1)
            c, s = cos[:, None], sin[:, None]
            own[name] = np.stack([x * c + y * s, y * c - x * s], axis=2).reshape(self.num, -1)
        for name, value in own.items():
            self._table[:, self._columns[name]] = to_lanes(value)

    def step(self, command: Mapping[str, Array]) -> Step:
        self._before = self.ahead
        return super().step(command)

    def _terms(self, steered: Array) -> dict[str, Array]:
        speed, won = self.cars.read("ran_into")[:, 0], self.ahead.astype(np.float32) - self._before
        ran = (speed > 0.0).astype(np.float32)
        return {**super()._terms(steered), "places": won.sum(axis=2).reshape(-1), "ran_into": ran, "blow": speed}

    def _at_fault(self, terms: Mapping[str, Array]) -> NDArray[np.bool_]:
        return super()._at_fault(terms) | (terms["ran_into"] > 0.0)

    def _together(self, row: int) -> list[int]:
        first = row - row % self.each
        return [row, *(k for k in range(first, first + self.each) if k != row)]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), "ahead": self.ahead, "pace": self.pace}


class Races:
    """Races whose first cars are agents; somebody drives the others, if there are any. See `sim.env.Env`.

    Where all are agents, a race is over when the first of them has success or is lost; no other one has success.
    """

    def __init__(self, task: CarRaceMulti, num: int, seed: int) -> None:
        self.task, self.num, self.agents = task, num, task.agents
        self.races, self.each = num // task.agents, task.cars
        self.field = Field(task, self.races * self.each, seed)
        every = np.arange(self.field.num).reshape(self.races, self.each)
        self.own, self.theirs = every[:, : self.agents].reshape(-1), every[:, self.agents :].reshape(-1)
        self.opponent = task.opponent(len(self.theirs)) if len(self.theirs) else None
        self.begun, self.episode = np.ones(self.races, bool), np.zeros(self.races, np.int64)
        self.over, self.won = np.zeros(self.races, bool), np.zeros(num, bool)

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        races, numbers = np.asarray(rows[:: self.agents], np.int64) // self.agents, episodes[:: self.agents]
        cars = (races[:, None] * self.each + np.arange(self.each)).reshape(-1)
        self.field.reset(cars.tolist(), np.repeat(np.asarray(numbers, np.int64), self.each).tolist())
        self.begun[races], self.episode[races], self.over[races] = True, numbers, False
        self.won[np.asarray(rows, np.int64)] = False

    def observe(self) -> dict[str, Array]:
        return {name: value[self.own] for name, value in self.field.observe().items()}

    def truth(self) -> dict[str, Array]:
        return {name: value[self.own] for name, value in self.field.truth().items()}

    def _rivals(self) -> dict[str, Array]:
        """What other drivers are told."""
        now = {**self.field.observe(), "pace": self.field.pace}
        return {name: value[self.theirs] for name, value in now.items()}

    def step(self, command: Mapping[str, Array]) -> Step:
        group: Group = self.task.commands
        told = np.zeros((self.field.num, sum(s.size for s in group)), np.float32)
        told[self.own] = pack(group, command)
        if self.opponent is not None:
            about = [np.repeat(x, self.each - self.agents) for x in (self.episode, self.begun)]
            told[self.theirs] = pack(group, self.opponent.act(self._rivals(), *about))
        self.begun = np.zeros(self.races, bool)
        step = self.field.step(unpack(group, told))
        lost, still = step.terminated[self.own], np.repeat(~self.over, self.agents)
        first = self._first(step.success[self.own] & still)
        self.won |= first
        ended = ~self.over & (first | lost).reshape(-1, self.agents).any(axis=1)
        self.over |= ended
        if self.opponent is not None and ended.any():
            leads = first & (self.field.ahead[:, :, 0].sum(axis=1) == 0.0)
            rows = np.flatnonzero(np.repeat(ended, self.each - self.agents))
            self.opponent.scored(rows, leads[rows // (self.each - self.agents)])
        terms = {name: value[self.own] for name, value in step.terms.items()}
        return Step(step.reward[self.own], self.won.copy(), lost, terms)

    def _first(self, done: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of the agents that are done now (num,) the one of each race who has driven furthest."""
        way = np.where(done, self.field.way[self.own], -np.inf).reshape(-1, self.agents)
        foremost: NDArray[np.bool_] = (np.arange(self.agents) == way.argmax(axis=1)[:, None]).reshape(-1)
        return done & foremost

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        own = {name: getattr(self, name).copy() for name in ("begun", "episode", "over", "won")}
        opponent = self.opponent.state_dict() if self.opponent else {}
        return {**own, "field": self.field.state_dict(), "opponent": opponent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name in ("begun", "episode", "over", "won"):
            getattr(self, name)[...] = state[name]
        self.field.load_state_dict(state["field"])
        if self.opponent:
            self.opponent.load_state_dict(state["opponent"])

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """Its track from above, with all cars, and what the lidar of this one sees."""
        return self.field.render(int(self.own[row]), height, width)

    def close(self) -> None:
        self.field.close()
