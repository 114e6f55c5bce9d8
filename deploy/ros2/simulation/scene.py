"""The world of one simulated robot on ROS 2 whose task brings its own physics: an arm's scene, a match of football."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from deploy.drivers.simulated import evaluation_seed
from deploy.guard import Guard
from deploy.safety.envelope import Envelope
from sim.env import lens_of, make_env, view_of
from sim.spec import Group, pack, unpack
from sim.tasks import Task

Result = TypeVar("Result")


class Scene:
    """Time advances by a control step of the task. The scene is that of an episode; each reset begins the next one.

    The scene lives in a thread of its own, whoever calls: what draws its pictures does not change threads.
    """

    battery = False
    pilot = None  # it stays where it is
    over = ""  # it goes on

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.robot = task, task.robot.name
        self.signals: Group = task.policy
        self.commands: Group = task.commands
        self.dt, self.view, self.lens = 1.0 / task.rate_hz, view_of(task), lens_of(task)
        self._thread = ThreadPoolExecutor(1)
        self.env = self._do(make_env, task, 1, evaluation_seed(seed))
        self.guard = Guard(task.policy, task.commands, Envelope.from_json(task.envelope))
        self.episode = -1
        self.reset()

    def reset(self) -> None:
        """The next episode's start."""
        self.time = 0.0  # s since the beginning
        self.episode += 1
        self.success = self.lost = False
        self._do(self.env.reset, [0], [self.episode])
        self.guard.reset(1)
        self._look()
        self.guard.filter({c.name: np.full((1, *c.shape), c.high) for c in self.commands})  # a gripper begins open

    def _do(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return self._thread.submit(call, *arguments).result()

    def _look(self) -> None:
        self._seen = self._do(self.env.observe)
        self.guard.screen(self._seen, dict.fromkeys(self._seen, 0.0))

    def step(self, command: NDArray[Any], moving: bool) -> None:
        """Advance by one control step under a command (k,)."""
        told = {name: values[None] for name, values in unpack(self.commands, np.asarray(command, np.float32)).items()}
        outcome = self._do(self.env.step, self.guard.filter(told))
        self.success, self.lost = bool(outcome.success[0]), bool(outcome.terminated[0])
        self.time += self.dt
        self._look()

    def seen(self) -> dict[str, NDArray[Any]]:
        """All that is known of the scene now (1, *shape), by name."""
        return self._seen

    def read(self) -> dict[str, NDArray[Any]]:
        """What its sensors say now, without noise."""
        return {name: values[0] for name, values in self._seen.items()}

    def safe(self) -> NDArray[Any]:
        """What keeps it where it is (k,): it stays there, and holds what it holds."""
        kept: NDArray[Any] = pack(self.commands, self.guard.safe_command())[0]
        return kept

    def scores(self) -> dict[str, float]:
        """None: it has no end."""
        return {}

    def status(self) -> dict[str, Any]:
        """How the task goes, for the diagnostics."""
        return {"episode": self.episode, "success": self.success, "lost": self.lost}

    def close(self) -> None:
        """Free the scene."""
        self._do(self.env.close)
        self._thread.shutdown()
