"""Airspaces side by side, each with some vehicles, as an `Env` for the task of `sim.tasks.swarm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.flight.airspace import crowd, meet, view
from sim.engines.flight.pillars import graze, look_around, too_near
from sim.engines.flight.together import FlightTogether
from sim.engines.vector.blocks import blocks, from_lanes, sane, to_lanes
from sim.engines.vector.rows import tell
from sim.engines.vector.simd import LANES
from sim.engines.vector.streams import streams
from sim.env import Array, Step
from sim.imperfect import Imperfect
from sim.randomize import sample_parameters
from sim.registry import load
from sim.spec import limits, pack, size, slices
from sim.tasks.quad_hover import random_tilt
from sim.tasks.swarm import CLOSE, HOLD, LOST_DISTANCE, LOST_RATE, PILLARS
from sim.tasks.swarm.places import Places, draw, pillars

if TYPE_CHECKING:
    from sim.tasks.swarm import QuadSwarm

# The reward: per step in the air, per m from the target, per squared m/s relative to it, rad/s and share of a turn, per
# squared change of the action; once for a touch. `SwarmConfig.crowd` says what it costs to be near others: per square
# of the share of the margin that is missing to each.
WEIGHTS = {
    "alive": 2.0,
    "away": -1.0,
    "speed": -0.2,
    "turning": -0.002,
    "tilt": -0.1,
    "change": -0.05,
    "touched": -20.0,
}
SOFT = 0.03  # m: nearer to its target, the distance counts as its square
MARGIN = 0.6  # m between centres, from which on others are too near
BERTH = 0.45  # m from centre to surface, from which on pillars are
FREE = 10.0  # m: what is told of pillars further away, and of none
FLOOR = 0.05  # m above the floor, where it is on it
TILT, ADRIFT, ADRIFT_TURNING = 10.0, 0.2, 0.2  # degrees, m/s and rad/s at most, with which episodes begin
STARTS, SENSORS, OBSTACLES = range(3)  # an episode's own streams of random numbers
# What the engine knows.
ENGINE = (
    *("position", "rotation", "linear_velocity", "angular_velocity"),
    *("rotor_speed", "mass", "thrust_scale", "rotor_lag"),
)


class Swarm:
    """`num` vehicles in airspaces of `task.agents`; see `sim.env.Env`."""

    def __init__(self, task: QuadSwarm, num: int, seed: int) -> None:
        self.task, self.num, self.seed, self.each = task, num, seed, task.agents
        self.weights = WEIGHTS | {"crowd": -task.config.crowd}
        self.worlds = num // self.each
        engine: type[FlightTogether] = load("engine", task.engine, task.engines)
        self.flight = engine(task.robot, num, 1.0 / task.rate_hz, each=self.each)
        self._nominal = task.robot.parameters()
        self._low, self._high = limits(task.commands)
        known = (*task.policy, *task.privileged)
        self._columns = slices(known)
        self._table = np.zeros((blocks(num), size(known), LANES), np.float32)
        self._read = self.flight.reader({name: self._columns[name] for name in ENGINE})
        longest = max(s.delay_range()[1] for s in task.commands) * task.rate_hz
        self._sensors = Imperfect(task.policy, num, task.noise, 0.0)
        self._actuators = Imperfect(task.commands, num, 0.0, longest)
        self._order = np.zeros((num, self.each - 1), np.int64)  # which rows are near each, the nearest first
        self._crowd, self._slopes = np.zeros(num, np.float32), np.zeros_like(self.flight.state)
        self._pillars = np.zeros((self.worlds, task.config.obstacles, 3), np.float32)
        self._round = np.zeros((num, task.config.obstacles), np.int64)  # which are near each, the nearest first
        self.gap = np.full(num, np.inf, np.float32)
        self._now, self._away = self._by_name(), np.zeros(num, np.float32)
        self._every = np.arange(num)
        self.episode, self.age = np.zeros(num, np.int64), np.zeros(num, np.int64)  # age: control steps
        self.goal, self.drift = np.zeros((2, num, 3), np.float32)
        self.held = np.zeros(self.worlds, np.int64)  # control steps for which all have been at their targets
        self.lost = np.zeros(num, bool)
        self.still = np.full(len(self._low), task.robot.hover_command, np.float32)
        self._told = np.tile(self.still, (num, 1))

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        where, n = np.asarray(rows, np.int64), self.each
        if not len(where):
            return
        worlds = np.asarray(episodes, np.int64)[::n]
        drawn = [self._start(np.random.default_rng([self.seed, number, STARTS])) for number in worlds.tolist()]
        state, parameters, rest = ({k: np.concatenate([d[i][k] for d in drawn]) for k in drawn[0][i]} for i in range(3))
        self.flight.begin(where, self.flight.prepare(len(where), state, parameters))
        now, gaps = self.flight.state[:, :3].copy(), np.empty_like(self.flight.nearest)
        meet(now, self.flight.state, n, gaps)
        self.flight.washed[where], self.flight.nearest[where] = 0.0, gaps[where]
        self.goal[where], self.drift[where] = rest["goal"], rest["drift"]
        if self.task.config.obstacles:
            self._pillars[where[::n] // n] = [self._obstacles(*one) for one in zip(worlds.tolist(), drawn, strict=True)]
            gap = np.empty_like(self.gap)
            graze(now, self.flight.state, n, self._pillars, gap)
            self.gap[where] = gap[where]
        self.episode[where], self.age[where], self.lost[where] = np.repeat(worlds, n), 0, False
        self.held[where[::n] // n] = 0
        self._told[where] = self.still
        own = streams(self.seed, np.repeat(worlds, n) * n + where % n, SENSORS)
        late = (self.task.rate_hz * rest["latency"]).astype(np.float32)
        self._actuators.begin(where, late, to_lanes(self._told), own)
        self._look()
        self._sensors.begin(where, np.zeros((len(where), len(self.task.policy)), np.float32), self._table, own)
        self._sensors.send(self._table, where)

    def _start(self, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """State, parameters and the rest of one world's vehicles, (n, k) by name."""
        task, n = self.task, self.each
        start, goal, drift = self._places(rng)
        state: dict[str, Array] = {
            "position": start,
            "quaternion": random_tilt(rng, n, TILT),
            "linear_velocity": drift + rng.uniform(-ADRIFT, ADRIFT, (n, 3)),
            "angular_velocity": rng.uniform(-ADRIFT_TURNING, ADRIFT_TURNING, (n, 3)),
            "rotor_speed": np.full((n, 4), task.robot.hover_command),
        }
        late = np.array([rng.uniform(*s.delay_range(), n) for s in task.commands]).T
        rest = {"goal": goal, "drift": np.broadcast_to(drift, (n, 3)), "latency": late}
        return state, sample_parameters(task.vary, rng, self._nominal, n), rest

    def _obstacles(self, number: int, drawn: tuple[dict[str, Array], ...]) -> Array:
        """Pillars (m, 3) of an airspace, beside the ways of what was `drawn` to begin and to end."""
        state, _, rest = drawn
        c, rng = self.task.config, np.random.default_rng([self.seed, number, OBSTACLES])
        ways = state["position"], rest["goal"], c.episode_s * rest["drift"]
        return pillars(c.obstacles, c.obstacle_radius, c.radius, *ways, rng)

    def _places(self, rng: np.random.Generator) -> Places:
        """Those of one airspace."""
        return draw(self.task.config.mode, self.each, self.task.config.radius, rng)

    def _look(self) -> None:
        """Noise-free signals now."""
        flight, at = self.flight, self._columns
        self._read(self._table)
        places = (at[name].start for name in ("others", "others_velocity", "neighbours", "neighbours_velocity"))
        view(flight.state, self.each, self._order, *places, self.task.config.neighbours, self._table)
        seconds = (self.age / self.task.rate_hz).astype(np.float32)[:, None]
        told = {"target_position": self.goal + seconds * self.drift, "target_velocity": self.drift}
        told |= {"delay": self._actuators.delay, "wash": flight.read("wash")}
        nearest = flight.read("nearest")
        touched = (nearest < 2.0 * self.task.robot.extent) | (self.gap < self.task.robot.extent)[:, None]
        told |= {"nearest": nearest, "touched": touched.astype(np.float32)}
        if self.task.config.obstacles:
            told |= self._look_around()
        for name, value in told.items():
            tell(value, self._every, at[name].start, self._table)
        self._now = now = self._by_name()
        with np.errstate(invalid="ignore", over="ignore"):
            self._away = np.sqrt(((now["position"] - now["target_position"]) ** 2).sum(axis=1))
            fast = np.sqrt((now["angular_velocity"] ** 2).sum(axis=1))
        flies = (now["position"][:, 2] > FLOOR) & (self._away < LOST_DISTANCE) & (fast < LOST_RATE)
        now["strayed"][:, 0] = ~flies  # nor does what is not a number
        tell(now["strayed"], self._every, at["strayed"].start, self._table)
        crowd(flight.state, self.each, MARGIN, self._crowd, self._slopes)
        if self.task.config.obstacles:
            too_near(flight.state, self.each, self._pillars, BERTH, self._crowd, self._slopes)

    def _look_around(self) -> dict[str, Array]:
        """What is known of pillars; what is told of the nearest ones, too, in the table."""
        flight, at = self.flight, self._columns["obstacles"].start
        look_around(flight.state, self.each, self._pillars, self._round, at, PILLARS, self._table)
        position, own = flight.read("position"), np.repeat(self._pillars, self.each, axis=0)
        own[:, :, :2] -= position[:, None, :2]
        own[own[:, :, 2] <= 0.0] = 0.0
        return {"pillars": own.reshape(self.num, -1), "obstacle_gap": np.minimum(self.gap, FREE)[:, None]}

    def sensed(self) -> Array:
        return self._sensors.channel.arrived

    def observe(self) -> dict[str, Array]:
        arrived = from_lanes(self._sensors.channel.arrived, self.num)
        return self.truth() | {name: arrived[:, at] for name, at in slices(self.task.policy).items()}

    def truth(self) -> dict[str, Array]:
        return dict(self._now)

    def _by_name(self) -> dict[str, Array]:
        now = from_lanes(self._table, self.num)
        return {name: now[:, at] for name, at in self._columns.items()}

    def step(self, command: Mapping[str, Array]) -> Step:
        told = pack(self.task.commands, command)
        self.lost |= ~np.isfinite(told).all(axis=1)
        told = np.clip(sane(told), self._low, self._high)
        self.flight.advance(self._actuators.send(to_lanes(told)))
        if self.task.config.obstacles:
            graze(self.flight.before, self.flight.state, self.each, self._pillars, self.gap)
        self.age += 1
        before, self._told = self._told, told
        self._look()
        self._sensors.send(self._table)
        now = self.truth()
        ends = self.lost | (now["touched"][:, 0] > 0.0) | (now["strayed"][:, 0] > 0.0)
        terms = self._terms(now, before, ends)
        there = self._away < CLOSE
        self.held = np.where((there & ~ends).reshape(-1, self.each).all(axis=1), self.held + 1, 0)
        done = np.repeat(self.held >= round(HOLD * self.task.rate_hz), self.each)
        with np.errstate(invalid="ignore", over="ignore"):
            reward = sum(self.weights[name] * value for name, value in terms.items())
        return Step(sane(np.asarray(reward, np.float32)), done, ends, terms)

    def _terms(self, now: Mapping[str, Array], before: Array, ends: NDArray[np.bool_]) -> dict[str, Array]:
        """Of the reward (num,), unweighted."""
        with np.errstate(invalid="ignore", over="ignore"):
            square = ((now["position"] - now["target_position"]) ** 2).sum(axis=1)
            moving = now["linear_velocity"] - now["target_velocity"]
            action = 2.0 * (self._told - before) / (self._high - self._low)
            return {
                "alive": (~ends).astype(np.float32),
                "away": np.sqrt(square + np.float32(SOFT * SOFT)),
                "speed": (moving**2).sum(axis=1),
                "turning": (now["angular_velocity"] ** 2).sum(axis=1),
                "tilt": np.float32(0.25) * (3.0 - now["rotation"][:, [0, 4, 8]].sum(axis=1)),
                "change": (action**2).sum(axis=1),
                "crowd": self._crowd.copy(),
                "touched": now["touched"][:, 0].copy(),
            }

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        return {name: value.copy() for name, value in self._arrays().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name, value in self._arrays().items():
            value[...] = state[name]
        self._look()

    def _arrays(self) -> dict[str, NDArray[Any]]:
        flight = self.flight
        found: dict[str, NDArray[Any]] = {name: getattr(flight, name) for name in ("state", "values", "derived")}
        found |= {"washed": flight.washed, "nearest": flight.nearest, "table": self._table, "told": self._told}
        if self.task.config.obstacles:
            found |= {"pillars": self._pillars, "gap": self.gap}
        for link, own in (("sensors", self._sensors), ("actuators", self._actuators)):
            found |= {f"{link}.{name}": value for name, value in own.arrays().items()}
        return found | {k: getattr(self, k) for k in ("episode", "age", "goal", "drift", "held", "lost")}

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """All vehicles of its airspace, and where they are to go."""
        from sim.render.offscreen import picture

        first = row - row % self.each
        rows, goal = slice(first, first + self.each), self.truth()["target_position"]
        position, quaternion = (self.flight.read(name)[rows] for name in ("position", "quaternion"))
        return picture(self.task.robot, position, quaternion, goal[rows], height, width)

    def close(self) -> None:
        """Nothing is held."""
