"""Simulated robots as a driver: evaluation flies the same control loop as hardware, for every task alike.

Episodes are carried out together as one batch, from initial states that training cannot reach; without further
settings the robot is the nominal one, without delay, noise or disturbance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from deploy.drivers import Connecting, Reading
from deploy.drivers.tasks import task_for
from deploy.policy_file import PolicyFile
from sim.conditions import Conditions
from sim.env import Array, Env, ends_early, evaluation_env, for_whole_worlds, stream, with_engine
from sim.spec import Group
from sim.tasks import Task, agents_of

EVALUATION = int.from_bytes(b"evaluation")  # mixed into the seed: no training seed gives these episodes
FPS = 20.0  # pictures per simulated second, about
PICTURE = (240, 240)  # height, width, unless said otherwise
# Who looks on is told at every control step how to draw the first world (a picture's side in pixels -> (side, side,
# 3)), a line about it, and the step's number.
Watch = Callable[[Callable[[int], NDArray[np.uint8]], str, int], None]


def evaluation_seed(seed: int) -> int:
    """Of episodes that training never sees."""
    return stream(seed, EVALUATION)


def between_pictures(rate_hz: float) -> int:
    """Control steps from one of them to the next."""
    return max(1, round(rate_hz / FPS))


@dataclass
class Changed(Conditions):
    """How a simulated robot and its world differ from the nominal ones, as settings of commands."""


@dataclass
class Settings(Changed):
    """Settings of the simulated driver."""

    engine: str = field(default="", metadata={"help": "physics engine (default: the task's own)"})
    episodes: int = field(default=1, metadata={"help": "flights, flown together"})
    seed: int = field(default=0, metadata={"help": "of the initial states; never coincides with training"})
    task: str | None = field(default=None, metadata={"help": "task (default: the policy's own)"})
    robot: str | None = field(default=None, metadata={"help": "robot (default: the policy's own)"})
    panorama: str | None = field(
        default=None, metadata={"help": "picture of all directions around a pitch (default: the policy's own)"}
    )
    transfer: bool = field(default=False, metadata={"help": "allow another task or robot than the policy was made for"})
    real_time: bool = field(default=False, metadata={"help": "pace the flight by the clock"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episodes < 1 or self.seed < 0:
            raise ValueError(f"needs episodes >= 1 and seed >= 0, got {self.episodes} and {self.seed}")

    def places(self) -> dict[str, str]:
        """Settings of the task that say where something lies on this machine, and go before the policy's."""
        return {} if self.panorama is None else {"panorama": self.panorama}


