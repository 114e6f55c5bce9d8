"""The world of one simulated robot in a game on ROS 2: one that waits until somebody drives it, and has an end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.ros2.simulation.scene import Scene
from sim.rotations import seen_from
from sim.spec import Group
from sim.tasks import HasOpponents

Array = NDArray[Any]
WON, LOST, DRAWN = "won", "lost", "drawn"
WHERE = ("position", "heading")  # signals of where it is on the pitch, in a game that tells them


class Game:
    """One robot of a team, the others scripted. Nothing moves before it is driven, nor after the end."""

    battery = False
    pilot = None  # it stops where it is

    def __init__(self, task: HasOpponents, seed: int) -> None:
        self.task, self.scene = task, Scene(task, seed)
        self.robot, self.commands, self.dt = self.scene.robot, self.scene.commands, self.scene.dt
        self.signals: Group = self.task.policy
        self.view, self.lens = self.scene.view, self.scene.lens
        self._begin()

    def _begin(self) -> None:
        self.over, self.result = "", ""
        self._moved, self._steps = False, 0
        self._flight: dict[str, list[Array]] = {}
        self._place = self._where()

    def _where(self) -> Array | None:
        """Position and heading (4,), from the middle of the pitch, if there is one."""
        seen = self.scene.seen()
        return np.concatenate([seen[name][0].astype(np.float64) for name in WHERE]) if "position" in seen else None

    @property
    def time(self) -> float:
        """s of play."""
        return self.scene.time

    def reset(self) -> None:
        """The next game."""
        self.scene.reset()
        self._begin()

    def step(self, command: Array, moving: bool) -> None:
        """Advance by one control step under a command (k,)."""
        self._moved |= moving
        if self.over or not self._moved:
            return
        for name, value in self.scene.seen().items():
            if value.dtype == np.float32:
                self._flight.setdefault(name, []).append(value)
        self.scene.step(command, moving)
        self._steps += 1
        for outcome, happened in (("success", self.scene.success), ("terminated", self.scene.lost)):
            self._flight.setdefault(outcome, []).append(np.array([[happened]], np.float32))
        ended = self.scene.success or self.scene.lost
        if ended or self._steps >= self.task.episode_steps:
            self.result = WON if self.scene.success else LOST if self.scene.lost else DRAWN
            self.over = f"the game is over: {self.result}"

    def read(self) -> dict[str, Array]:
        """What its sensors say now, and on a pitch where its wheels say that it is: `odometry` (4,), since it began."""
        values, now = self.scene.read(), self._where()
        return values if self._place is None or now is None else {"odometry": seen_from(self._place, now), **values}

    def safe(self) -> Array:
        """What stops it (k,)."""
        return self.scene.safe()

    def scores(self) -> dict[str, float]:
        """The task's, of what was played so far."""
        played = min((len(values) for values in self._flight.values()), default=0)  # another thread may be adding one
        if not played:
            return {}
        flight = {name: np.stack(values[:played]) for name, values in self._flight.items()}
        return {name: float(value[0]) for name, value in self.task.score(flight).items()}

    def status(self) -> dict[str, Any]:
        """How the game goes, for the diagnostics."""
        going = "playing" if self._moved else "it waits until the robot is driven"
        return {"game": self.scene.episode, "result": self.result or going, **self.scores()}

    def close(self) -> None:
        """Free the pitch."""
        self.scene.close()
