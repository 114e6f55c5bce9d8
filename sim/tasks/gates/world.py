"""Races side by side, one quadrotor on each track of gates, as an `Env` for the task of `sim.tasks.gates`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim import engines
from sim.engines.flight.gates import clearances
from sim.engines.vector.blocks import blocks, from_lanes, to_lanes
from sim.engines.vector.simd import LANES
from sim.engines.vector.streams import streams
from sim.env import Array, Step
from sim.imperfect import Imperfect, latencies
from sim.randomize import draw_robots
from sim.robots.quadrotors import GRAVITY
from sim.rotations import quaternion, rotation_matrices
from sim.scenes.gates import BAR, Openings, crossing
from sim.spec import limits, numbers, pack, size, slices
from sim.tasks.gates.references import References

if TYPE_CHECKING:
    from sim.tasks.gates import QuadGateRace

# The reward: per m toward the next gate, per gate passed, per step with the next gate's middle straight ahead (less
# away from there), per squared rad/s, per squared change of a command, and for a crash. Ours; their ratios are Swift's
# (1, -, 0.02, 2e-4, 1e-4, 5), with a higher price for changes, as motors are commanded and not body rates.
WEIGHTS = {"progress": 1.0, "passed": 1.0, "view": 0.01, "spin": -2e-4, "jerk": -0.01, "crash": -8.0}
BEHIND = 3.0  # m before a gate where episodes begin
ASIDE, TILT, ROLLING = 0.3, 0.15, 6.0  # m beside that; rad that it is tilted; m/s at most, of those that begin flying
# On the reference: share of the episodes that begin at its beginning; m beside it, and m/s, at most.
FROM_REST, BESIDE, ASTRAY = 0.15, 0.25, 1.0
SHORT = 0.01  # m before the next gate's plane, at least
FAR = 15.0  # m beyond the distance of its gates from one another: who is so far from the next one is lost
SPINNING = 35.0  # rad/s, where gyroscopes end
TRAIL = 60  # control steps
STARTS, SENSORS = range(2)  # an episode's own streams of random numbers
STATES = ("position", "quaternion", "linear_velocity", "angular_velocity", "rotor_speed")


class GateRace:
    """`num` quadrotors; see `sim.env.Env`. Every episode is another track of the task's pool."""

    weights: Mapping[str, float] = WEIGHTS

    def __init__(self, task: QuadGateRace, num: int, seed: int) -> None:
        self.task, self.num, self.seed = task, num, seed
        self.tracks = task.pool(seed)
        self.vehicles = engines.make(task.engine, task.robot, num, 1.0 / task.rate_hz)
        self._nominal = task.robot.parameters()
        self._low, self._high = limits(task.commands)
        self._sensed = numbers(task.policy)
        known = (*self._sensed, *task.privileged)
        self._columns = slices(known)
        self._table = np.zeros((blocks(num), size(known), LANES), np.float32)
        longest = max(s.delay_range()[1] for s in (*self._sensed, *task.commands)) * task.rate_hz
        self._now = from_lanes(self._table, num)  # the same, (num, size)
        self._sensors = Imperfect(self._sensed, num, task.noise, longest)
        self._actuators = Imperfect(task.commands, num, task.noise, longest)
        self._lay_out()
        self.episode, self.track = np.zeros(num, np.int64), np.zeros(num, np.int64)
        self.first, self.passed = np.zeros(num, np.int64), np.zeros(num, np.int64)  # gate to begin with, gates passed
        self.age, self.lost = np.zeros(num, np.int64), np.zeros(num, bool)  # control steps; told what is no number
        self._told = np.zeros((num, len(self._low)), np.float32)
        self._place = np.zeros((num, 3), np.float32)  # m, world
        self._trail = np.zeros((TRAIL, num, 3), np.float32)  # of the last steps, the newest last: for pictures
        self._every = np.arange(num)
        self.references = References(task, self.tracks, BEHIND) if task.planned else None
        self.nearest = np.zeros(num, np.int64)  # samples of the reference
        self.missed = np.zeros(num, bool)  # who flew past the next gate in the last control step

    def _lay_out(self) -> None:
        """All tracks' gates in arrays (tracks, gates, ...); what is missing of the longest lies far away."""
        self.gates = np.array([len(t.yaw) for t in self.tracks])
        shape = len(self.tracks), int(self.gates.max())
        self._centre = np.full((*shape, 3), 1e6, np.float32)
        self._axes, self._size = np.zeros((*shape, 3, 3), np.float32), np.ones((*shape, 2), np.float32)
        self._corners = np.zeros((*shape, 4, 3), np.float32)
        self._axes[:] = np.eye(3)
        for k, track in enumerate(self.tracks):
            count = len(track.yaw)
            self._centre[k, :count], self._axes[k, :count] = track.centre, track.axes
            self._size[k, :count], self._corners[k, :count] = track.size, track.corners
        ways = [np.linalg.norm(np.roll(t.centre, -1, axis=0) - t.centre, axis=1).max() for t in self.tracks]
        self._far = np.array(ways) + FAR

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        where, numbers_ = np.asarray(rows, np.int64), np.asarray(episodes, np.int64)
        if not len(where):
            return
        random = [np.random.default_rng([self.seed, int(number), STARTS]) for number in numbers_]
        self.track[where] = track = np.array([rng.integers(len(self.tracks)) for rng in random])
        anywhere = self.task.config.start == "anywhere"
        pick = np.array([rng.random() for rng in random]) * anywhere
        self.first[where] = gate = (pick * self.gates[track]).astype(np.int64)
        drawn = [draw_robots(self.task.robot, self.task.vary, rng, 1).parameters for rng in random]
        self.passed[where], self.nearest[where] = 0, 0
        if self.references:
            self.references.plan(track)
        if self.task.config.start == "reference":
            start = self._flying(random, where)
        else:
            start = self._starts(random, track, gate, anywhere)
        mask = np.zeros(self.num, bool)
        mask[where] = True
        order = np.argsort(where)  # an engine takes a mask's rows in their order
        self.vehicles.reset(mask, {name: value[order] for name, value in start.items()})
        varied = {
            name: np.stack([d[name][0] if name in d else nominal for d in drawn])[order]
            for name, nominal in self._nominal.items()
        }
        self.vehicles.set_parameters(mask, varied)
        self.episode[where], self.age[where], self.lost[where] = numbers_, 0, False
        self._told[where] = start["rotor_speed"]
        self._place[where] = self._trail[-1, where] = start["position"]
        self._look(where)
        latency = [latencies(group, random) for group in (self._sensed, self.task.commands)]
        own, factor = streams(self.seed, numbers_, SENSORS), np.float32(self.task.rate_hz * self.task.noise)
        self._actuators.begin(where, factor * latency[1], to_lanes(self._told), own)
        self._sensors.begin(where, factor * latency[0], self._table, own)
        self._sensors.send(self._table, where)

    def _starts(
        self, random: Sequence[np.random.Generator], track: NDArray[np.int64], gate: NDArray[np.int64], anywhere: bool
    ) -> dict[str, Array]:
        """States (count, k) by name: before those gates, headed for them."""
        drawn = np.array([rng.uniform(-1.0, 1.0, 8) for rng in random])
        n, axes = len(track), self._axes[track, gate].astype(np.float64)
        ahead = axes[:, :, 0]
        position = (
            self._centre[track, gate] - BEHIND * ahead + ASIDE * drawn[:, :3] * (self.task.config.vary | anywhere)
        )
        position[:, 2] = np.maximum(position[:, 2], 0.5)
        to = self._centre[track, gate] - position
        half = 0.5 * np.arctan2(to[:, 1], to[:, 0])
        flying = np.maximum(drawn[:, 3], 0.0) * anywhere
        tilt = 0.5 * TILT * drawn[:, 4:6] * (self.task.config.vary | anywhere)
        turned = np.stack(
            [
                np.cos(half),
                np.cos(half) * tilt[:, 0] - np.sin(half) * tilt[:, 1],
                np.sin(half) * tilt[:, 0] + np.cos(half) * tilt[:, 1],
                np.sin(half),
            ],
            axis=1,
        )  # yaw, then small roll and pitch
        turned /= np.linalg.norm(turned, axis=1, keepdims=True)
        state = {
            "position": position,
            "quaternion": turned,
            "linear_velocity": (ROLLING * flying)[:, None] * to / np.linalg.norm(to, axis=1, keepdims=True),
            "rotor_speed": np.full((n, 4), self.task.robot.hover_command),
        }
        return {name: np.ascontiguousarray(value, np.float32) for name, value in state.items()}

    def _flying(self, random: Sequence[np.random.Generator], where: NDArray[np.int64]) -> dict[str, Array]:
        """The same of these rows, on the time-optimal trajectory or beside it; what is passed and nearest there."""
        assert self.references is not None
        drawn = np.array([rng.uniform(-1.0, 1.0, 10) for rng in random])
        track = self.track[where]
        share = np.maximum((1.0 + FROM_REST) * (0.5 + 0.5 * drawn[:, 9]) - FROM_REST, 0.0)
        self.nearest[where], self.passed[where] = self.references.point(track, share)
        told = self.references.told(track, self.nearest[where]).astype(np.float64)
        position, velocity, push, _ = np.split(told, 4, axis=1)
        position += BESIDE * drawn[:, :3]
        position[:, 2] = np.maximum(position[:, 2], 0.5)
        due = self._due()[where]
        ahead = self._axes[track, due, :, 0].astype(np.float64)
        behind = ((position - self._centre[track, due]) * ahead).sum(axis=1)  # m, of the next gate's plane
        position -= np.maximum(behind + SHORT, 0.0)[:, None] * ahead  # who began there would never pass it
        push[:, 2] += GRAVITY
        up = push / np.linalg.norm(push, axis=1, keepdims=True) + TILT * drawn[:, 6:9]
        up /= np.linalg.norm(up, axis=1, keepdims=True)
        to = self._centre[track, due] - position
        left = np.cross(up, to)
        left /= np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-6)
        turn = np.stack([np.cross(left, up), left, up], axis=2)
        speed = np.sqrt(np.linalg.norm(push, axis=1, keepdims=True) / GRAVITY) * self.task.robot.hover_command
        state = {
            "position": position,
            "quaternion": np.array([quaternion(one) for one in turn])[:, [3, 0, 1, 2]],
            "linear_velocity": (velocity + ASTRAY * drawn[:, 3:6]) * (share > 0.0)[:, None],
            "rotor_speed": np.minimum(speed, 1.0) * np.ones(4),
        }
        return {name: np.ascontiguousarray(value, np.float32) for name, value in state.items()}

    def _due(self, ahead: int = 0) -> NDArray[np.int64]:
        """(num,): the next gate, or one that comes so many after it."""
        gate: NDArray[np.int64] = (self.first + self.passed + ahead) % self.gates[self.track]
        return gate

    def _look(self, rows: NDArray[np.int64]) -> None:
        """Noise-free signals now, of these rows: all of them, or those that begin an episode."""
        names = (*STATES, "mass", "thrust_scale", "rotor_lag")
        read = {name: np.asarray(self.vehicles.read(name))[rows] for name in names}
        position, n = read["position"], len(rows)
        turn = rotation_matrices(read["quaternion"].astype(np.float64)).astype(np.float32)
        track, due = self.track[rows], self._due()[rows]
        for ahead, name in enumerate(("next_gate", "gate_after")):
            corners = self._corners[track, self._due(ahead)[rows]] - position[:, None]
            read[name] = np.einsum("nkj,nji->nki", corners, turn).reshape(n, 12)
        read["projected_gravity"], read["rotation"] = -turn[:, 2], turn.reshape(n, 9)
        read["linear_velocity"] = np.einsum("nj,nji->ni", read["linear_velocity"], turn)
        read["last_motor_command"] = self._told[rows]
        read["gate_place"] = self._in_gate(position, track, due)
        read["clearance"] = (self._away(position, track) - self.task.radius)[:, None]
        read["hit"] = (read["clearance"] <= 0.0).astype(np.float32)
        read["passed"] = (self.passed[rows] / (self.gates[track] * self.task.config.laps))[:, None]
        read["reference"] = np.zeros((n, 12), np.float32)
        if self.references:
            self.references.advance(self.track, position, rows, self.nearest)
            read["reference"] = self.references.told(track, self.nearest[rows])
        read |= self._tell(read, rows)
        self._now[rows] = np.concatenate([read[name] for name in self._columns], axis=1, dtype=np.float32)
        self._table[:] = to_lanes(self._now)

    def _away(self, position: Array, track: NDArray[np.int64]) -> Array:
        """m (n,) from points (n, 3) to the nearest frame of their tracks, or the ground."""
        made = np.empty(len(position), np.float32)
        clearances(position, track, self.gates, self._centre, self._axes, self._size, BAR, made)
        return made

    def _tell(self, read: Mapping[str, Array], rows: NDArray[np.int64]) -> Mapping[str, Array]:
        """More signals (n, k), of what `_look` read of `rows`: they begin an episode, or all are a control step on."""
        return {}

    def _in_gate(self, place: Array, track: NDArray[np.int64], gate: NDArray[np.int64]) -> Array:
        """Points (n, 3), m, in the axes of gates (n,) of tracks (n,)."""
        made: Array = np.einsum("nj,nji->ni", place - self._centre[track, gate], self._axes[track, gate])
        return made

    def sensed(self) -> Array:
        return self._sensors.channel.arrived

    def observe(self) -> dict[str, Array]:
        arrived = from_lanes(self._sensors.channel.arrived, self.num)
        return self.truth() | {name: arrived[:, at] for name, at in slices(self._sensed).items()}

    def truth(self) -> dict[str, Array]:
        return {name: self._now[:, at].copy() for name, at in self._columns.items()}

    def step(self, command: Mapping[str, Array]) -> Step:
        task = self.task
        told = pack(task.commands, command)
        self.lost |= ~np.isfinite(told).all(axis=1)
        told = np.clip(np.nan_to_num(told), self._low, self._high)
        self.vehicles.step(from_lanes(self._actuators.send(to_lanes(told)), self.num))
        self.age += 1
        before, changed, self._told = self._place, told - self._told, told
        self._place = np.asarray(self.vehicles.read("position"))
        self._trail = np.concatenate([self._trail[1:], self._place[None]])
        due = self._due()
        centre = self._centre[self.track, due]
        progress = np.linalg.norm(before - centre, axis=1) - np.linalg.norm(self._place - centre, axis=1)
        there, here = (self._in_gate(place, self.track, due) for place in (before, self._place))
        passed = crossing(there, here, self._size[self.track, due], task.radius)
        self.passed += passed
        self.missed = (there[:, 0] < 0.0) & (here[:, 0] >= 0.0) & ~passed
        self._look(self._every)
        now = self.truth()
        crashed = self._crashed(now)
        if not task.config.retry:
            crashed |= self.missed
        middle = now["next_gate"].reshape(self.num, 4, 3).mean(axis=1)
        off = np.arctan2(np.linalg.norm(middle[:, 1:], axis=1), middle[:, 0])
        terms = {
            "progress": progress,
            "passed": passed,
            "view": np.exp(-10.0 * np.minimum(off, 2.0) ** 4),
            "spin": (now["angular_velocity"] ** 2).sum(axis=1),
            "jerk": (changed**2).sum(axis=1),
            "crash": crashed,
        }
        terms = {name: np.asarray(value, np.float32) for name, value in terms.items()}
        reward = sum(self.weights[name] * value for name, value in terms.items())
        self._sensors.send(self._table)
        success = (now["passed"][:, 0] >= 1.0) & ~crashed & ~self.lost
        return Step(np.asarray(reward, np.float32), success, crashed | self.lost, terms)

    def _crashed(self, now: Mapping[str, Array]) -> NDArray[np.bool_]:
        """Which have hit something, spin, or are gone (num,); so is what is no number."""
        away = np.linalg.norm(now["gate_place"], axis=1)
        fine = (now["hit"][:, 0] == 0.0) & (away < self._far[self.track])
        fine &= np.abs(now["angular_velocity"]).max(axis=1) < SPINNING
        crashed: NDArray[np.bool_] = ~fine
        return crashed

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        parts = {"engine": STATES, "parameters": tuple(self._nominal)}
        held = {kind: {name: np.array(self.vehicles.read(name)) for name in names} for kind, names in parts.items()}
        return {**held, "arrays": {name: value.copy() for name, value in self._arrays().items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.vehicles.set_parameters(None, {name: np.asarray(v) for name, v in state["parameters"].items()})
        self.vehicles.reset(None, {name: np.asarray(v) for name, v in state["engine"].items()})
        for name, value in self._arrays().items():
            value[...] = state["arrays"][name]
        if self.references:
            self.references.plan(self.track)
        self._now = from_lanes(self._table, self.num)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        names = ("episode", "track", "first", "passed", "age", "lost", "nearest")
        found: dict[str, NDArray[Any]] = {
            "table": self._table,
            "told": self._told,
            "place": self._place,
            "trail": self._trail,
        }
        for link, own in (("sensors", self._sensors), ("actuators", self._actuators)):
            found |= {f"{link}.{name}": value for name, value in own.arrays().items()}
        return found | {name: getattr(self, name) for name in names}

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """Its track with the vehicle, as somebody beside the track sees it; the next gate is coloured."""
        from sim.render.gates import beside

        told = self.age[row] / self.task.rate_hz, float(np.linalg.norm(self.vehicles.read("linear_velocity")[row]))
        track, count = self.tracks[self.track[row]], int(min(self.age[row] + 1, len(self._trail)))
        trail = self._trail[len(self._trail) - count :, row]
        turned = np.asarray(self.vehicles.read("quaternion"))[row]
        return beside(track, self.task.robot, trail, turned, int(self._due()[row]), told, height, width)

    def openings(self, row: int) -> Openings:
        """The gates of its track."""
        track = self.track[row]
        count = int(self.gates[track])
        corners = np.roll(self.tracks[track].corners, -int(self.first[row]), axis=0)
        return Openings(corners, count * self.task.config.laps)

    def close(self) -> None:
        """There is nothing to free."""