class Simulated(Connecting):
    """`num` simulated episodes of a task, begun together. Afterwards, `flight()` has everything that happened.

    It is over when all are decided (where a task's episodes end with success or failure) or out of time. `first` is the
    number of the first episode: more episodes than fit at once are done in several flights, with `first` set before
    each of them. With `copies`, the same num / copies episodes are flown that often, under conditions given per robot.
    Of several agents in a world each counts in `num`; one policy flies them all.
    """

    Config: ClassVar[type] = Settings

    def __init__(
        self,
        task: Task,
        num: int = 1,
        engine: str = "",
        seed: int = 0,
        conditions: Conditions | None = None,
        copies: int = 1,
        real_time: bool = False,
        first: int = 0,
    ) -> None:
        self.agents = agents_of(task)
        if num < 1 or copies < 1 or num % copies:
            raise ValueError(f"needs num >= 1, a multiple of copies >= 1, got {num} and {copies}")
        self.task = task = with_engine(task, engine)
        self.num, self.copies, self.real_time, self.first = num, copies, real_time, first
        self.signals: Group = task.policy
        self.commands: Group = task.commands
        self.robot, self.rate_hz = task.robot.name, task.rate_hz
        self.steps: int | None = task.episode_steps
        self.done = False
        self.seed = evaluation_seed(seed)
        self.conditions = conditions or Conditions()
        self.env: Env = evaluation_env(task, num, self.seed, self.conditions)
        self._ends_early = ends_early(task)
        self.filmed, self.size = 0, PICTURE  # worlds of which pictures are taken; their height and width
        self.every = between_pictures(task.rate_hz)  # control steps from one of them to the next
        self.pictures: list[NDArray[np.uint8]] = []  # (filmed, height, width, 3) each
        self.watch: Watch | None = None
        self._log: dict[str, Array] = {}  # by name (steps and more, n, *shape)
        self._step = 0

    @classmethod
    def from_config(cls, config: Settings, policy: PolicyFile) -> Simulated:
        task = task_for(policy, config.task, config.robot, config.transfer, config.places())
        num = config.episodes * agents_of(task)
        return cls(task, num, config.engine, config.seed, config, real_time=config.real_time)

    def connect(self) -> None:
        distinct = self.num // self.copies
        episodes = [self.first + k % distinct // self.agents for k in range(self.num)]
        self.env.reset(range(self.num), episodes)
        if self.real_time:  # what is compiled or loaded at the first step must not interrupt the flight
            self.env.step({s.name: np.full((self.num, *s.shape), s.low, np.float32) for s in self.commands})
            self.env.reset(range(self.num), episodes)
        self.done, self._log, self.pictures, self._step = False, {}, [], 0
        self._decided = np.zeros(self.num, bool)
        self._filmed_last = np.zeros(self.num, bool)  # what a decided episode came to is in the film

    def read(self) -> Reading:
        seen = self.env.observe()
        names = [signal.name for signal in self.signals if signal.name in seen]  # the loop's guard misses what is not
        return Reading({name: seen[name] for name in names}, dict.fromkeys(names, 0.0))

    def write(self, commands: Mapping[str, Array]) -> None:
        truth = self.env.truth()
        if self.filmed and self._step % self.every == 0:
            self._film()
        step, columns = self.env.step(commands), {}
        if self._ends_early:
            self._decided |= for_whole_worlds(self.agents, step.success | step.terminated)
            self.done = bool(self._decided.all())
            judged = {"success": step.success, "terminated": step.terminated, "reward": step.reward}
            columns = {name: value[:, None].astype(np.float32) for name, value in judged.items()}
        self._record({**truth, **commands, **columns})
        if self.watch:
            line = f"episode {self.first}, {(self._step + 1) / self.rate_hz:.1f} s{', over' * bool(self._decided[0])}"
            self.watch(lambda side: self.env.render(0, side, side), line, self._step)
        self._step += 1
        if self.filmed and self.done:
            self._film()

    def _film(self) -> None:
        """A picture of each filmed world; of one whose episode is decided always the one of that moment."""
        shown = []
        for k, row in enumerate(range(0, self.filmed * self.agents, self.agents)):
            over = bool(self._filmed_last[row])
            shown.append(self.pictures[-1][k] if over else self.env.render(row, *self.size))
            self._filmed_last[row] = self._decided[row]
        self.pictures.append(np.stack(shown))

    def _record(self, values: Mapping[str, Array]) -> None:
        for name, value in values.items():
            log = self._log.get(name)
            if log is None:
                log = self._log[name] = np.empty((self.task.episode_steps, *value.shape), value.dtype)
            elif self._step >= len(log):  # a flight may outlast the episode
                log = self._log[name] = np.concatenate([log, np.empty_like(log)])
            log[self._step] = value

    def stop(self) -> None:
        """Nothing can be hurt. The worlds stay open for the next flight."""

    def close(self) -> None:
        """Free the worlds."""
        self.env.close()

    def flight(self) -> dict[str, Array]:
        """What happened, by name (steps, n, *shape): noise-free signals, commands as sent.

        Where a task's own world decides about its episodes: also reward, success and terminated (steps, n, 1).
        """
        return {name: values[: self._step] for name, values in self._log.items()}

    def scores(self) -> dict[str, Array]:
        """The task's, name -> (n,), of what happened."""
        with np.errstate(over="ignore", invalid="ignore"):  # a lost robot may be anywhere
            return self.task.score(self.flight())

    def report(self) -> list[str]:
        if not self._step:
            return []
        scores = self.scores()
        units = {name: "" if unit == "1" else unit for name, unit in self.task.scores.items()}
        means = {name: float(np.mean(v)) * (100.0 if units[name] == "%" else 1.0) for name, v in scores.items()}
        return [f"{name:16} {mean:.4g} {units[name]}".rstrip() for name, mean in means.items()]
