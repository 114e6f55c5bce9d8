"""A human steers the hand of a simulated arm: `python -m policies.collect policy=teleop ...`, or as an intervener.

Keys, sticks and topics (`deploy.teleop.devices`) ask for a velocity of the hand; what the task commands follows from
it: the hand's velocity, or joint positions where the arm's kinematics are known. An episode begins with the first
movement, at the task's control rate and in real time where the machine can keep up.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from deploy.teleop.devices import FAILURE, KEEP, QUIT, REDO, SUCCESS, Device, TeleopCommand, device
from deploy.teleop.screen import Screen, screen
from policies.learning.interveners import action_of
from policies.models.networks import Array
from sim.env import Env, make_env
from sim.robots import kinematics_of
from sim.rollout import Episode, Moment
from sim.tasks import Task, closed

WAYS = {"+x": (1.0, 0.0), "-x": (-1.0, 0.0), "+y": (0.0, 1.0), "-y": (0.0, -1.0)}


@dataclass
class Settings:
    """Of a human's hands."""

    device: str = field(default="keyboard", metadata={"help": "or /dev/input/js0, ros2, ros2:/NAMESPACE"})
    view: str = field(default="auto", metadata={"help": "the picture: terminal, web or window (Rerun), none"})
    speed: float = field(default=0.25, metadata={"help": "m/s, the hand's at full speed"})
    forward: str = field(default="+x", metadata={"help": "where forward is in the world: +x, -x, +y, -y"})

    def __post_init__(self) -> None:
        if not self.speed > 0.0:
            raise ValueError(f"speed must be positive, got {self.speed} m/s")
        if self.forward not in WAYS:
            raise ValueError(f"forward {self.forward!r} is not one of {', '.join(WAYS)}")


