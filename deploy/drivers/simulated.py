"""Simulated robots on any engine, as a driver: evaluation flies the same control loop as hardware.

Episodes are flown together as one batch. The initial states come from a seed that training cannot reach; without
further settings the robot is the nominal one, without delay, noise or disturbance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deploy.drivers import Connecting, Reading
from deploy.drivers.tasks import task_for
from deploy.policy_file import PolicyFile
from sim.engines import Engine
from sim.engines import make as make_engine
from sim.randomize import Array, Drawn, delay_weights, draw_robots, redraw
from sim.robots.quadrotors import GRAVITY
from sim.spec import Group, Signal
from sim.tasks import Task
from sim.workcell import is_manipulation

if TYPE_CHECKING:
    from deploy.drivers.workcell import Bench

EVALUATION = int.from_bytes(b"evaluation")  # mixed into the seed: no training seed gives these episodes
# s. The low-altitude Dryden model (MIL-F-8785C) at its lowest height, 10 feet, in 5 m/s of wind: 4.6 s along the
# wind (75 feet / 5 m/s), 0.6 s up and down (10 feet / 5 m/s). Short gusts are the harder ones.
GUST_TIME = 1.0


@dataclass
class Conditions:
    """How the simulated world differs from the nominal one. Numbers, or one per robot (n,)."""

    delay: float | Array | None = field(
        default=None, metadata={"help": "s between command and rotor (default 0; with vary: the task's range)"}
    )
    mass: float | Array = field(default=1.0, metadata={"help": "factor on the mass"})
    thrust: float | Array = field(default=1.0, metadata={"help": "factor on the thrust of every rotor"})
    rotor_lag: float | Array = field(default=1.0, metadata={"help": "factor on the rotors' time constants"})
    noise: float | None = field(
        default=None, metadata={"help": "factor on the task's sensor noise (default 0; with vary: 1)"}
    )
    force: float | Array = field(
        default=0.0, metadata={"help": "constant random force: standard deviation per axis, as a share of the weight"}
    )
    push: float = field(
        default=0.0, metadata={"help": "constant force in a random direction, as a share of the weight"}
    )
    wind: float = field(default=0.0, metadata={"help": "m/s of steady wind from a random direction, horizontal"})
    gust: float = field(
        default=0.0, metadata={"help": "m/s: standard deviation per axis of a wind that changes all the time"}
    )
    gust_time: float = field(default=GUST_TIME, metadata={"help": "s: time constant of the gusts"})
    damage: float = field(
        default=1.0, metadata={"help": "factor on the thrust of one rotor, drawn per robot; 0: the rotor is lost"}
    )
    load: float = field(default=1.0, metadata={"help": "factor on mass and inertia from half way through the flight"})
    vary: bool = field(
        default=False, metadata={"help": "draw vehicles, delays and noise from the task's declared ranges"}
    )

    def __post_init__(self) -> None:
        for name in ("delay", "noise", "force", "push", "wind", "gust", "damage"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value).all() and np.min(value) >= 0.0):
                raise ValueError(f"{name} must be zero or positive, got {value}")
        for name in ("mass", "thrust", "rotor_lag", "load", "gust_time"):
            value = getattr(self, name)
            if not (np.isfinite(value).all() and np.min(value) > 0.0):
                what = "must" if name == "gust_time" else "is a factor and must"
                raise ValueError(f"{name} {what} be positive, got {value}")

    def changed(self) -> dict[str, Any]:
        """The conditions that are not nominal."""
        return {f.name: getattr(self, f.name) for f in fields(Conditions) if getattr(self, f.name) != f.default}


@dataclass
class Settings(Conditions):
    """Settings of the simulated driver."""

    engine: str = field(default="flight", metadata={"help": "physics engine"})
    episodes: int = field(default=1, metadata={"help": "flights, flown together"})
    seed: int = field(default=0, metadata={"help": "of the initial states; never coincides with training"})
    task: str | None = field(default=None, metadata={"help": "task (default: the policy's own)"})
    robot: str | None = field(default=None, metadata={"help": "robot (default: the policy's own)"})
    transfer: bool = field(default=False, metadata={"help": "allow another task or robot than the policy was made for"})
    real_time: bool = field(default=False, metadata={"help": "pace the flight by the clock"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episodes < 1 or self.seed < 0:
            raise ValueError(f"needs episodes >= 1 and seed >= 0, got {self.episodes} and {self.seed}")


class Channel:
    """What becomes of one signal on its way: latency, then offset and noise, then dropout. Values are (n, k)."""

    def __init__(self, signal: Signal, delay: Any, factor: float, rng: np.random.Generator, n: int) -> None:
        """`delay` in control steps, a number or (n,); `factor` scales noise and offset, 0 switches dropout off too."""
        steps = np.broadcast_to(np.asarray(delay, np.float64), (n,))
        taps = math.ceil(float(steps.max()) - 1e-9) + 1
        self.rng = rng
        self.weights = delay_weights(steps, taps)[:, :, None] if taps > 1 else None
        self.past: list[Array] = []
        self.noise = np.float32(factor * signal.noise_std())
        self.bias = factor * rng.normal(0.0, 1.0, (n, signal.size)).astype(np.float32) * np.float32(signal.bias_std())
        self.dropout = signal.dropout_probability() if factor > 0.0 else 0.0
        self.delivered: Array | None = None

    def start(self, value: Array) -> None:
        """As if `value` had always been sent."""
        if self.weights is not None:
            self.past = [value] * (self.weights.shape[1] - 1)

    def send(self, value: Array) -> Array:
        """What arrives this control step."""
        if self.weights is not None:
            if not self.past:
                self.start(value)
            taps = [value, *self.past]
            self.past = taps[:-1]
            value = sum(self.weights[:, k] * tap for k, tap in enumerate(taps))  # type: ignore[assignment]
        if self.noise > 0.0:
            value = value + self.noise * self.rng.standard_normal(value.shape, dtype=np.float32)
        value = value + self.bias if self.bias.any() else value
        if self.dropout > 0.0:
            lost = self.rng.random((len(value), 1)) < self.dropout
            value = value if self.delivered is None else np.where(lost, self.delivered, value)
            self.delivered = value
        return value


class Gusts:
    """Wind (n, 3) in m/s that changes all the time: an Ornstein-Uhlenbeck process per axis, begun in its steady state.

    The longitudinal gusts of the Dryden model are such a process (MIL-F-8785C).
    """

    def __init__(self, std: float, steps: float, rng: np.random.Generator, n: int) -> None:
        """`steps`: the time constant in control steps."""
        self.std, self.kept, self.rng = std, math.exp(-1.0 / steps), rng
        self.value = std * rng.normal(0.0, 1.0, (n, 3))

    def next(self) -> Array:
        """The gusts of this control step; the next call gives those of the next one."""
        now = self.value.astype(np.float32)
        fresh = math.sqrt(1.0 - self.kept**2) * self.std
        self.value = self.kept * self.value + fresh * self.rng.normal(0.0, 1.0, self.value.shape)
        return now


class Simulated(Connecting):
    """`num` simulated flights of a task. After the flight, `flight()` has everything that happened, noise-free.

    With `copies`, the same num / copies initial states are flown that often, under conditions given per robot.
    """

    Config: ClassVar[type] = Settings

    def __init__(
        self,
        task: Task,
        num: int = 1,
        engine: str = "flight",
        seed: int = 0,
        conditions: Conditions | None = None,
        copies: int = 1,
        real_time: bool = False,
    ) -> None:
        if num < 1 or copies < 1 or num % copies:
            raise ValueError(f"needs num >= 1, a multiple of copies >= 1, got {num} and {copies}")
        self.task, self.num, self.copies, self.real_time = task, num, copies, real_time
        self.signals: Group = task.policy
        self.commands: Group = task.commands
        self.robot = task.robot.name
        self.rate_hz = task.rate_hz
        self.steps: int | None = task.episode_steps
        self.done = False
        self.conditions = conditions or Conditions()
        self.engine_name, self.seed = engine, seed
        self.engine: Engine = make_engine(engine, task.robot, num, 1.0 / task.rate_hz)

    @classmethod
    def from_config(cls, config: Settings, policy: PolicyFile) -> Simulated | Bench:
        task = task_for(policy, config.task, config.robot, config.transfer)
        if is_manipulation(task):
            from deploy.drivers.workcell import Bench  # which imports this file

            return Bench.of(task, config)
        return cls(task, config.episodes, config.engine, config.seed, config, real_time=config.real_time)

    def connect(self) -> None:
        streams = np.random.SeedSequence([self.seed, EVALUATION]).spawn(5)
        starts, vehicles, links, noise, air = (np.random.default_rng(s) for s in streams)
        distinct = self.num // self.copies
        state = {k: self._copy(v) for k, v in self.task.reset(starts, distinct).items()}
        self._motion = state.pop("motion")
        robots = self._robots(vehicles, distinct)
        if self.real_time:  # what is compiled or loaded at the first step must not interrupt the flight
            self.engine.step(np.zeros((self.num, sum(s.size for s in self.commands)), np.float32))
        self.engine.set_parameters(None, robots.parameters)
        self.engine.reset(None, state)
        self._later, self._base = vehicles, robots.base
        self._start_wind(air, distinct)
        self._open_channels(links, noise, distinct)
        self._time = np.zeros(self.num, np.float32)
        self._step = 0
        self._log: dict[str, Array] = {}
        self._truth = self._look()

    def _copy(self, drawn: Any) -> Any:
        return np.tile(drawn, (self.copies, *[1] * (drawn.ndim - 1)))

    def _robots(self, rng: np.random.Generator, distinct: int) -> Drawn:
        """Parameters that are not nominal, name -> (num, k): as drawn, times the conditions' factors, and forces."""
        c = self.conditions
        drawn = draw_robots(self.task.robot, self.task.vary if c.vary else (), rng, distinct)
        base = {name: self._copy(value) for name, value in drawn.base.items()}
        values = {name: self._copy(value) for name, value in drawn.parameters.items()}
        nominal = {name: np.tile(value, (self.num, 1)) for name, value in self.task.robot.parameters().items()}
        weight = GRAVITY * values.get("mass", nominal["mass"])

        def change(name: str, factor: float | Array = 1.0, added: Array | float = 0.0) -> None:
            values[name] = np.asarray(values.get(name, nominal[name]) * factor + added, np.float32)
            if name in base:  # what is drawn anew in flight starts from here
                base[name] = np.asarray(base[name] * factor + added, np.float32)

        for name, factor in (("mass", c.mass), ("thrust_scale", c.thrust), ("rotor_lag", c.rotor_lag)):
            if np.any(np.asarray(factor) != 1.0):
                change(name, self._column(factor))
        if np.any(np.asarray(c.force) != 0.0):
            change("force", added=self._column(c.force) * weight * self._copy(rng.normal(0.0, 1.0, (distinct, 3))))
        if c.push != 0.0:
            heading = rng.normal(0.0, 1.0, (distinct, 3))
            heading /= np.linalg.norm(heading, axis=1, keepdims=True)
            change("force", added=c.push * weight * self._copy(heading))
        if c.damage != 1.0:
            rotors = np.where(np.arange(4) == rng.integers(4, size=(distinct, 1)), c.damage, 1.0)
            change("thrust_scale", self._copy(rotors))
        return Drawn(values, base)

    def _change(self) -> None:
        """What happens to the robots during the flight: varying disturbances, gusts, a load picked up half way."""
        if self.conditions.vary:
            step = np.full(self.num, self._step)
            for name, due, values in redraw(
                self.task.vary, self._later, self._base, step - 1, step, 1.0 / self.rate_hz
            ):
                mask = np.zeros(self.num, bool)
                mask[due] = True
                if name == "wind" and self._gusts is not None:
                    self._own_wind[due] = values
                else:
                    self.engine.set_parameters(mask, {name: values})
        self._blow()
        if self.conditions.load != 1.0 and self._step == self.task.episode_steps // 2:
            load = np.float32(self.conditions.load)
            self.engine.set_parameters(None, {name: load * self.engine.read(name) for name in ("mass", "inertia")})

    def _start_wind(self, rng: np.random.Generator, distinct: int) -> None:
        """The conditions' wind, on top of the task's own."""
        c = self.conditions
        self._gusts = Gusts(c.gust, c.gust_time * self.rate_hz, rng, distinct) if c.wind or c.gust else None
        if self._gusts is not None:
            angle = rng.uniform(0.0, 2.0 * np.pi, (distinct, 1))
            heading = np.concatenate([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=1)
            self._steady = self._copy(c.wind * heading).astype(np.float32)
            self._own_wind = np.array(self.engine.read("wind"))
            self._blow()

    def _blow(self) -> None:
        """The wind (num, 3) of the coming control step."""
        if self._gusts is not None:
            wind = self._own_wind + self._steady + self._copy(self._gusts.next())
            self.engine.set_parameters(None, {"wind": wind})

    def _column(self, value: float | Array) -> Array:
        wide: Array = np.broadcast_to(np.asarray(value, np.float32), (self.num,))[:, None]
        return wide

    def _open_channels(self, links: np.random.Generator, noise: np.random.Generator, distinct: int) -> None:
        c = self.conditions
        factor = c.noise if c.noise is not None else float(c.vary)

        def latency(signal: Signal, used: bool) -> Array:
            drawn: Array = self._copy(links.uniform(*signal.delay_range(), distinct).astype(np.float32))
            return drawn * self.rate_hz if used else 0.0 * drawn

        self._sensors = {
            s.name: Channel(s, latency(s, factor > 0.0), factor, noise, self.num) for s in self.task.policy
        }
        self._actuators = {}
        initial = np.float32(0.5 * (self.task.initial_action + 1.0))
        for s in self.task.commands:
            drawn = latency(s, c.vary)
            delay = drawn if c.delay is None else np.asarray(c.delay) * self.rate_hz
            channel = self._actuators[s.name] = Channel(s, delay, 0.0, noise, self.num)
            channel.start(np.full((self.num, s.size), s.low + initial * (s.high - s.low), np.float32))

    def _look(self) -> dict[str, Array]:
        """The noise-free policy signals now, (n, *shape)."""
        targets = self.task.reference(self._motion, self._time)
        return {s.name: targets[s.name] if s.name in targets else self.engine.read(s.name) for s in self.task.policy}

    def read(self) -> Reading:
        seen = {name: channel.send(self._truth[name]) for name, channel in self._sensors.items()}
        return Reading(seen, dict.fromkeys(seen, 0.0))

    def write(self, commands: Mapping[str, Array]) -> None:
        self._record({"quaternion": self.engine.read("quaternion"), **self._truth, **commands})
        executed = [channel.send(np.asarray(commands[name], np.float32)) for name, channel in self._actuators.items()]
        self.engine.step(np.concatenate(executed, axis=-1))
        self._step += 1
        self._change()
        self._time = np.full(self.num, self._step / self.rate_hz, np.float32)
        self._truth = self._look()

    def _record(self, values: Mapping[str, Array]) -> None:
        for name, value in values.items():
            log = self._log.get(name)
            if log is None:
                log = self._log[name] = np.empty((self.task.episode_steps, *value.shape), np.float32)
            elif self._step >= len(log):
                log = self._log[name] = np.concatenate([log, np.empty_like(log)])
            log[self._step] = value

    def stop(self) -> None:
        """Nothing can be hurt."""

    def flight(self) -> dict[str, Array]:
        """What happened, by name (steps, n, k): noise-free signals, quaternion (w, x, y, z), commands as sent."""
        return {name: values[: self._step] for name, values in self._log.items()}

    def report(self) -> list[str]:
        if not self._step:
            return []
        scores = self.task.score(self.flight())
        units = {name: "" if unit == "1" else unit for name, unit in self.task.scores.items()}
        return [f"{name:16} {float(np.mean(value)):.4g} {units[name]}".rstrip() for name, value in scores.items()]
