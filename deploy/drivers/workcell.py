"""Simulated manipulators as a driver: the control loop that moves an arm moves them, and evaluation grades in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from deploy.drivers import Connecting, Reading
from deploy.drivers.simulated import EVALUATION, Settings
from deploy.drivers.tasks import task_for
from deploy.policy_file import PolicyFile
from sim.spec import Group
from sim.workcell import Array, Manipulation, Workcell, choose_engine, stream

FPS = 20.0  # pictures per simulated second, about
PICTURE = (240, 240)  # height, width


def evaluation_seed(seed: int) -> int:
    """Of scenes whose episodes training never sees."""
    return stream(seed, EVALUATION)


def refuse(task: Manipulation, conditions: Iterable[str]) -> None:
    """ValueError when there are conditions, by name: the engines of quadrotors carry them out."""
    if names := ", ".join(conditions):
        raise ValueError(f"{task.name} brings its own physics; it has no {names}")


class Bench(Connecting):
    """`num` scenes, begun together; the flight is over when every one is decided, or out of time.

    `first` is the number of the first episode: more episodes than scenes are done in several flights, with `first` set
    before each of them.
    """

    Config: ClassVar[type] = Settings

    def __init__(
        self, task: Manipulation, num: int = 1, seed: int = 0, first: int = 0, real_time: bool = False
    ) -> None:
        self.task, self.num, self.first, self.real_time = task, num, first, real_time
        self.signals: Group = task.policy
        self.commands: Group = task.commands
        self.robot, self.rate_hz = task.robot.name, task.rate_hz
        self.steps: int | None = task.episode_steps
        self.done = False
        self.seed = evaluation_seed(seed)
        self.cell: Workcell | None = None
        self.filmed = 0  # scenes of which pictures are taken
        self.pictures: list[NDArray[np.uint8]] = []  # (filmed, height, width, 3) each, FPS of them per second
        self._log: list[dict[str, Array]] = []

    @classmethod
    def from_config(cls, config: Settings, policy: PolicyFile) -> Bench:
        task: Any = task_for(policy, config.task, config.robot, config.transfer)
        return cls.of(task, config)

    @classmethod
    def of(cls, task: Manipulation, config: Settings) -> Bench:
        """The scenes that the settings ask for; ValueError when they ask for what the task has not got."""
        choose_engine(task, config.engine)
        refuse(task, config.changed())
        return cls(task, config.episodes, config.seed, real_time=config.real_time)

    def connect(self) -> None:
        if self.cell is None:
            self.cell = self.task.open(self.num, self.seed)
        self.cell.reset(range(self.num), range(self.first, self.first + self.num))
        self.done, self._log, self.pictures = False, [], []
        self._decided = np.zeros(self.num, bool)

    def read(self) -> Reading:
        assert self.cell is not None
        self._seen = self.cell.read()
        return Reading(self._seen, dict.fromkeys(self._seen, 0.0))

    def write(self, commands: Mapping[str, Array]) -> None:
        assert self.cell is not None
        if self.filmed and len(self._log) % max(1, round(self.rate_hz / FPS)) == 0:
            self.pictures.append(np.stack([self.cell.picture(row, *PICTURE) for row in range(self.filmed)]))
        outcome = self.cell.step(commands)
        self._decided |= outcome.success | outcome.lost
        self.done = bool(self._decided.all())
        judged = {"success": outcome.success, "lost": outcome.lost, "reward": outcome.reward}
        columns = {name: value[:, None].astype(np.float32) for name, value in judged.items()}
        self._log.append({**self._seen, **{n: np.array(c) for n, c in commands.items()}, **columns})

    def stop(self) -> None:
        """Nothing can be hurt. The scenes stay open for the next flight."""

    def close(self) -> None:
        """Free the scenes."""
        if self.cell is not None:
            self.cell.close()

    def flight(self) -> dict[str, Array]:
        """What happened, by name (steps, n, *shape): signals, commands, success, lost and reward (steps, n, 1)."""
        return {name: np.stack([step[name] for step in self._log]) for name in self._log[0]} if self._log else {}

    def report(self) -> list[str]:
        if not self._log:
            return []
        scores = self.task.score(self.flight())
        units = {name: "" if unit == "1" else unit for name, unit in self.task.scores.items()}
        means = {name: float(np.mean(v)) * (100.0 if units[name] == "%" else 1.0) for name, v in scores.items()}
        return [f"{name:16} {mean:.4g} {units[name]}".rstrip() for name, mean in means.items()]
