"""The pilot of last resort for quadrotors: `quad_any`, which flies any of them, and what it needs when sensors fail.

It has watched the last control steps (their signals and commands are played to it as it takes over), and so knows the
vehicle. What is not measured is worked out (`dead_reckoning.py`). Without position and velocity it keeps level, with
slightly less thrust than what carried the weight before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile
from deploy.safety.dead_reckoning import SENSED, DeadReckoning, carries
from sim.spec import Group

Array = NDArray[Any]
Bools = NDArray[np.bool_]

COMMAND = "motor_command"
POLICY, RATE_HZ = "quad_any", 100.0
MEMORY, WATCHED = 128, 64  # control steps that tell what carries the weight; that it has watched as it takes over
BLIND_DESCENT, BLIND_LIFT = 0.5, 0.95  # without position and velocity: m/s, and thrust over weight until it sinks so


class Fallback:
    """Flies `n` quadrotors at the rate of the control loop, as near to its own 100 Hz as whole steps allow."""

    def __init__(self, rate_hz: float) -> None:
        self.rate_hz, self.policy = rate_hz, PolicyFile.load(POLICY)
        self.reset(1)

    @staticmethod
    def fits(signals: Group, commands: Group) -> bool:
        """Whether it can fly a robot with these: a quadrotor by its four motors, with its state among the signals."""
        return {(s.name, s.shape) for s in commands} == {(COMMAND, (4,))} and {s.name for s in signals} >= {*SENSED}

    def reset(self, n: int) -> None:
        """Begin a flight of `n` robots."""
        self.n = n
        self.reckoning = DeadReckoning(n, self.rate_hz)
        # Of the last control steps: the motor commands (n, 4), and the signals that led to them.
        self._past: deque[tuple[Array, Mapping[str, Array]]] = deque(maxlen=MEMORY)
        self._hover, self._lift = np.ones(n), np.ones(n)  # mean square of hovering commands; thrust over weight
        self._told, self._due = np.zeros((n, 4), np.float32), 0.0  # s until it is asked again
        if self.policy.n != n:
            self.policy.reset(n)

    def watch(self, commands: Mapping[str, Array], signals: Mapping[str, Array]) -> None:
        """What is sent (n, 4) and was seen (n, k) at every control step. The arrays must not change any more."""
        self._past.append((commands[COMMAND], signals))

    def take_over(self, signals: Mapping[str, Array], which: Bools) -> None:
        """Robots `which` (n,), last seen there (n, k), are to be flown from now on."""
        past = [(sent, seen) for sent, seen in self._past if seen.keys() >= {*SENSED}]
        past = past or [(np.zeros((self.n, 4), np.float32), signals)]
        sent = np.stack([sent for sent, _ in past]).astype(np.float64)
        climb = np.stack([seen["linear_velocity"][:, 2] for _, seen in past])
        upright = np.stack([seen["rotation"][:, 8] for _, seen in past])
        self._hover = np.where(which, carries(sent, climb, upright, 1.0 / self.rate_hz), self._hover)
        self.reckoning.begin(signals, which)
        going = self.policy.states()
        self.policy.reset(self.n)
        for told, seen in past[: -WATCHED - 1 : -1][:: max(1, round(self.rate_hz / RATE_HZ))][::-1]:
            aim = {"target_position": seen["position"], "target_velocity": np.zeros((self.n, 3), np.float32)}
            self.policy.step({**seen, **aim})
            self.policy.put({"history": 2.0 * told - 1.0})
        self.policy.put({k: np.where(which[:, None], v, going[k]) for k, v in self.policy.states().items()})

    def state(self, signals: Mapping[str, Array], broken: Mapping[str, Bools], ground: float) -> dict[str, Array]:
        """Where the robots are (n, k); `broken` (n,): whose signals are not measured. `ground`: its height in m."""
        found = self.reckoning.step(signals, {name: ~which for name, which in broken.items()}, self._lift)
        # Blind, it sinks, then keeps its speed, and sinks again where it should have met the ground.
        slow = (found["linear_velocity"][:, 2] > -BLIND_DESCENT) | (found["position"][:, 2] < ground)
        self._lift = np.where(self.reckoning.blind & slow, BLIND_LIFT, 1.0)
        return found

    def command(self, state: Mapping[str, Array], goal: Array, velocity: Array) -> Array:
        """Motor commands (n, 4) towards the set points: position and velocity (n, 3), m and m/s, world."""
        self._due -= 1.0 / self.rate_hz
        if self._due > 0.5 / self.rate_hz:
            return self._told
        self._due = max(self._due + 1.0 / RATE_HZ, 0.0)
        blind = self.reckoning.blind[:, None]
        told = {**state, "target_position": goal, "target_velocity": velocity}
        still = {"position": goal, "linear_velocity": np.zeros_like(goal), "target_velocity": np.zeros_like(goal)}
        told |= {name: np.where(blind, value, told[name]) for name, value in still.items()}
        wanted = self.policy.step({name: np.clip(np.nan_to_num(value), -1e6, 1e6) for name, value in told.items()})
        level = self._level(wanted[COMMAND], state["rotation"][:, 8])
        self._told = np.where(blind, level, wanted[COMMAND])
        self.policy.put({"history": 2.0 * self._told - 1.0})
        return self._told

    def _level(self, command: Array, upright: Array) -> Array:
        """The same torques (n, 4), with a thrust that is `lift` times the weight."""
        square = np.square(command, dtype=np.float64)
        wanted = self._hover * self._lift / np.clip(upright, 0.5, 1.0)
        made: Array = np.sqrt(np.clip(square + (wanted - square.mean(axis=1))[:, None], 0.0, 1.0)).astype(np.float32)
        return made
