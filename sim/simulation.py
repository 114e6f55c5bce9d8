"""SimEnv, the environment of every task that an engine carries out; see `sim.env.Env`.

It does what a task declares: initial states, random vehicles, imperfect sensing for the policy, latency, reward and
termination; and, for evaluation, the conditions of `sim.conditions`. Random numbers belong to an episode: its number
and the seed alone decide about it, whatever the batch it is in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.conditions import Conditions, Draws, Gusts, apply
from sim.engines import Engine, render
from sim.engines import make as make_engine
from sim.env import Step
from sim.imperfect import Imperfect
from sim.randomize import Array, Drawn, draw_robots, redraw
from sim.robots import quadrotor
from sim.spec import limits, pack, size, slices, unpack
from sim.tasks import HISTORY, EngineTask

BLOCK = 64  # episodes that are drawn together; those that nobody asks for cost little
KEPT = 16  # blocks that are remembered
SENSORS, LATER, AIR = range(3)  # an episode's own streams of random numbers


@dataclass
class _Block:
    """What chance decides of BLOCK episodes as they begin."""

    state: dict[str, Array]  # by engine name (BLOCK, k)
    motion: Array
    robots: Drawn
    draws: Draws
    latency: Array  # (BLOCK, sensors and actuators) in control steps


class _Signals(dict[str, Array]):
    """Noise-free signals by name, (n, k); what is not there yet is read from the engine."""

    def __init__(self, engine: Engine, known: Mapping[str, Array]) -> None:
        super().__init__(known)
        self._engine = engine

    def __missing__(self, name: str) -> Array:
        value: Array = self._engine.read(name)
        self[name] = value
        return value


class SimEnv:
    """`num` robots of a task, all in one batch of its engine.

    Without `conditions`, vehicles, latency and noise vary as the task declares. With `judged`, episodes end when they
    are lost, and are scored as they end; without, a robot is stepped on whatever became of it, as a real one.
    """

    def __init__(
        self, task: EngineTask, num: int, seed: int, conditions: Conditions | None = None, judged: bool = True
    ) -> None:
        if num < 1:
            raise ValueError(f"needs at least one robot, got num={num}")
        self.task, self.num, self.seed, self.judged = task, num, seed, judged
        self.conditions = c = conditions or Conditions(vary=True)
        self.dt = 1.0 / task.rate_hz
        self.engine: Engine = make_engine(task.engine, task.robot, num, self.dt)
        self._nominal = task.robot.parameters()
        c.check(self._nominal, task.robot.name)
        filmed = ("quaternion",) if quadrotor(task.robot) else ()  # from its flight
        self._told = (*filmed, *(s.name for s in task.policy))
        self._changing = [v for v in task.vary if v.every is not None] if c.vary else []
        factor = c.noise if c.noise is not None else float(c.vary)
        self._late = factor > 0.0  # whether sensors are
        late = max(s.delay_range()[1] for s in task.policy) * task.rate_hz if self._late else 0.0
        self._sensors = Imperfect(task.policy, num, task.episode_steps, factor, late)
        slow = max(s.delay_range()[1] for s in task.commands) * task.rate_hz if c.vary else 0.0
        longest = slow if c.delay is None else float(np.max(c.delay)) * task.rate_hz
        self._actuators = Imperfect(task.commands, num, task.episode_steps, 0.0, longest)
        self._low, self._high = limits(task.commands)
        self._every = np.arange(num, dtype=np.int64)
        self._gusts = Gusts(c.gust, c.gust_time * task.rate_hz, num) if c.wind or c.gust else None
        self._steady, self._own_wind = np.zeros((2, num, 3), np.float32)
        self._blocks: dict[int, _Block] = {}
        self._later: list[np.random.Generator] = [np.random.default_rng(0)] * num
        self._base: dict[str, Array] = {}
        self._motion = np.zeros((num, 0), np.float32)
        self._steps = np.zeros(num, np.int64)  # of the episode
        remembered = task.history if HISTORY in slices(task.policy) else 0
        self._remembered = remembered * size(task.commands)
        # Newest first; the last two at least, for what changes between them.
        self._past = np.full((max(2, remembered), num, size(task.commands)), task.initial_action, np.float32)
        # What is scored as an episode ends: truth and command of each row's control steps.
        self._recorded = (*task.policy, *task.commands)
        self._log = np.zeros((num if judged else 0, task.episode_steps, size(self._recorded)), np.float32)
        self._truth = np.zeros((num, size(task.policy)), np.float32)
        self._sensed = np.zeros((num, size(task.policy)), np.float32)
        self._signals: Mapping[str, Array] = {}

    def _block(self, number: int) -> _Block:
        if number not in self._blocks:
            if len(self._blocks) == KEPT:
                del self._blocks[min(self._blocks)]
            streams = np.random.SeedSequence([self.seed, number]).spawn(4)
            starts, vehicles, air, links = (np.random.default_rng(s) for s in streams)
            state = {name: value.astype(np.float32) for name, value in self.task.reset(starts, BLOCK).items()}
            motion = state.pop("motion", np.zeros((BLOCK, 0), np.float32))
            robots = draw_robots(self.task.robot, self.task.vary if self.conditions.vary else (), vehicles, BLOCK)
            low, high = np.array([s.delay_range() for s in (*self.task.policy, *self.task.commands)]).T
            latency = links.uniform(low, high, (BLOCK, len(low))) * self.task.rate_hz
            draws = Draws.of(vehicles, air, BLOCK)
            self._blocks[number] = _Block(state, motion, robots, draws, latency.astype(np.float32))
        return self._blocks[number]

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        if not len(rows):
            return
        order = np.argsort(np.asarray(rows))
        where, numbers = np.asarray(rows)[order], np.asarray(episodes)[order]
        which, place = np.unique(numbers // BLOCK, return_inverse=True)
        blocks, index = [self._block(int(number)) for number in which], BLOCK * place + numbers % BLOCK

        def chosen(parts: Sequence[Array]) -> Array:
            """Of what each block holds (BLOCK, ...), the rows of these episodes."""
            picked: Array = (parts[0] if len(parts) == 1 else np.concatenate(parts))[index]
            return picked

        def named(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
            return {name: chosen([part[name] for part in parts]) for name in parts[0]}

        mask = None if len(where) == self.num else np.isin(self._every, where)
        drawn = Drawn(*(named([block.robots[k] for block in blocks]) for k in range(2)))
        draws = Draws.joined(block.draws for block in blocks).rows(index)
        robots = self._robots(where, drawn, draws)
        self.engine.set_parameters(mask, robots.parameters)
        self.engine.reset(mask, named([block.state for block in blocks]))
        motion = chosen([block.motion for block in blocks])
        if self._motion.shape[1:] != motion.shape[1:]:
            self._motion = np.zeros((self.num, *motion.shape[1:]), np.float32)
        self._motion[where] = motion
        for name, value in robots.base.items():
            self._base.setdefault(name, np.zeros((self.num, value.shape[1]), np.float32))[where] = value
        self._steps[where] = 0
        self._past[:, where] = self.task.initial_action
        if self._changing:
            for row, rng in zip(where, self._streams(numbers, LATER), strict=True):
                self._later[row] = rng
        if self._gusts is not None:
            self._steady[where] = self.conditions.wind * draws.wind
            self._own_wind[where] = self.engine.read("wind")[where]
            self._gusts.begin(where, self._streams(numbers, AIR))
            self._blow(where)
        self._begin_channels(where, numbers, chosen([block.latency for block in blocks]))

    def _streams(self, numbers: Array, purpose: int) -> list[np.random.Generator]:
        """Random numbers of these episodes for that purpose."""
        return [np.random.default_rng([self.seed, int(number), purpose]) for number in numbers]

    def _robots(self, where: NDArray[np.int64], drawn: Drawn, draws: Draws) -> Drawn:
        def nominal(name: str) -> Array:
            return np.tile(self._nominal[name], (len(where), 1))

        robots = apply(self.conditions, where, drawn, draws, nominal)
        if self.conditions.load != 1.0:  # which the episode before may have picked up
            for name in ("mass", "inertia"):
                robots.parameters.setdefault(name, nominal(name))
        return robots

    def _begin_channels(self, where: NDArray[np.int64], numbers: Array, latency: Array) -> None:
        task, c, sensors = self.task, self.conditions, len(self.task.policy)
        slow = latency[:, sensors:] if c.vary else np.zeros_like(latency[:, sensors:])
        if c.delay is not None:
            given = np.asarray(c.delay, np.float32) * np.float32(task.rate_hz)
            slow = np.broadcast_to(given if given.ndim == 0 else given[where][:, None], slow.shape)
        self._actuators.begin(where, slow, self._physical(self._past[0, where]))
        self._look()
        truth = self._truth[where]
        late = latency[:, :sensors] if self._late else np.zeros_like(latency[:, :sensors])
        self._sensors.begin(where, late, truth, self._streams(numbers, SENSORS) if self._sensors.random else ())
        sensed = self._sensed.copy()
        sensed[where] = self._sensors.send(truth, where)
        self._sensed = sensed

    def _physical(self, action: Array) -> Array:
        """Commands (n, k) in their units for actions in [-1, 1]."""
        physical: Array = self._low + np.float32(0.5) * (action + np.float32(1.0)) * (self._high - self._low)
        return physical

    def _look(self) -> None:
        """Noise-free signals now; what nobody asks for is not read."""
        known = {"delay": self._actuators.delay, "action": self._past[0]}
        known["action_change"] = self._past[0] - self._past[1]
        if self._remembered:
            known[HISTORY] = self._past.swapaxes(0, 1).reshape(self.num, -1)[:, : self._remembered]
        targets = self.task.reference(self._motion, (self._steps / self.task.rate_hz).astype(np.float32))
        self._signals = _Signals(self.engine, {**known, **targets})
        self._truth = np.concatenate([self._signals[s.name] for s in self.task.policy], axis=-1)

    def observe(self) -> dict[str, Array]:
        return {
            **unpack(self.task.policy, self._sensed),
            **{s.name: self._signals[s.name] for s in self.task.privileged},
        }

    def truth(self) -> dict[str, Array]:
        return {name: self._signals[name] for name in self._told}

    def step(self, command: Mapping[str, Array]) -> Step:
        told = np.clip(pack(self.task.commands, command).astype(np.float32, copy=False), self._low, self._high)
        if self.judged:
            at = np.minimum(self._steps, self.task.episode_steps - 1)
            self._log[self._every, at] = np.concatenate([self._truth, told], axis=-1)
        self.engine.step(self._actuators.send(told, self._every))
        self._steps += 1
        action = 2.0 * (told - self._low) / (self._high - self._low) - 1.0
        self._past = np.concatenate([action[None], self._past[:-1]])
        self._change()
        self._look()
        self._sensed = self._sensors.send(self._truth, self._every)
        if self.judged:
            return self._judge()
        nothing = np.zeros(self.num, bool)
        return Step(np.zeros(self.num, np.float32), nothing, nothing)

    def _judge(self) -> Step:
        """Reward and its terms, success of those that are at their end, and who is lost."""
        with np.errstate(invalid="ignore", over="ignore"):
            gone = ~np.isfinite(self._truth).all(axis=1)
            gone |= np.asarray(self.task.terminated(self._signals))
            terms: dict[str, Array] = {c.name: np.asarray(c.evaluate(self._signals)) for c in self.task.costs}
            terms["alive"] = (~gone).astype(np.float32)
            reward: Array = np.float32(self.task.alive_bonus) * terms["alive"]
            for cost in self.task.costs:
                reward = reward - np.float32(cost.weight) * terms[cost.name]
        if gone.any():  # what is lost may be anywhere
            reward = np.nan_to_num(reward, posinf=0.0, neginf=0.0)
        success = np.zeros(self.num, bool)
        over = np.flatnonzero((self._steps >= self.task.episode_steps) & ~gone)
        if len(over):
            success[over] = np.asarray(self.task.score(self._flight(over))["success"]) > 0.5
        return Step(reward.astype(np.float32), success, gone, terms)

    def _flight(self, rows: NDArray[np.int64]) -> dict[str, Array]:
        """What was recorded of these rows' episodes, by name (steps, n, k)."""
        record = self._log[rows].swapaxes(0, 1)
        return {name: record[..., where] for name, where in slices(self._recorded).items()}

    def _change(self) -> None:
        """What happens to the robots within an episode: varying disturbances, gusts, a load picked up half way."""
        changed: dict[str, tuple[list[int], list[Array]]] = {}
        for item in self._changing:
            period = max(1, round((item.every or 0.0) / self.dt))
            for row in np.flatnonzero(self._steps % period == 0):
                base = {name: value[row : row + 1] for name, value in self._base.items()}
                now = self._steps[row : row + 1]
                for name, _, values in redraw([item], self._later[row], base, now - 1, now, self.dt):
                    rows, drawn = changed.setdefault(name, ([], []))
                    rows.append(int(row))
                    drawn.append(values[0])
        for name, (rows, drawn) in changed.items():
            if name == "wind" and self._gusts is not None:
                self._own_wind[rows] = drawn
            else:
                self.engine.set_parameters(np.isin(self._every, rows), {name: np.stack(drawn)})
        if self._gusts is not None:
            self._blow(self._every)
        if self.conditions.load == 1.0:
            return
        half = self._steps == self.task.episode_steps // 2
        if half.any():
            load = np.float32(self.conditions.load)
            heavier = {name: load * self.engine.read(name)[half] for name in ("mass", "inertia")}
            self.engine.set_parameters(half, heavier)

    def _blow(self, rows: NDArray[np.int64]) -> None:
        """The wind of the coming control step."""
        if self._gusts is not None:
            wind = self._own_wind[rows] + self._steady[rows] + self._gusts.next(rows)
            self.engine.set_parameters(np.isin(self._every, rows), {"wind": wind.astype(np.float32)})

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """The robot and its target as the film shows them."""
        goal = np.asarray(self._signals[self.task.goal])[row]
        return render(self.engine, self.task.robot, row, goal, height, width)

    def close(self) -> None:
        """Nothing is held."""
