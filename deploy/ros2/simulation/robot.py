"""The world of one simulated robot on ROS 2: a task's robot in any physics engine, above a floor, or an arm's scene."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.cli import json_or_text
from deploy.drivers.tasks import task_for
from deploy.policy_file import PolicyFile
from deploy.ros2.simulation.game import Game
from deploy.ros2.simulation.pilot import Onboard
from deploy.ros2.simulation.scene import Scene
from deploy.safety.dead_reckoning import SENSED
from sim.engines import make as make_engine
from sim.env import carried_out, game_of, with_engine
from sim.registry import names_from
from sim.robots import ROBOTS
from sim.robots.quadrotors import GRAVITY
from sim.spec import Group, Signal, pack
from sim.tasks import EngineTask, has_own_world, task_class
from sim.tasks import make as make_task
from sim.tasks import targets as motion

Values = dict[str, NDArray[Any]]  # (k,) by signal name
TASK, QUADROTOR, ENGINE = "quad_hover", "crazyflie", "flight"  # where none is named
LIE = math.cos(math.radians(60.0))  # a robot that leans further when it meets the floor stays as it is


def world(
    policy: str, task: str, robot: str, engine: str, rate_hz: float, seed: int, settings: str = ""
) -> World | Scene | Game:
    """The world of a task, or of the one that a policy file was made for, with its settings.

    `settings`: others of the task's, NAME=VALUE,NAME=VALUE. ValueError with the choices for an unknown task, robot or
    engine, and for settings that the task does not have.
    """
    file = PolicyFile.load(policy) if policy else None
    name, wanted = task or (file.task if file else TASK), parsed(settings)
    with names_from(policy, task) if file else nullcontext():
        choice = task_class(name).Config.__dataclass_fields__.get("robot")
        flies = choice is not None and choice.default in ROBOTS
    body = {"robot": robot} if robot else {"robot": QUADROTOR} if flies else {}
    if file:
        made = task_for(file, task or None, **body, transfer=True, settings=wanted)
    else:
        made = make_task(name, **body, **wanted)
    if not has_own_world(made):
        return World(carried_out(made), engine or ENGINE, rate_hz, seed)
    made = with_engine(made, engine)
    return Scene(made, seed) if (game := game_of(made)) is None else Game(game, seed)


def parsed(settings: str) -> dict[str, Any]:
    """Of NAME=VALUE,NAME=VALUE; ValueError."""
    found: dict[str, Any] = {}
    for part in filter(None, settings.split(",")):
        name, equals, value = (text.strip() for text in part.partition("="))
        if not name.isidentifier() or not equals or name in found:
            raise ValueError(f"settings {settings!r} are not like opponent=slow,steps=200")
        found[name] = json_or_text(value)
    return found


class World:
    """The robot starts on the floor below the task's first target, which waits until the robot flies."""

    battery = True
    over = ""  # it goes on
    view, lens = math.nan, ""  # it has no camera

    def __init__(self, task: EngineTask, engine: str, rate_hz: float, seed: int) -> None:
        """ValueError with the choices for an unknown engine."""
        self.task, self.robot = task, task.robot.name
        told = Signal("target_velocity", (3,), "m/s", "world", max_age=1.0)
        felt = Signal("linear_acceleration", (3,), "m/s^2", "body")
        self.signals: Group = tuple({s.name: s for s in (told, *self.task.policy, felt)}.values())
        self.commands: Group = self.task.commands
        self.dt = 1.0 / rate_hz
        self.engine = make_engine(engine, self.task.robot, 1, self.dt)
        self.pilot = Onboard(self.signals, rate_hz) if Onboard.fits(self.signals, self.commands) else None
        self._motion = self.task.reset(np.random.default_rng(seed), 1)["motion"]
        self.reset()
        self.engine.step(np.zeros((1, sum(c.size for c in self.commands)), np.float32))  # compiles
        self.reset()

    def reset(self) -> None:
        """Back to the start, at rest."""
        self.time = 0.0  # s since the beginning
        self._flown = 0.0  # s on the target's path
        self._acceleration = np.zeros(3, np.float32)
        self.engine.reset(
            None, {"position": self._targets()["target_position"] * np.array([1.0, 1.0, 0.0], np.float32)}
        )

    def _targets(self) -> dict[str, Any]:
        time = np.full(1, self._flown, np.float32)
        return {
            "target_velocity": motion.velocity_at(self._motion, time),
            **self.task.reference(self._motion, time),
        }

    def step(self, command: NDArray[Any], flying: bool) -> None:
        """Advance by one period under a command (k,); the target moves on only while `flying`."""
        if self.pilot:
            self.pilot.see({name: self.engine.read(name)[0] for name in SENSED}, command)
        before = self.engine.read("linear_velocity")[0]
        self.engine.step(np.asarray(command, np.float32)[None])
        self._meet_floor()
        self._acceleration = (self.engine.read("linear_velocity")[0] - before) / np.float32(self.dt)
        self.time += self.dt
        self._flown += self.dt * flying

    def _meet_floor(self) -> None:
        position, velocity = self.engine.read("position"), self.engine.read("linear_velocity")
        if position[0, 2] > 0.0 or velocity[0, 2] > 0.0:
            return
        position[0, 2] = 0.0
        quaternion = self.engine.read("quaternion")
        if self.engine.read("rotation")[0, 8] > LIE:  # it stands: only its heading remains
            heading = math.hypot(quaternion[0, 0], quaternion[0, 3])
            quaternion[0] = quaternion[0, 0] / heading, 0.0, 0.0, quaternion[0, 3] / heading
        rotor = self.engine.read("rotor_speed")
        self.engine.reset(None, {"position": position, "quaternion": quaternion, "rotor_speed": rotor})

    def read(self) -> Values:
        """What sensors and mission say now, without noise; also linear_acceleration, as an IMU has it."""
        targets = self._targets()
        values = {
            s.name: np.asarray(targets[s.name] if s.name in targets else self.engine.read(s.name))[0]
            for s in self.signals
            if s.name != "linear_acceleration"
        }
        turn = values["rotation"].reshape(3, 3)
        values["linear_acceleration"] = turn.T @ (self._acceleration + np.array([0.0, 0.0, GRAVITY]))
        return values

    def safe(self) -> NDArray[Any]:
        """What the motors get (k,) while they may not turn."""
        return pack(self.commands, {c.name: np.full(c.shape, min(max(0.0, c.low), c.high)) for c in self.commands})

    def scores(self) -> dict[str, float]:
        """None: it has no end."""
        return {}

    def status(self) -> dict[str, Any]:
        """How the task goes, for the diagnostics."""
        return {}

    def close(self) -> None:
        """Nothing is held."""
