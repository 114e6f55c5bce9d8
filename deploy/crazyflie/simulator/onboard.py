"""A policy file as the on-board controller: what the firmware calls out of tree (stabilizer.controller = 6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from deploy.crazyflie.platform import platform
from deploy.crazyflie.simulator.sensed import Sensed
from deploy.crazyflie.simulator.setpoints import Setpoint
from deploy.loop import Policy
from deploy.policy_file import PolicyFile, PolicyFileError
from sim.registry import load
from sim.spec import ANY_ROBOT

if TYPE_CHECKING:
    from sim.robots.quadrotors import Quadrotor

Thrusts = tuple[float, float, float, float]  # N, per rotor
OUT_OF_TREE = 6  # the value of stabilizer.controller
SIGNALS = ("position", "rotation", "linear_velocity", "angular_velocity", "target_position", "target_velocity")


def calls_per_step(policy: PolicyFile, rate_hz: float) -> int:
    """How many calls at `rate_hz` make one step of the policy. ValueError when its contract is not a Crazyflie's."""
    unknown = [s.name for s in policy.inputs if s.name not in SIGNALS]
    if unknown:
        raise ValueError(f"{policy.path} needs {', '.join(unknown)}; a Crazyflie senses: {', '.join(SIGNALS)}")
    if [(s.name, s.shape) for s in policy.outputs] != [("motor_command", (4,))]:
        raise ValueError(f"{policy.path} gives {', '.join(s.name for s in policy.outputs)}, not motor_command")
    every = max(1, round(rate_hz / policy.rate_hz))
    if abs(every * policy.rate_hz - rate_hz) > 1e-6 * rate_hz:
        raise ValueError(f"{policy.path} runs at {policy.rate_hz:g} Hz, which does not divide {rate_hz:g} Hz")
    return every


def late_s(policy: PolicyFile) -> float:
    """How long its commands take on board, in s: something only in a task of its own.

    The whole period of one that is too slow with float32 weights, or has no C: it may still be tried here.
    """
    from deploy.codegen.onnx_graph import GraphError
    from deploy.codegen.source import Source
    from deploy.crazyflie.budget import place
    from deploy.mcu.budget import BudgetError

    try:
        return place(policy, Source(policy, policy.content())).late_s
    except (BudgetError, GraphError):
        return 1.0 / policy.rate_hz


def emulated(policy: PolicyFile) -> Policy:
    """The same C on an emulated STM32F405, asked over its serial line."""
    from deploy.hil import connect

    return connect(policy, "emulated")[0]


def from_file(policy: PolicyFile) -> Policy:
    """The file itself, by onnxruntime."""
    return policy


# What computes the policy's step: not finite where there is none.
RUNTIMES: dict[str, str] = {
    "file": "deploy.crazyflie.simulator.onboard:from_file",
    "c": "deploy.runtimes:CompiledPolicy",
    "chip": "deploy.crazyflie.simulator.onboard:emulated",
}


class Onboard:
    """Runs a policy at its own rate for set points that name a place."""

    def __init__(self, path: str, robot: Quadrotor, rate_hz: float, runtime: str = "file") -> None:
        """`rate_hz`: how often `update` is called. ValueError when the policy does not fit the vehicle."""
        make: Callable[[PolicyFile], Policy] = load("runtime", runtime, RUNTIMES)
        policy = PolicyFile.load(path)
        if policy.robot not in (robot.name, ANY_ROBOT):
            raise ValueError(f"{path} is for the robot {policy.robot!r}, the vehicle is {robot.name!r}")
        self.most = platform(robot.name).most  # N per rotor
        self.curve = robot.thrust_curve if policy.robot == robot.name else (0.0, 0.0, self.most)
        self.duration = 0.0  # us of its last step in the stabilizer's task: the simulated vehicle has time for that
        self.command = [0.0] * 4
        self.every = calls_per_step(policy, rate_hz)
        self.late = math.ceil(late_s(policy) * rate_hz)  # calls until its commands come
        self.runtime = make(policy)
        self.stop()

    def stop(self) -> None:
        """Begin anew at the next `update`."""
        self.runtime.reset(1)
        self._step = 0
        self._coming: list[tuple[int, Thrusts | None]] = []  # at which call: what it asks for
        self._thrusts: Thrusts | None = (0.0, 0.0, 0.0, 0.0)
        self.answered = False  # what `update` says is what it asked for since it began

    def update(self, setpoint: Setpoint, sensed: Sensed) -> Thrusts | None:
        """The thrust in N that it wants of every rotor, by the airframe's curve as in the app; None when it fails."""
        if self._step % self.every == 0:
            self._coming.append((self._step + self.late, self._asked(setpoint, sensed)))
        while self._coming and self._coming[0][0] <= self._step:
            (_, self._thrusts), self.answered = self._coming.pop(0), True
        self._step += 1
        return self._thrusts

    def _asked(self, setpoint: Setpoint, sensed: Sensed) -> Thrusts | None:
        signals = {
            "position": sensed.position,
            "rotation": sensed.rotation,
            "linear_velocity": sensed.velocity,
            "angular_velocity": sensed.rate,
            "target_position": setpoint.position,
            "target_velocity": setpoint.velocity,
        }
        try:
            command = self.runtime.step({name: np.array([v], np.float32) for name, v in signals.items()})
        except (PolicyFileError, OSError):
            return None
        values = command["motor_command"][0]
        if not np.isfinite(values).all():
            return None
        c0, c1, c2 = self.curve
        self.command = np.clip(values, 0.0, 1.0).tolist()
        a, b, c, d = (c0 + (c1 + c2 * u) * u for u in self.command)
        return a, b, c, d
