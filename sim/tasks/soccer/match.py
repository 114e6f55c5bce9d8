"""Football matches side by side, as an `Env` for the tasks of `soccer.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.engines.pitch.camera import Eyes
from sim.engines.pitch.rows import COMMAND_ROWS, KICK, PAN_RATE, TURN
from sim.engines.pitch.views import view, view_rows
from sim.engines.sight.lens import Lens
from sim.engines.sight.panorama import landscapes
from sim.env import Array, Step
from sim.registry import load
from sim.spec import limits, pack, size, slices, unpack
from sim.tasks.sight import BACKGROUNDS, PURPOSE, Sight, strange_looks, usual_looks, varied_looks, yaw
from sim.tasks.soccer import held_out
from sim.tasks.soccer.detection import Detector, places, signals, things
from sim.tasks.soccer.rules import Events
from sim.tasks.soccer.tracker import Tracker

if TYPE_CHECKING:
    from sim.tasks.soccer import Soccer

STUCK = 0.1  # m within which the ball may stay as long as the rules say
AHEAD = math.cos(math.radians(30.0))  # the ball touches a robot's front within 25 degrees of its heading
MARGIN = 0.1  # m that robots and ball keep from boards and from each other at the start
LEGIBLE = 100  # pixels, the height from which on there is room for the time and the goals
EYES = 0.34  # of the height of a picture for people: what robots see
VARY = 0.2  # by which what varies differs at most, as a share
VARIED = (
    *("ball_mass", "sliding", "rolling", "wall_bounce"),
    *("mass", "acceleration", "grip", "lag", "kick_speed", "bounce"),
)


class Match:
    """`num / agents` pitches; see `sim.env.Env`. Where the other team is played here its robots are no rows."""

    def __init__(self, task: Soccer, num: int, seed: int) -> None:
        self.task, self.num, self.seed = task, num, seed
        self.worlds, self.robots = num // task.agents, 2 * task.players
        engine = load("engine", task.engine, task.engines)
        self.pitch = engine(task.robot, task.field, task.ball, self.worlds, self.robots, 1.0 / task.rate_hz)
        self._nominal = {name: self.pitch.read(name)[0] for name in VARIED}
        self.side = np.where(np.arange(self.robots) < task.players, 1.0, -1.0).astype(np.float32)
        self.episode, self.begun = np.zeros(self.worlds, np.int64), np.ones(self.worlds, bool)
        self.age = np.zeros(self.worlds, np.int64)  # control steps of its episode
        self.lost = np.zeros(self.worlds, bool)  # told what is no number
        self.over = np.zeros(self.worlds, np.float32)  # in whose goal the ball is: 1 where team 0 scores
        self.anchor, self.waited = np.zeros((self.worlds, 2), np.float32), np.zeros(self.worlds, np.int64)
        each = self.robots - task.agents
        self.opponent = task.opponent(self.worlds * each) if each else None
        self._low, self._high = limits(task.moves)
        self._columns = slices(view(task.players))
        self._seen = np.zeros((self.worlds, self.robots, size(view(task.players))), np.float32)
        self.sight: Sight | None = None
        if task.camera:
            self.sight = Sight(self._eyes(task.agents, task.lens), task.latest)
            self._looks = self.sight.eyes.looks[: task.agents].copy()
        self.yaw = np.zeros(self.worlds * task.agents, np.float32)  # how far a detector's camera looks to the left
        self.detector: Detector | None = None
        if task.errors:
            rows, radius = self.worlds * task.agents, task.robot.radius
            kinds = [*things(task.players).values()]
            self.detector = Detector(rows, kinds, math.radians(task.lens.view), radius, task.errors, task.latest)
        count = sum(things(task.players).values()) if task.recognise else 0
        self.recognised = np.zeros((self.worlds * task.agents, count, 3), np.float32)  # what is told of pictures
        self.tracker: Tracker | None = None
        if task.sees:
            how = math.radians(task.lens.view), task.robot.radius, 1.0 / task.rate_hz
            self.tracker = Tracker(self.worlds * task.agents, task.players, *how)
        self._watched: Eyes | None = None  # everybody's, for films
        self.ways, self._drive = np.zeros((self.worlds, self.robots, 2), np.float32), slices(task.moves)["drive"]

    def _eyes(self, robots: int, lens: Lens) -> Eyes:
        """The cameras of the first `robots` robots of each pitch, and what is around it."""
        strange = "background" in self.task.held_out
        made = Eyes(self.pitch, robots, lens, None if strange else self.task.panorama)
        if strange:
            made.panoramas = landscapes(len(made.panoramas), seed=BACKGROUNDS)
        return made

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        agents = self.task.agents
        worlds, numbers = np.asarray(rows[::agents], np.int64) // agents, episodes[::agents]
        if not len(worlds):
            return
        random = [np.random.default_rng([self.seed, number]) for number in numbers]
        starts = [self._start(rng) for rng in random]
        unlike = self.task.held_out
        strange = [np.random.default_rng([self.seed, number, PURPOSE]) for number in numbers if unlike]
        for start, rng in zip(starts, strange, strict=False):
            start.update(held_out.parameters(unlike, self._nominal, rng))
        self.pitch.reset(worlds, {name: np.stack([s[name] for s in starts]) for name in starts[0]})
        self.episode[worlds], self.begun[worlds], self.lost[worlds], self.over[worlds] = numbers, True, False, 0.0
        self.anchor[worlds], self.waited[worlds] = self.pitch.read("ball_position")[worlds], 0
        self.age[worlds] = 0
        cameras = (worlds[:, None] * agents + np.arange(agents)).reshape(-1)
        late = self.task.latency + np.zeros(len(cameras), np.int64)
        if self.sight and (camera := self.task.camera):
            eyes, count = self.sight.eyes, len(self.sight.eyes.panoramas)
            if self.task.config.vary:
                usual = [varied_looks(self._looks, count, r, camera) for r in random]
            else:
                usual = [usual_looks(self._looks, camera)] * len(random)
            if unlike:
                usual = [strange_looks(unlike, u, count, r) for u, r in zip(usual, strange, strict=True)]
            eyes.looks[cameras] = np.concatenate(usual)
            eyes.seeds[cameras] = [r.integers(2**32) for r in random for _ in range(agents)]
            late += self._later(random)
            self.sight.late[cameras] = late
            self.sight.begin(cameras)
            if self.task.recognise:
                self.recognised[cameras] = self.task.recognise(self.sight.pictures[cameras])
        self._look()
        if self.tracker:
            self.tracker.begin(cameras, self._of(slice(agents)))
        if self.detector:
            seeds = [r.integers(2**63) for r in random for _ in range(agents)]
            if unlike:
                self.yaw[cameras] = np.concatenate([yaw(unlike, agents, r) for r in strange])
            self.detector.late[cameras] = late + self._later(random)
            self.detector.begin(cameras, seeds, *self._places(), self._pan() + self.yaw)

    def _later(self, random: Sequence[np.random.Generator]) -> NDArray[np.int64]:
        """By how many more control steps each camera of these games tells late (cameras,)."""
        more = self.task.latest - self.task.latency
        return np.repeat([r.integers(more + 1) if more else 0 for r in random], self.task.agents).astype(np.int64)

    def _start(self, rng: np.random.Generator) -> dict[str, Any]:
        """Where everything is, and what varies."""
        task, start, n = self.task, self.task.start, self.robots
        kickoff = start == "kickoff" or (start == "mixed" and rng.random() < 0.5)
        space = np.array([task.field.length, task.field.width]) / 2.0 - MARGIN - task.robot.radius
        while True:
            position, ball = rng.uniform(-space, space, (n, 2)), rng.uniform(-space, space)
            angle = rng.uniform(-np.pi, np.pi, n)
            if kickoff:
                position[:, 0] = -np.abs(position[:, 0]) * self.side
                ball, angle = rng.normal(0.0, 0.05, 2), np.where(self.side > 0.0, 0.0, np.pi) + 0.1 * angle
            elif start == "drill":
                position, angle, ball = task.rules.placed(task, position, angle, ball, rng)
            places = np.concatenate([position, ball[None]])
            apart = np.linalg.norm(places[:, None] - places, axis=-1)[np.triu_indices(n + 1, 1)]
            if apart.min() > 2.0 * task.robot.radius + MARGIN:
                break
        made: dict[str, Any] = {"position": position, "ball_position": ball}
        made["heading"] = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        share = VARY * task.config.vary
        return made | {name: v * rng.uniform(1.0 - share, 1.0 + share, v.shape) for name, v in self._nominal.items()}

    def _look(self) -> None:
        """Everybody's view of the world as it is now."""
        self._seen, self.ways = np.empty_like(self._seen), np.empty_like(self.ways)
        view_rows(self.pitch.arrays()["state"], self.task.players, self.pitch.shape.half_length, self._seen, self.ways)

    def _of(self, robots: slice) -> dict[str, Array]:
        """The signals of some of each world's robots."""
        rows = self._seen[:, robots].reshape(-1, self._seen.shape[-1])
        return {name: rows[:, at] for name, at in self._columns.items()}

    def _pan(self) -> Array:
        """Where the agents' cameras look (rows,)."""
        turned: Array = self.pitch.read("pan")[:, : self.task.agents].reshape(-1)
        return turned

    def _places(self) -> tuple[Array, NDArray[np.bool_]]:
        """Of what a detector tells of."""
        return places(self._of(slice(self.task.agents)), self.pitch.shape.half_length)

    def observe(self) -> dict[str, Array]:
        seen: dict[str, Any] = self._of(slice(self.task.agents))
        if self.sight:
            seen["camera"] = self.sight.pictures
        if self.detector or self.task.recognise:
            told = self.detector.told if self.detector else self.recognised
            seen |= unpack(signals(self.task.players), told.reshape(len(told), -1))
        if self.task.sees:
            seen["pan"] = self._pan()[:, None]
        if self.tracker:
            seen |= self.tracker.told(seen)
        return seen

    def truth(self) -> dict[str, Array]:
        return self.observe()

    def step(self, command: Mapping[str, Array]) -> Step:
        task, agents = self.task, self.task.agents
        told = np.zeros((self.worlds, self.robots, len(self._low)), np.float32)
        if task.hands:
            command = {**task.hands(self.observe()), **command}
        told[:, :agents] = pack(task.moves, command).reshape(self.worlds, agents, -1)
        if self.opponent is not None:
            each = self.robots - agents
            begun, episode = np.repeat(self.begun, each), np.repeat(self.episode, each)
            answer = self.opponent.act(self._of(slice(agents, None)), episode, begun)
            told[:, agents:] = pack(task.moves, answer).reshape(self.worlds, each, -1)
        self.begun, pan = np.zeros(self.worlds, bool), self._pan()
        self.lost |= ~np.isfinite(told).all(axis=(1, 2))
        self.pitch.step(self._spread(np.clip(np.nan_to_num(told), self._low, self._high)))
        self.age += 1
        before, ways = self.over, self.ways
        self.over = self.pitch.read("scored")[:, 0]
        self._look()
        if self.opponent is not None and (self.over != before).any():
            rows = np.flatnonzero(np.repeat(self.over != before, self.robots - agents))
            self.opponent.scored(rows, np.repeat(self.over, self.robots - agents)[rows] > 0.0)
        rules, now = task.rules, self._events()
        terms = {
            "scored": (self.over - before)[:, None] * self.side,
            "progress": ways[..., 0] - self.ways[..., 0],
            "nearer": ways[..., 1] - self.ways[..., 1],
        }
        if "held" in rules.weights:
            terms["held"] = now.held.astype(np.float32)
        named = {name: terms[name][:, :agents].reshape(-1) for name in rules.weights}
        reward = np.stack([rules.weights[name] * value for name, value in named.items()]).sum(axis=0)
        won = rules.won(now)[:, :agents]
        ends = won.any(axis=1) | (self.over != 0.0) | self.lost
        self._drop()
        if self.sight or self.detector:
            turning = (self._pan() - pan) * task.rate_hz + self._of(slice(agents))["turning"][:, 0]  # of cameras
        if self.tracker:
            self.tracker.step(self._of(slice(agents)), self._pan())
        if self.sight:
            self.sight.step(turning)
        if self.sight and task.recognise:
            self.recognised = task.recognise(self.sight.pictures)
        if self.detector:
            self.detector.step(*self._places(), self._pan() + self.yaw, turning)
        return Step(reward.astype(np.float32), won.reshape(-1), np.repeat(ends, agents), named)

    def _events(self) -> Events:
        """Of the last control step."""
        late = np.repeat(self.age[:, None] >= self.task.episode_steps, self.robots, axis=1)
        return Events(self.over[:, None] * self.side, late, self._held)

    def _held(self) -> NDArray[np.bool_]:
        """Which robots (worlds, robots) touched the ball with their front in it, or kicked it."""
        ball = self._seen[..., self._columns["ball_position"]]
        ahead = ball[..., 0] > AHEAD * np.linalg.norm(ball, axis=-1)
        front = ahead & (self.pitch.read("touched")[..., 0] > 0.0)
        kicked = self.pitch.read("charge")[..., 0] > self.task.robot.recharge - 1.0 / self.task.rate_hz
        held: NDArray[np.bool_] = front | kicked
        return held

    def _drop(self) -> None:
        """Where the ball has been stuck, put it on the halfway line, away from where it was."""
        ball = self.pitch.read("ball_position")
        moved = np.linalg.norm(ball - self.anchor, axis=1) > STUCK
        self.anchor[moved] = ball[moved]
        self.waited = np.where(moved, 0, self.waited + 1)
        stuck = np.flatnonzero((self.waited >= self.task.rules.patience * self.task.rate_hz) & (self.over == 0.0))
        if len(stuck):
            place, still = np.zeros((len(stuck), 2), np.float32), np.zeros((len(stuck), 2), np.float32)
            place[:, 1] = -0.25 * self.task.field.width * np.where(ball[stuck, 1] < 0.0, -1.0, 1.0)
            self.pitch.write(stuck, {"ball_position": place, "ball_velocity": still, "ball_rolling": still})
            self.anchor[stuck], self.waited[stuck] = place, 0
            self._look()

    def _spread(self, told: Array) -> Array:
        """What the engine takes, from commands (worlds, robots, k)."""
        made = np.zeros((self.worlds, self.robots, COMMAND_ROWS), np.float32)
        made[..., : self._drive.stop] = told[..., self._drive]
        rest = told[..., self._drive.stop :]
        made[..., TURN], made[..., KICK] = rest[..., 0], rest[..., 1]
        if self.task.sees:
            made[..., PAN_RATE] = self.task.rate_hz * (
                rest[..., 2] - self.pitch.read("pan")[..., 0]
            )  # as fast as it can
        return made

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        own = {name: value.copy() for name, value in self._arrays().items()}
        return {**own, "opponent": self.opponent.state_dict() if self.opponent else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name, value in self._arrays().items():
            value[...] = state[name]
        if self.opponent:
            self.opponent.load_state_dict(state["opponent"])
        self._look()

    def _arrays(self) -> dict[str, NDArray[Any]]:
        names = ("episode", "age", "begun", "lost", "over", "anchor", "waited", "yaw", "recognised")
        seen: dict[str, NDArray[Any]] = self.sight.arrays() if self.sight else {}
        seen = {**seen, **(self.detector.arrays() if self.detector else {})}
        seen = {**seen, **(self.tracker.arrays() if self.tracker else {})}
        return {**self.pitch.arrays(), **seen, **{name: getattr(self, name) for name in names}}

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """Its pitch from above, the own goal on the left; below it what it sees, and what the first opponent does."""
        from sim.render.match import enlargement, from_above, scoreboard, strip

        world, robot = divmod(row, self.task.agents)
        read = {name: self.pitch.read(name)[world] for name in ("position", "heading", "pan", "ball_position")}
        lens = self.task.lens
        below = round(EYES * height) if self.task.sees else 0
        if not enlargement((lens.height, lens.width), 2, below, width):
            below = 0
        picture = from_above(self.task, read, robot, height - below, width)
        top = 0
        if below:
            if self._watched is None:
                self._watched = self._eyes(self.robots, lens)
            teams = (0, 1) if robot < self.task.players else (1, 0)
            both = world * self.robots + np.array([robot, teams[1] * self.task.players])
            if self.sight:
                self._watched.looks[both] = self.sight.eyes.looks[row]
            picture = np.concatenate([picture, strip(self._watched.see(both)[0], teams, below, width)])
            top = height - below
        goals = int(self.over[world] > 0.0), int(self.over[world] < 0.0)
        if height >= LEGIBLE:
            bottom = height if below else round(0.2 * height)
            scoreboard(picture, self.age[world] / self.task.rate_hz, goals, top, bottom)
        return picture

    def close(self) -> None:
        self.pitch.close()
