"""SimEnv, the environment of every task that an engine carries out; see `sim.env.Env`.

It does what a task declares: initial states, random vehicles, imperfect sensing for the policy, latency, reward and
termination; and, for evaluation, the conditions of `sim.conditions`. Random numbers belong to an episode: its number
and the seed alone decide about it, whatever the batch it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.conditions import Conditions, Draws, Gusts, apply
from sim.engines import Engine, Prepares, StepsWhole, reader, render
from sim.engines import make as make_engine
from sim.engines.vector import rows as kernels
from sim.engines.vector.blocks import from_lanes, to_lanes
from sim.engines.vector.rows import Orders, Outcome, Rules, World
from sim.engines.vector.simd import LANES
from sim.engines.vector.streams import streams
from sim.engines.vector.tables import bound_table, cost_table
from sim.env import Step
from sim.imperfect import Imperfect
from sim.randomize import Array, Drawn, redraw
from sim.robots import quadrotor
from sim.simulation.draws import EpisodeDraws, Practice
from sim.simulation.slung import Slung
from sim.spec import limits, pack, size, slices
from sim.tasks import EngineTask
from sim.terms import HISTORY, Bound, Cost

SENSORS, LATER, AIR = range(3)  # an episode's own streams of random numbers


class SimEnv:
    """`num` robots of a task, all in one batch of its engine.

    Without `conditions`, vehicles, latency and noise vary as the task declares. With `judged`, episodes end when they
    are lost, and are scored as they end; without, a robot is stepped on whatever became of it, as a real one. With
    `practice` they are a learner's, who ends them after `limit` (num,) control steps.
    """

    def __init__(
        self,
        task: EngineTask,
        num: int,
        seed: int,
        conditions: Conditions | None = None,
        judged: bool = True,
        practice: Practice | None = None,
    ) -> None:
        if num < 1:
            raise ValueError(f"needs at least one robot, got num={num}")
        self.task, self.num, self.seed, self.judged, self.practice = task, num, seed, judged, practice
        self.limit = np.full(num, task.episode_steps, np.int64)
        self.conditions = c = conditions or Conditions(vary=True)
        self.dt = 1.0 / task.rate_hz
        self.engine: Engine = make_engine(task.engine, task.robot, num, self.dt)
        self._nominal = task.robot.parameters()
        c.check(self._nominal, task.robot.name, task.episode_steps * self.dt)
        self._changed = c.change_robots() or c.load != 1.0
        # Robots that begin as they were drawn.
        self._prepares = self.engine if isinstance(self.engine, Prepares) and not self._changed else None
        filmed = ("quaternion",) if quadrotor(task.robot) else ()  # from its flight
        self._told = (*filmed, *(s.name for s in task.policy))
        self._changing = [v for v in task.vary if v.every is not None] if c.vary else []
        self._latency = np.array([s.delay_range() for s in (*task.policy, *task.commands)]).T  # s, lowest and highest
        factor = c.noise if c.noise is not None else float(c.vary)
        self._late = factor > 0.0  # whether sensors are
        late = max(s.delay_range()[1] for s in task.policy) * task.rate_hz if self._late else 0.0
        self._sensors = Imperfect(task.policy, num, factor, late)
        slow = max(s.delay_range()[1] for s in task.commands) * task.rate_hz if c.vary else 0.0
        longest = slow if c.delay is None else float(np.max(c.delay)) * task.rate_hz
        self._actuators = Imperfect(task.commands, num, 0.0, longest, size(task.policy))
        self._low, self._high = limits(task.commands)
        self._initial = np.full(len(self._low), task.initial_action, np.float32)
        self._still = to_lanes(np.tile(np.float32(self._physical(self._initial)), (num, 1)))
        self._every = np.arange(num, dtype=np.int64)
        self._gusts = Gusts(c.gust, c.gust_time * task.rate_hz, num) if c.wind or c.gust else None
        self._slung = Slung(c.payload, c.rope, num, self.dt) if c.payload else None
        self._struck = np.zeros((num, 4), bool) if c.damage != 1.0 and c.damage_at else None  # rotors, later on
        self._steady, self._own_wind = np.zeros((2, num, 3), np.float32)
        self._draws = EpisodeDraws(task, seed, c, practice, self._prepares)
        self._later: list[np.random.Generator] = [np.random.default_rng(0)] * num
        self._base: dict[str, Array] = {}
        self.motion = np.zeros((num, 0), np.float32)
        self.steps = np.zeros(num, np.int64)  # of the episode
        remembered = task.history if HISTORY in slices(task.policy) else 0
        self._remembered = remembered * size(task.commands)
        # Newest first; the last two at least, for what changes between them.
        kept = max(2, remembered, task.history if practice else 0)
        self._past = to_lanes(np.tile(self._initial, (num, kept)))
        # What is scored as an episode ends: truth and command of the last control steps, in the place of older ones.
        self._recorded, self._now = (*task.policy, *task.commands), 0
        self._log = np.zeros(
            (task.episode_steps if judged else 1, *to_lanes(np.zeros((num, size(self._recorded)))).shape), np.float32
        )
        self._table: Array  # (blocks, columns, LANES), noise-free signals now
        self._columns: dict[str, slice] = {}
        self._shown, self._hidden = slices(task.policy).items(), list[tuple[str, slice]]()
        self._tall = [(s.name, s.shape) for s in (*task.policy, *task.privileged) if len(s.shape) > 1]
        self._seen = size(task.policy)
        self._terms = (*(cost.name for cost in task.costs), "alive")

    def reset(self, rows: Sequence[int], episodes: Sequence[int]) -> None:
        if not len(rows):
            return
        where, numbers = np.asarray(rows, np.int64), np.asarray(episodes, np.int64)
        if (where[1:] < where[:-1]).any():
            order = np.argsort(where)
            where, numbers = where[order], numbers[order]
        drawn, prepared = self._draws.rows(numbers)

        def named(kind: str) -> dict[str, Array]:
            return self._draws.named(kind, drawn)

        if self.motion.shape[1:] != self._draws.motion:
            self.motion = np.zeros((self.num, *self._draws.motion), np.float32)
        rest, robots = named("rest"), Drawn(named("parameters"), named("base"))
        if self._changed:
            robots = self._robots(where, robots, Draws(**named("chance")))
        if self._prepares:
            self._prepares.begin(where, prepared)
        else:
            mask = None if len(where) == self.num else self._mask(where)
            self.engine.set_parameters(mask, robots.parameters)
            self.engine.reset(mask, named("state"))
        self.motion[where] = rest["motion"].reshape(-1, *self.motion.shape[1:])
        for name, value in robots.base.items():
            self._base.setdefault(name, np.zeros((self.num, value.shape[1]), np.float32))[where] = value
        self.steps[where], self.limit[where] = 0, rest["limit"][:, 0]
        if self._changing:
            for row, rng in zip(where, self._streams(numbers, LATER), strict=True):
                self._later[row] = rng
        if self._gusts is not None:
            self._steady[where] = self.conditions.wind * named("chance")["wind"]
            self._own_wind[where] = robots.parameters.get("wind", self._nominal["wind"])
            self._gusts.begin(where, self._streams(numbers, AIR))
            self._blow(where)
        if self._slung is not None:
            self._hang(where, robots.parameters.get("force", self._nominal["force"]))
        self._begin_channels(where, numbers, rest["latency"])

    def _mask(self, rows: Any) -> NDArray[np.bool_]:
        """(num,): whether it is one of these rows."""
        mask = np.zeros(self.num, bool)
        mask[rows] = True
        return mask

    def _streams(self, numbers: NDArray[np.int64], purpose: int) -> list[np.random.Generator]:
        """Random numbers of these episodes for that purpose."""
        return [np.random.default_rng([self.seed, int(number), purpose]) for number in numbers]

    def _robots(self, where: NDArray[np.int64], drawn: Drawn, draws: Draws) -> Drawn:
        def nominal(name: str) -> Array:
            return np.tile(self._nominal[name], (len(where), 1))

        robots = apply(self.conditions, where, drawn, draws, nominal)
        if self._struck is not None:
            self._struck[where] = np.arange(4) == draws.rotor
            robots.parameters.setdefault("thrust_scale", nominal("thrust_scale"))
        if self.conditions.load != 1.0:  # which the episode before may have picked up
            for name in ("mass", "inertia"):
                robots.parameters.setdefault(name, nominal(name))
        return robots

    def _begin_channels(self, where: NDArray[np.int64], numbers: NDArray[np.int64], latency: Array) -> None:
        task, c, sensors = self.task, self.conditions, len(self.task.policy)
        slow = latency[:, sensors:] if c.vary else np.zeros_like(latency[:, sensors:])
        if c.delay is not None:
            given = np.asarray(c.delay, np.float32) * np.float32(task.rate_hz)
            slow = np.broadcast_to(given if given.ndim == 0 else given[where][:, None], slow.shape)
        stream = streams(self.seed, numbers, SENSORS)
        if not self._columns:
            self._arrange()
        self._actuators.begin(where, slow, self._still, stream)
        kernels.start(where, self._initial, self._actuators.delay, self._started, self._past, self._table)
        self._look(where)
        late = latency[:, :sensors] if self._late else np.zeros_like(latency[:, :sensors])
        self._sensors.begin(where, late, self._table, stream)
        self._sensors.send(self._table, where)

    def _physical(self, action: Array) -> Array:
        """Commands (n, k) in their units for actions in [-1, 1]."""
        physical: Array = self._low + np.float32(0.5) * (action + np.float32(1.0)) * (self._high - self._low)
        return physical

    def _look(self, rows: NDArray[np.int64] | None = None) -> None:
        """Noise-free signals now, of these rows at least; None: of all."""
        which = self._every if rows is None else rows
        self._read(self._table, rows)
        for name, value in self._known(which).items():
            kernels.tell(value, which, self._columns[name].start, self._table)

    def _known(self, rows: NDArray[np.int64]) -> dict[str, Array]:
        """Of the signals now, what the task tells of these rows, and their past actions if they are seen."""
        motion, steps = (self.motion, self.steps) if rows is self._every else (self.motion[rows], self.steps[rows])
        known = self.task.reference(motion, (steps / self.task.rate_hz).astype(np.float32))
        if self._remembered:
            known[HISTORY] = from_lanes(self._past[:, : self._remembered], self.num)[rows]
        return known

    def _arrange(self) -> None:
        """Give every signal its columns in the table: first the policy's, then those that only a critic sees."""
        task, still, targets = self.task, from_lanes(self._still, self.num), self._known(self._every)
        known = {**targets, "delay": self._actuators.delay, "action": still, "action_change": still}
        terms: tuple[Cost | Bound, ...] = (*task.costs, *task.bounds)
        used = [name for term in terms for name in (term.signal, term.minus) if name]
        declared = [s.name for s in (*task.policy, *task.privileged)]
        end = 0
        for name in dict.fromkeys([*declared, *used, *known]):
            width = np.shape(known[name] if name in known else self.engine.read(name))[1]
            self._columns[name] = slice(end, end := end + width)
        self._table = to_lanes(np.zeros((self.num, end)))
        self._read = reader(self.engine, {n: at for n, at in self._columns.items() if n not in known})
        self._hidden = [(s.name, self._columns[s.name]) for s in task.privileged]
        self._started = np.array([self._columns[name].start for name in ("delay", "action", "action_change")])
        bonus, where = np.float32(task.alive_bonus), self._columns
        tables = (*bound_table(task.bounds, where), *cost_table(task.costs, where))
        told = [np.arange(where[name].start, where[name].stop) for name in targets]
        self._world = World(
            Orders(self._low, self._high, self._past, where["action"].start, where["action_change"].start),
            self._actuators.channel,
            self._sensors.channel,
            Rules(*tables, self._seen, bonus, task.episode_steps),
            self.steps,
            self._table,
            np.concatenate([np.zeros(0, np.int64), *told]),
        )
        # Nothing changes between the physics and the sensors, and what no engine knows does not depend on the command.
        steady = not (self._changing or self._gusts or self._slung or self._remembered)
        steady = steady and self.conditions.load == 1.0 and self._struck is None
        self._whole: StepsWhole | None = self._read if steady and isinstance(self._read, StepsWhole) else None

    def follow_curriculum(self, steps: int) -> None:
        """Weigh the costs as the task's curriculum does after that many environment steps; after a reset."""
        weights = {item.name: item.weight(steps) for item in self.task.curriculum}
        for row, cost in enumerate(self.task.costs):
            self._world.rules.numbers[row, 0] = weights.get(cost.name, cost.weight)

    def observe(self) -> dict[str, Array]:
        shown, now = from_lanes(self._sensors.channel.arrived, self.num), from_lanes(self._table, self.num)
        seen = {name: shown[:, at] for name, at in self._shown}
        for name, at in self._hidden:
            seen[name] = now[:, at]
        for name, shape in self._tall:
            seen[name] = seen[name].reshape(self.num, *shape)
        return seen

    def sensed(self) -> Array:
        return self._sensors.channel.arrived

    def truth(self) -> dict[str, Array]:
        now, known = from_lanes(self._table, self.num), self._columns
        return {name: now[:, known[name]] if name in known else self.engine.read(name) for name in self._told}

    def step(self, command: Mapping[str, Array]) -> Step:
        log = self._log[self._now % len(self._log)]
        told = pack(self.task.commands, command)
        self.steps += 1
        self._now += 1
        outcome = Outcome(
            np.empty(self.num, bool), np.empty((len(self._terms), self.num), np.float32), np.empty(self.num, np.float32)
        )
        if self._whole is not None:
            known = np.concatenate([*self._known(self._every).values()], axis=1, dtype=np.float32)
            ended = self._whole.whole_step(told, known, self._world, log, outcome)
        else:
            kernels.command(told, self._world.orders, self._table, log)
            self.engine.step(from_lanes(self._actuators.send(log), self.num))
            self._change()
            self._look()
            self._sensors.send(self._table)
            ended = kernels.judge(self._world.rules, self._table, self.steps, outcome)
        if self.judged:
            return self._outcome(outcome, ended)
        nothing = np.zeros(self.num, bool)
        return Step(np.zeros(self.num, np.float32), nothing, nothing)

    def _outcome(self, made: Outcome, ended: bool) -> Step:
        """With the success of those that are at their end."""
        success = np.zeros(self.num, bool)
        if ended:
            over = np.flatnonzero((self.steps >= self.task.episode_steps) & ~made.lost)
            success[over] = np.asarray(self.task.score(self._flight(over))["success"]) > 0.5
        return Step(made.reward, success, made.lost, dict(zip(self._terms, made.terms, strict=True)))

    def _flight(self, rows: NDArray[np.int64]) -> dict[str, Array]:
        """What was recorded of these rows' last `episode_steps` control steps, by name (steps, n, k)."""
        place, lane = np.divmod(rows, LANES)
        record = np.roll(np.moveaxis(self._log[:, place, :, lane], 0, 1), -self._now, axis=0)
        return {name: record[..., where] for name, where in slices(self._recorded).items()}

    def _change(self) -> None:
        """What happens to the robots within an episode: varying disturbances, gusts, loads."""
        changed: dict[str, tuple[list[int], list[Array]]] = {}
        for item in self._changing:
            period = max(1, round((item.every or 0.0) / self.dt))
            for row in np.flatnonzero(self.steps % period == 0):
                base = {name: value[row : row + 1] for name, value in self._base.items()}
                now = self.steps[row : row + 1]
                for name, _, values in redraw([item], self._later[row], base, now - 1, now, self.dt):
                    rows, drawn = changed.setdefault(name, ([], []))
                    rows.append(int(row))
                    drawn.append(values[0])
        for name, (rows, drawn) in changed.items():
            if name == "wind" and self._gusts is not None:
                self._own_wind[rows] = drawn
            else:
                self.engine.set_parameters(self._mask(rows), {name: np.stack(drawn)})
        if self._gusts is not None:
            self._blow(self._every)
        if self._slung is not None:
            self.engine.set_parameters(None, {"force": self._slung.pull(self.engine.read("position"))})
        if self._struck is not None:
            self._strike()
        if self.conditions.load == 1.0:
            return
        half = self.steps == self.task.episode_steps // 2
        if half.any():
            load = np.float32(self.conditions.load)
            heavier = {name: load * self.engine.read(name)[half] for name in ("mass", "inertia")}
            self.engine.set_parameters(half, heavier)

    def _strike(self) -> None:
        """Damage the rotors of those whose time has come."""
        due = self.steps == max(1, round(self.conditions.damage_at / self.dt))
        if self._struck is not None and due.any():
            left = np.where(self._struck[due], np.float32(self.conditions.damage), np.float32(1.0))
            self.engine.set_parameters(due, {"thrust_scale": left * self.engine.read("thrust_scale")[due]})
            if "thrust_scale" in self._base:
                self._base["thrust_scale"][due] *= left

    def _hang(self, rows: NDArray[np.int64], force: Array) -> None:
        """Loads on ropes under these vehicles, which are pushed by `force` besides."""
        if self._slung is not None:
            mass, place, speed = (self.engine.read(name)[rows] for name in ("mass", "position", "linear_velocity"))
            hanging = self._slung.begin(rows, mass, place, speed, force)
            self.engine.set_parameters(self._mask(rows), {"force": hanging})

    def _blow(self, rows: NDArray[np.int64]) -> None:
        """The wind of the coming control step."""
        if self._gusts is not None:
            wind = self._own_wind[rows] + self._steady[rows] + self._gusts.next(rows)
            self.engine.set_parameters(self._mask(rows), {"wind": wind.astype(np.float32)})

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on, for an exact continuation; not the log, from which success is judged."""
        if self._gusts or self._slung or self._struck is not None or self.conditions.load != 1.0:
            raise ValueError(
                "an environment with gusts, loads or damage in flight is not saved: these are for evaluation"
            )
        states = self._draws.where["state"]
        parts: dict[str, Iterable[str]] = {"engine": states, "parameters": self._nominal}
        engine = {kind: {name: np.array(self.engine.read(name)) for name in names} for kind, names in parts.items()}
        arrays = {name: value.copy() for name, value in self._arrays().items()}
        later = [rng.bit_generator.state for rng in self._later] if self._changing else []
        base = {name: value.copy() for name, value in self._base.items()}
        practised = [(number, *how.lengths, how.easy) for number, how in self._draws.practised.items()]
        return {**engine, "arrays": arrays, "base": base, "later": later, "practised": practised, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state_dict` of an environment with the same arguments."""
        if (saved := len(state["arrays"]["steps"])) != self.num:
            raise ValueError(f"the saved state has {saved} environments, this one has {self.num}")
        self.seed = int(state["seed"])
        known = {int(block): Practice((short, long), easy) for block, short, long, easy in state["practised"]}
        self._draws.forget(self.seed, known)
        if not self._columns:
            self.reset(range(self.num), range(self.num))  # finds out what there is
        self.engine.set_parameters(None, {name: np.asarray(v) for name, v in state["parameters"].items()})
        self.engine.reset(None, {name: np.asarray(v) for name, v in state["engine"].items()})
        for name, value in self._arrays().items():
            value[...] = state["arrays"][name]
        self._base = {name: np.array(value) for name, value in state["base"].items()}
        if state["later"]:
            self._later = [np.random.default_rng(0) for _ in range(self.num)]
            for rng, saved in zip(self._later, state["later"], strict=True):
                rng.bit_generator.state = saved
        self._read(self._table)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What of an episode is in arrays."""
        found: dict[str, NDArray[Any]] = {"steps": self.steps, "limit": self.limit, "motion": self.motion}
        found |= {"past": self._past, "table": self._table}
        for name, link in (("sensors", self._sensors), ("actuators", self._actuators)):
            found |= {f"{name}.{key}": value for key, value in link.arrays().items()}
        return found

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """The robot and its target as the film shows them."""
        goal = from_lanes(self._table[:, self._columns[self.task.goal]], self.num)[row]
        return render(self.engine, self.task.robot, row, goal, height, width)

    def close(self) -> None:
        """Nothing is held."""
