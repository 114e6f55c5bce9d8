"""Where a quadrotor is while some of its sensors are lost: what is measured, and the rest worked out from it.

A lost position is the integral of the velocity, a lost velocity the slope of the position, a lost body rate that of the
attitude. Where position and velocity are both lost, nothing tells how it moves: it is then flown level with a little
less thrust than it hovered with (`Fallback`), and this says where that should have brought it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Double = NDArray[np.float64]
Bools = NDArray[np.bool_]

SENSED = ("position", "rotation", "linear_velocity", "angular_velocity")
GRAVITY = 9.81  # m/s^2
ROTOR_LAG = 0.1  # s, between those of a racer (0.03) and of a Crazyflie (0.15)
SLOPE_TIME = 0.03  # s over which the slope of the position is averaged


def carries(commands: Double, climb: Double, upright: Double, dt: float) -> Double:
    """The mean square of the motor commands (n,) that carries the weight: thrust grows with the square of the command.

    Over the last control steps: commands (steps, n, 4), velocity upwards (steps, n) in m/s, cosine of the tilt
    (steps, n).
    """
    steps, blend = len(commands), 1.0 - np.exp(-dt / ROTOR_LAG)
    rotors, power = commands[0], np.zeros(commands.shape[:2])
    for k in range(steps):
        rotors = rotors + blend * (commands[k] - rotors)
        power[k] = (rotors**2).mean(axis=1)
    half = steps // 2  # by then the rotors' unknown speed at the beginning is forgotten
    seconds = max(steps - 1 - half, 1) * dt
    lift = 1.0 + (climb[-1] - climb[half]) / (GRAVITY * seconds)  # mean thrust upwards over weight
    square: Double = np.maximum((power * upright)[half:].mean(axis=0) / np.maximum(lift, 0.2), 1e-3)
    return square


class DeadReckoning:
    """The state of `n` quadrotors from the moment on at which something was lost."""

    def __init__(self, n: int, rate_hz: float) -> None:
        self.dt, self.blend = 1.0 / rate_hz, 1.0 - np.exp(-1.0 / (rate_hz * SLOPE_TIME))
        self.state: dict[str, Double] = {}
        self._mean = np.zeros((n, 3))  # rad/s, over the last step
        self.blind = np.zeros(n, bool)  # neither position nor velocity is measured

    def begin(self, signals: Mapping[str, Any], which: Bools) -> None:
        """Robots `which` (n,) are where `signals` (n, k) last said."""
        for name in SENSED:
            seen = np.array(signals[name], np.float64)
            self.state[name] = np.where(which[:, None], seen, self.state.get(name, seen))

    def step(self, signals: Mapping[str, Any], sound: Mapping[str, Bools], lift: Double) -> dict[str, Double]:
        """The state now (n, k), by name. `sound` (n,): whose signals are measured; `lift` (n,): thrust over weight."""
        s, before = self.state, dict(self.state)
        seen = {name: np.asarray(signals[name], np.float64) for name in SENSED}
        ok = {name: sound[name][:, None] if name in sound else np.ones((len(lift), 1), bool) for name in SENSED}
        self.blind = ~(ok["position"] | ok["linear_velocity"])[:, 0]
        s["rotation"] = np.where(ok["rotation"], seen["rotation"], s["rotation"])
        fallen = s["linear_velocity"].copy()
        fallen[:, 2] += self.dt * GRAVITY * (lift - 1.0)
        slope = (seen["position"] - before["position"]) / self.dt
        followed = s["linear_velocity"] + self.blend * (slope - s["linear_velocity"])
        guess = np.where(ok["position"], followed, fallen)
        s["linear_velocity"] = np.where(ok["linear_velocity"], seen["linear_velocity"], guess)
        moved = s["position"] + self.dt * s["linear_velocity"]
        s["position"] = np.where(ok["position"], seen["position"], moved)
        s["angular_velocity"] = np.where(ok["angular_velocity"], seen["angular_velocity"], self._rate(before))
        return dict(s)

    def _rate(self, before: Mapping[str, Double]) -> Double:
        """The body rate (n, 3) that turned the attitude before into the present one."""
        turn, last = (rotation.reshape(-1, 3, 3) for rotation in (self.state["rotation"], before["rotation"]))
        step = np.einsum("nji,njk->nik", last, turn)
        apart = step - step.transpose(0, 2, 1)
        mean = 0.5 / self.dt * np.stack([apart[:, 2, 1], apart[:, 0, 2], apart[:, 1, 0]], axis=1)
        earlier, self._mean = self._mean, mean
        rate: Double = 1.5 * mean - 0.5 * earlier  # the mean is half a step old: a slow rotor forgives no delay
        return rate
