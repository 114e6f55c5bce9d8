"""Races side by side, one car on each track, as an `Env` for the task of `sim.tasks.race`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.car import Cars
from sim.engines.car.camera import Eyes
from sim.engines.car.course import courses_of, follow
from sim.engines.car.lidar import angles
from sim.engines.sight.lens import Lens
from sim.engines.sight.panorama import landscapes
from sim.engines.vector.blocks import blocks, from_lanes, to_lanes
from sim.engines.vector.simd import LANES
from sim.engines.vector.streams import streams
from sim.env import Array, Step
from sim.imperfect import Imperfect, latencies
from sim.randomize import sample_parameters
from sim.registry import load
from sim.robots.cars import GRAVITY
from sim.spec import limits, numbers, pack, size, slices
from sim.tasks.race.looks import looks_of
from sim.tasks.sight import BACKGROUNDS, Sight

if TYPE_CHECKING:
    from sim.tasks.race import CarRace

# The reward: per m along the centreline, per step that touches a wall and per m/s with which it does, and per squared
# change of the steering, as a share of its limit.
WEIGHTS = {"progress": 1.0, "touched": -2.0, "impact": -1.0, "jerk": -0.1}
ROLLING = 3.0  # m/s at most, with which episodes begin
ASIDE, ASKEW = 0.25, 0.2  # m off the centreline, and rad off its direction, there
EYES = 0.4  # of the width of a picture for people: what is seen from the car
SEAT = Lens(90, 90, 120.0, 10.0, "fisheye")  # the camera of films of cars that have none
STARTS, SENSORS, PICTURES = range(3)  # an episode's own streams of random numbers


class Race:
    """`num` cars; see `sim.env.Env`. Every episode is another track of the task's pool."""

    weights: Mapping[str, float] = WEIGHTS

    def __init__(self, task: CarRace, num: int, seed: int) -> None:
        from sim.tasks.race import AHEAD, BEAMS, EVERY, RANGE, VIEW

        self.task, self.num, self.seed = task, num, seed
        self.tracks = task.pool(seed)
        self.courses = courses_of(self.tracks)
        engine = load("engine", task.engine, task.engines)
        self.cars = self._opened(engine)
        self._nominal = task.driven.parameters()
        self._low, self._high = limits(task.commands)
        self._sensed = numbers(task.policy)
        known = (*self._sensed, *task.privileged)
        self._columns = slices(known)
        self._table = np.zeros((blocks(num), size(known), LANES), np.float32)
        longest = max(s.delay_range()[1] for s in (*self._sensed, *task.commands)) * task.rate_hz
        self._sensors = Imperfect(self._sensed, num, task.noise, longest)
        self._actuators = Imperfect(task.commands, num, task.noise, longest)
        self._angles, self._range, self._beams = angles(BEAMS, VIEW), RANGE, slice(0, BEAMS)
        self._ahead = np.arange(AHEAD) * EVERY
        self.episode, self.track = np.zeros(num, np.int64), np.zeros(num, np.int64)
        self.nearest, self.place = np.full(num, -1), np.zeros((num, 3), np.float32)
        self.way, self.age = np.zeros(num, np.float32), np.zeros(num, np.int64)  # m driven, control steps
        self.touches, self.lost = np.zeros(num, np.int64), np.zeros(num, bool)  # told what is no number
        self._told = np.zeros((num, len(self._low)), np.float32)
        self._every = np.arange(num)
        self.sight: Sight | None = None
        if task.camera:
            strange = "background" in task.held_out
            eyes = Eyes(self.cars, task.camera.optics(), None if strange else task.panorama)
            if strange:
                eyes.panoramas = landscapes(len(eyes.panoramas), seed=BACKGROUNDS)
            self.sight, self._looks = Sight(eyes, task.latency), eyes.looks[0].copy()

    def _opened(self, engine: type[Cars]) -> Cars:
        """The cars, in this engine."""
        return engine(self.task.driven, self.num, 1.0 / self.task.rate_hz, self.tracks)

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        where, numbers = np.asarray(rows, np.int64), np.asarray(episodes, np.int64)
        if not len(where):
            return
        random = [np.random.default_rng([self.seed, int(number), STARTS]) for number in numbers]
        self.track[where], point, (aside, askew, speed), self.way[where] = self._starts(random, numbers)
        track = self.track[where]
        at = self.courses.first[track] + point
        (hx, hy), turned = self.courses.heading[at].T, ASKEW * askew
        cos, sin = np.cos(turned), np.sin(turned)
        start = {
            "position": self.courses.centre[at] + ASIDE * aside[:, None] * np.stack([-hy, hx], axis=1),
            "heading": np.stack([hx * cos - hy * sin, hy * cos + hx * sin], axis=1),
            "velocity": np.stack([ROLLING * speed, np.zeros(len(where))], axis=1),
        }
        drawn = [{**self._nominal, **self._varied(rng)} for rng in random]
        self.cars.on(where, track)
        self.cars.reset(where, start | {name: np.stack([d[name] for d in drawn]) for name in self._nominal})
        self.episode[where], self.nearest[where], self.place[where] = numbers, -1, 0.0
        self.age[where], self.touches[where], self.lost[where] = 0, 0, False
        self._told[where] = 0.0
        self._look(where)
        if self.sight:
            self._dress(self.sight, where, numbers)
            self.sight.begin(where)
        late = [latencies(group, random) for group in (self._sensed, self.task.commands)]
        own, factor = streams(self.seed, numbers, SENSORS), np.float32(self.task.rate_hz * self.task.noise)
        self._actuators.begin(where, factor * late[1], to_lanes(self._told), own)
        self._sensors.begin(where, factor * late[0], self._table, own)
        self._sensors.send(self._table, where)

    def _starts(
        self, random: Sequence[np.random.Generator], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Array, Array]:
        """Where episodes of these numbers (count,) begin: tracks, points of their centrelines, and m driven (count,).

        Before the last one (3, count): aside and askew, -1 to 1, and how fast, 0 to 1.
        """
        track = np.array([rng.integers(len(self.tracks)) for rng in random])
        point = (np.array([rng.random() for rng in random]) * self.courses.points[track]).astype(np.int64)
        return track, point, np.array([rng.uniform((-1, -1, 0), 1.0) for rng in random]).T, np.zeros(len(random))

    def _dress(self, sight: Sight, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """How the cameras of these rows see in these episodes."""
        eyes = sight.eyes
        for row, number in zip(rows, numbers, strict=True):
            seed = self.seed, int(number), PICTURES
            eyes.looks[row], eyes.seeds[row] = looks_of(self.task, self._looks, len(eyes.panoramas), seed)

    def _varied(self, rng: np.random.Generator) -> dict[str, Array]:
        """The parameters (1,) of one car that differ."""
        drawn = sample_parameters(self.task.vary, rng, self._nominal, 1)
        return {name: value[0] for name, value in drawn.items()}

    def _look(self, rows: NDArray[np.int64]) -> None:
        """Noise-free signals now; of these rows at least."""
        table, state, columns = self._table, self.cars.arrays()["state"], self._columns
        task = self.task
        self.cars.scan(self._angles, task.driven.lidar, self._range, rows, columns["lidar"].start, table)
        follow(
            *(state, self.courses, self.track, rows, self.nearest, self.place),
            *(self._ahead, columns["path"].start, table),
        )
        rows_of, parameters = self.cars.rows, self.cars.arrays()["parameters"]
        friction = parameters[:, rows_of("friction")]
        slips = (
            np.clip(state[:, rows_of("push")] / (GRAVITY * friction), -1.0, 1.0) / task.driven.longitudinal_stiffness
        )
        velocity = state[:, rows_of("velocity")]
        table[:, columns["wheel_speed"]] = velocity[:, :1] * (1.0 + slips)  # wheels that push turn faster
        table[:, columns["yaw_rate"]] = state[:, rows_of("turning")]
        table[:, columns["steering_angle"]] = state[:, rows_of("steering_angle")]
        table[:, columns["velocity"]], table[:, columns["friction"]] = velocity, friction
        table[:, columns["touched"]] = state[:, rows_of("touched")]
        if "last_speed" in columns:
            told = to_lanes(self._told)
            for k, command in enumerate(task.commands):
                table[:, columns[f"last_{command.name}"]] = told[:, k : k + 1]
        self.way[rows] += self.place[rows, 2]
        length = (self.courses.points * self.courses.spacing)[self.track] * task.config.laps
        own = np.stack([self.place[:, 1], self.way / length], axis=1)
        lanes = to_lanes(own)
        table[:, columns["offset"]], table[:, columns["lap"]] = lanes[:, :1], lanes[:, 1:]

    def sensed(self) -> Array:
        return self._sensors.channel.arrived

    def observe(self) -> dict[str, Array]:
        arrived = from_lanes(self._sensors.channel.arrived, self.num)
        return self.truth() | {name: arrived[:, at] for name, at in slices(self._sensed).items()}

    def truth(self) -> dict[str, Array]:
        now = from_lanes(self._table, self.num)
        shown = {"camera": self.sight.pictures} if self.sight else {}
        return {name: now[:, at] for name, at in self._columns.items()} | shown

    def step(self, command: Mapping[str, Array]) -> Step:
        task = self.task
        told = pack(task.commands, command)
        self.lost |= ~np.isfinite(told).all(axis=1)
        told = np.clip(np.nan_to_num(told), self._low, self._high)
        self.cars.advance(self._actuators.send(to_lanes(told)))
        self.age += 1
        before, self._told = self._told, told
        self._look(self._every)
        terms = self._terms(told[:, 0] - before[:, 0])
        fault = self._at_fault(terms)
        self.touches += fault
        reward = sum(self.weights[name] * value for name, value in terms.items())
        self._sensors.send(self._table)
        if self.sight:
            self.sight.step(self.cars.read("turning")[:, 0])
        ends = self.lost | (fault if task.config.touch == "ends" else False)
        success = (self._lap() >= 1.0) & (self.touches == 0) & ~self.lost
        return Step(np.asarray(reward, np.float32), success, ends, terms)

    def _terms(self, steered: Array) -> dict[str, Array]:
        """Of the reward (num,), unweighted; `steered` (num,) rad in this step."""
        return {
            "progress": self.place[:, 2].copy(),
            "touched": (self.cars.read("touched")[:, 0] > 0.0).astype(np.float32),
            "impact": self.cars.read("impact")[:, 0],
            "jerk": (steered / self._high[0]) ** 2,
        }

    def _at_fault(self, terms: Mapping[str, Array]) -> NDArray[np.bool_]:
        """Which have touched what they must not (num,)."""
        return terms["touched"] > 0.0

    def _lap(self) -> Array:
        """(num,): the share of the laps that is driven."""
        share: Array = from_lanes(self._table[:, self._columns["lap"]], self.num)[:, 0]
        return share

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        return {name: value.copy() for name, value in self._arrays().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name, value in self._arrays().items():
            value[...] = state[name]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        names = ("episode", "track", "nearest", "place", "way", "age", "touches", "lost")
        found: dict[str, NDArray[Any]] = {**self.cars.arrays(), "table": self._table, "told": self._told}
        for link, own in (("sensors", self._sensors), ("actuators", self._actuators)):
            found |= {f"{link}.{name}": value for name, value in own.arrays().items()}
        seen: dict[str, NDArray[Any]] = self.sight.arrays() if self.sight else {}
        return found | seen | {name: getattr(self, name) for name in names}

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """Its track from above, with the car and what its lidar sees; beside it the driver's seat.

        That is what its camera sees, or what one there would. None is drawn among others, whom cameras do not see.
        """
        from sim.render.match import strip
        from sim.render.track import from_above

        beams = self.observe()["lidar"][row], self._angles
        line = (
            self.age[row] / self.task.rate_hz,
            float(self._table[row // LANES, self._columns["velocity"].start, row % LANES]),
        )
        own, *others = (self._read(k) for k in self._together(row))
        beside = 0 if others else round(EYES * width)
        track, size = self.tracks[self.track[row]], (height, width - beside)
        above = from_above(track, self.task.driven, own, beams, line, *size, others)
        if others:
            return above
        seen = self.sight.pictures[row][None] if self.sight else self._seat.see(np.array([row]))[0]
        return np.concatenate([above, strip(seen, (0,), height, beside)], axis=1)

    @functools.cached_property
    def _seat(self) -> Eyes:
        """Cameras for films of cars that have none."""
        return Eyes(self.cars, SEAT)

    def _read(self, row: int) -> dict[str, Array]:
        """What a picture shows of a car."""
        return {name: self.cars.read(name)[row] for name in ("position", "heading", "steering_angle")}

    def _together(self, row: int) -> list[int]:
        """The rows on its track, itself first."""
        return [row]

    def close(self) -> None:
        self.cars.close()