class EndEffectorControl:
    """The commands of a task for what hands say; ValueError for a task whose commands no hand can give."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self.task = task
        self.arm, *others = task.commands
        moves = self.arm.unit == "m/s" and self.arm.frame == "world" and self.arm.shape in ((2,), (3,))
        self.kinematics: Any = kinematics_of(task.robot)
        reaches = self.arm.name == "joint_target" and self.kinematics is not None
        if not (moves or reaches) or any(s.size != 1 or not s.name.startswith("gripper_") for s in others):
            given = ", ".join(f"{s.name} ({s.size}, {s.unit})" for s in task.commands)
            raise ValueError(
                f"{task.name} cannot be steered by hand: its commands are {given}; needed is a hand's velocity in "
                "m/s, or an arm's joint_target with known kinematics, and at most a gripper"
            )
        self.joints, self.gripper = not moves, others
        self.speed = min(settings.speed, self.arm.high) if moves else settings.speed
        ahead = WAYS[settings.forward]
        self.axes = np.array([[ahead[0], -ahead[1], 0.0], [ahead[1], ahead[0], 0.0], [0.0, 0.0, 1.0]])

    def commands(self, signals: Mapping[str, Array], said: TeleopCommand) -> dict[str, Array]:
        """(1, *shape) by name."""
        velocity = (self.axes @ said.velocity)[None]
        if self.joints:
            from sim.robots.panda import DOWN

            now = signals["joint_position"].astype(np.float64)
            there = self.kinematics(now, signals["hand_position"] + velocity / self.task.rate_hz, DOWN)
            found = {self.arm.name: there.astype(np.float32)}
        else:
            found = {self.arm.name: velocity[:, : self.arm.size].astype(np.float32)}
        for gripper in self.gripper:
            ends = (gripper.low, gripper.high)
            shut = closed(self.task, gripper)
            opened = ends[0] if shut == ends[1] else ends[1]
            found[gripper.name] = np.full((1, 1), shut if said.closed else opened, np.float32)
        return found


class TeleopSession:
    """One human at one scene: what is shown, what is said, and when the next control step is due."""

    def __init__(self, task: Task, env: Env, settings: Settings) -> None:
        self.task, self.env = task, env
        self.hand = EndEffectorControl(task, settings)
        self.device: Device = device(settings.device)
        try:
            self.screen: Screen = screen(settings.view, self.device.help)
        except BaseException:
            self.device.close()
            raise
        self._due = time.monotonic()

    def turn(self, signals: Mapping[str, Array], line: str) -> TeleopCommand:
        """Wait for the next control step, show the scene and a line about it; what is said."""
        self.screen.show(lambda side: self.env.render(0, side, side), f"{line}  {figures(signals)}")
        now, self._due = time.monotonic(), self._due + 1.0 / self.task.rate_hz
        if self._due > now:
            time.sleep(self._due - now)
        else:
            self._due = now  # too slow for real time, or nobody was here
        return self.device.read(self.hand.speed)

    def close(self) -> None:
        """Give back device and screen."""
        self.screen.close()
        self.device.close()


def figures(signals: Mapping[str, Array]) -> str:
    """Where things are, in cm."""
    places = {n.removesuffix("_position"): v[0] for n, v in signals.items() if n.endswith("position") and v.size <= 3}
    return "  ".join(f"{name} {' '.join(f'{100.0 * x:.0f}' for x in place)}" for name, place in places.items())


def teleoperate(task: Task, settings: Settings, count: int, seed: int, first: int = 0) -> Iterator[Episode]:
    """Episodes `first` to `count` - 1 of the stream `seed`, until the human quits."""
    env = make_env(task, 1, seed)
    try:
        cockpit = TeleopSession(task, env, settings)
        try:
            for number in range(first, count):
                verdict, moments = REDO, list[Moment]()
                while verdict == REDO:
                    verdict, moments = _steered(cockpit, number)
                if verdict == QUIT:
                    return
                yield _judged(Episode.of(number, moments), verdict)
        finally:
            cockpit.close()
    finally:
        env.close()


def _steered(cockpit: TeleopSession, number: int) -> tuple[str, list[Moment]]:
    """One attempt: the verdict on it, and what happened. Who ends it early without a movement has to go on."""
    task, env, moments = cockpit.task, cockpit.env, list[Moment]()
    env.reset([0], [number])
    cockpit.device.begin()
    while True:
        signals = env.observe()
        over = bool(moments) and (moments[-1].success or moments[-1].terminated or len(moments) >= task.episode_steps)
        said = cockpit.turn(signals, _line(task, number, moments, over))
        if said.verdict in (QUIT, REDO) or (said.verdict and moments):
            return said.verdict, moments
        if over or not (moments or said.active):
            continue
        commands = cockpit.hand.commands(signals, said)
        moments.append(Moment.of(task, 0, signals, commands, env.step(commands)))


def _line(task: Task, number: int, moments: Sequence[Moment], over: bool) -> str:
    state = "" if moments else "begins with your first movement"
    if over:
        ended = "success" if moments[-1].success else "lost" if moments[-1].terminated else "out of time"
        state = f"{ended.upper()}: {KEEP}, {SUCCESS}, {FAILURE} or {REDO}?"
    return f"episode {number}  {len(moments) / task.rate_hz:4.1f} s  {state}"


def _judged(episode: Episode, verdict: str) -> Episode:
    """With success as the human saw it; `keep` leaves it to the task."""
    if verdict == SUCCESS:
        episode.success[-1] = True
    elif verdict == FAILURE:
        episode.success[:] = False
    return episode


class Human:
    """A human who watches one scene and takes over by moving, for `hold` s beyond the last movement."""

    advises = False

    def __init__(self, cockpit: TeleopSession, hold: float) -> None:
        self.cockpit, self.hold = cockpit, max(1, round(hold * cockpit.task.rate_hz))
        self._left = self._steps = 0

    @classmethod
    def open(cls, task: Task, settings: Settings, hold: float, env: Env) -> Self:
        """At that scene; TeleopError when the device is not there."""
        return cls(TeleopSession(task, env, settings), hold)

    def decide(
        self, signals: Mapping[str, Array], wanted: Array, begun: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], Array]:
        if begun[0]:
            self._left = self._steps = 0
            self.cockpit.device.begin()
        self._steps += 1
        task, acting = self.cockpit.task, "YOU" if self._left else "policy"
        said = self.cockpit.turn(signals, f"{self._steps / task.rate_hz:4.1f} s  {acting} in control")
        if said.verdict == QUIT:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: training leaves a checkpoint
        self._left = self.hold if said.active else max(0, self._left - 1)
        told = action_of(task.commands, self.cockpit.hand.commands(signals, said))
        taken = np.array([self._left > 0])
        return taken, np.where(taken[:, None], told, np.nan).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {}  # what a human will do is known to nobody

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A human goes on as he likes."""

    def close(self) -> None:
        self.cockpit.close()
