"""A cascaded PID controller for quadrotors: the classical baseline, as gym-pybullet-drones ships one. Batched numpy.

Position PID with feed-forward -> thrust vector -> attitude PD -> torque -> mixer -> inverse thrust curve -> command. On
top of the textbook, commands lead the rotors: their speeds are predicted from past commands, corrected by the measured
accelerations, and the command is the one that brings them to the wanted value within `Gains.rotor_response`. Without
that, a Crazyflie's 0.15 s rotor lag allows no fast loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import GRAVITY, Quadrotor

Double = NDArray[np.float64]


@dataclass(frozen=True)
class Gains:
    """Tuned for the Crazyflie at 100 Hz. They give accelerations, so that they carry over to other airframes."""

    position: tuple[float, float, float] = (27.0, 27.0, 29.0)  # 1/s^2
    velocity: tuple[float, float, float] = (8.7, 8.7, 7.6)  # 1/s
    integral: tuple[float, float, float] = (2.2, 2.2, 2.1)  # 1/s^3
    integral_limit: float = 1.5  # m/s^2, most that the integral may contribute
    integral_zone: float = 0.3  # m, further away it is held: anti-windup
    attitude: tuple[float, float, float] = (180.0, 180.0, 29.0)  # 1/s^2, per rad
    rate: tuple[float, float, float] = (19.0, 19.0, 5.3)  # 1/s
    rotor_response: float = 0.03  # s, in which the commands try to bring the rotors to their wanted speed
    correction: float = 0.11  # per step, of the rotors' predicted speeds towards those that explain the accelerations
    lead: float = 0.058  # s, by which the path's acceleration is taken ahead: how long the vehicle takes to follow
    tilt: float = 50.0  # degrees, largest wanted tilt


class CascadedPid:
    """Flies any number of equal quadrotors to moving targets; heading is held along world x.

    `preview` is the spacing in s of the points in "target_preview", if that signal is given.
    """

    def __init__(self, robot: Quadrotor, rate_hz: float, gains: Gains | None = None, preview: float = 0.1) -> None:
        if not rate_hz > 0.0:
            raise ValueError(f"CascadedPid needs rate_hz > 0, got {rate_hz}")
        self.robot, self.dt, self.preview = robot, 1.0 / rate_hz, preview
        self.gains = gains if gains is not None else Gains()
        self.inertia = np.array(robot.inertia)
        self.unmix = np.linalg.inv(robot.mixer)  # of thrust, roll, pitch and yaw torque
        lag = np.array([robot.rise_time, robot.fall_time])
        self.follow = 1.0 - np.exp(-self.dt / lag)
        self.reach = 1.0 - np.exp(-max(self.gains.rotor_response, self.dt) / lag)
        self.reset(0)

    def reset(self, n: int) -> None:
        """Forget the past; `n` vehicles follow, with rotors assumed at hover."""
        self.integral = np.zeros((n, 3))  # m/s^2
        self.rotor = np.full((n, 4), self.robot.hover_command)
        self.rotor_mean = self.rotor  # over the last step
        self.last: tuple[Double, Double, Double] | None = None  # velocity, body rate, target velocity
        self.correction = 1.0

    def act(self, signals: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
        """The "motor_command" (n, 4) for the measured and target signals (n, k), by name.

        Needs position, rotation, linear_velocity, angular_velocity and target_position; uses target_velocity and
        target_preview if they are there.
        """
        s = {name: np.asarray(value, np.float64) for name, value in signals.items()}
        n = len(s["position"])
        if len(self.rotor) != n:
            raise ValueError(f"reset({n}) comes before acting for {n} vehicles; it was reset for {len(self.rotor)}")
        turn = s["rotation"].reshape(n, 3, 3)
        self._observe(turn, s["linear_velocity"], s["angular_velocity"])
        wanted = self._acceleration(s)
        thrust = self.robot.mass * (turn[:, :, 2] * wanted).sum(1)
        torque = self._torque(turn, s["angular_velocity"], wanted)
        command = self._command(self._rotor_thrusts(thrust, torque))
        self.last = (s["linear_velocity"], s["angular_velocity"], s.get("target_velocity", np.zeros((n, 3))))
        return {"motor_command": command.astype(np.float32)}

    def reflex(self, signals: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
        """The same without memory: from "rotor_speed" (n, 4) instead of a prediction of it, and without integral."""
        self.reset(len(signals["position"]))
        self.rotor = np.clip(np.asarray(signals["rotor_speed"], np.float64), 0.0, 1.0)
        return self.act(signals)

    def motors(self, thrust: Double, torque: Double, rotor_speed: Any) -> Double:
        """Commands (n, 4) for thrusts (n,) in N and torques (n, 3) in N m, body axes, from rotor speeds (n, 4)."""
        self.rotor = np.clip(np.asarray(rotor_speed, np.float64), 0.0, 1.0)
        return self._command(self._rotor_thrusts(thrust, torque))

    def _acceleration(self, s: Mapping[str, Double]) -> Double:
        """The specific force (n, 3), world, that the rotors should exert: what remains is the attitude's problem."""
        g = self.gains
        velocity = s.get("target_velocity", np.zeros_like(s["position"]))
        error = s["target_position"] - s["position"]
        near = np.linalg.norm(error, axis=1, keepdims=True) < g.integral_zone
        self.integral = np.clip(
            self.integral + near * g.integral * error * self.dt, -g.integral_limit, g.integral_limit
        )
        wanted = g.position * error + g.velocity * (velocity - s["linear_velocity"]) + self.integral
        wanted += self._path_acceleration(s, velocity)
        wanted[:, 2] += GRAVITY
        # Upwards at least a little, and no further from the vertical than `tilt`.
        wanted[:, 2] = np.maximum(wanted[:, 2], 0.3 * GRAVITY)
        sideways = np.linalg.norm(wanted[:, :2], axis=1, keepdims=True)
        most = wanted[:, 2:] * np.tan(np.radians(g.tilt))
        wanted[:, :2] *= np.minimum(1.0, most / np.maximum(sideways, 1e-9))
        return wanted

    def _path_acceleration(self, s: Mapping[str, Double], velocity: Double) -> Double:
        """The target's acceleration (n, 3), `lead` seconds ahead where the preview shows it."""
        if "target_preview" in s:
            points = s["target_preview"].reshape(len(velocity), -1, 3)
            ahead = self.preview * np.arange(1, points.shape[1] + 1)
            # p(t + h) - p - v h = a h^2/2 + j h^3/6 + ...: as many derivatives as points.
            order = np.arange(2, 2 + len(ahead))
            basis = ahead[:, None] ** order / np.cumprod(np.arange(1.0, order[-1] + 1.0))[order - 1]
            rest = points - s["target_position"][:, None] - velocity[:, None] * ahead[:, None]
            derivatives = np.einsum("kp,npi->nki", np.linalg.inv(basis), rest)
            weight = self.gains.lead ** (order - 2) / np.cumprod(np.maximum(order - 2.0, 1.0))
            acceleration: Double = np.einsum("k,nki->ni", weight, derivatives)
            return acceleration
        return np.zeros_like(velocity) if self.last is None else (velocity - self.last[2]) / self.dt

    def _observe(self, turn: Double, velocity: Double, rate: Double) -> None:
        """Correct the predicted rotor speeds by what the vehicle did since the last step."""
        if self.last is None:
            return
        before, rate_before, _ = self.last
        force = self.robot.mass * ((velocity - before) / self.dt + (0.0, 0.0, GRAVITY))
        middle = 0.5 * (rate + rate_before)
        torque = self.inertia * (rate - rate_before) / self.dt + np.cross(middle, self.inertia * middle)
        wrench = np.concatenate([(turn[:, :, 2] * force).sum(1, keepdims=True), torque], axis=1)
        self.rotor = self.rotor + self.correction * (self._speed(wrench @ self.unmix.T) - self.rotor_mean)
        self.rotor = np.clip(self.rotor, 0.0, 1.0)
        self.correction = self.gains.correction

    def _speed(self, thrust: Double) -> Double:
        """The rotor speeds, as fractions, that give these thrusts in N: the inverse thrust curve."""
        c0, c1, c2 = self.robot.thrust_curve
        if c2 == 0.0:
            return np.clip((thrust - c0) / c1, 0.0, 1.0)
        return np.clip((np.sqrt(np.maximum(c1 * c1 + 4.0 * c2 * (thrust - c0), 0.0)) - c1) / (2.0 * c2), 0.0, 1.0)

    def _torque(self, turn: Double, rate: Double, wanted: Double) -> Double:
        """Torque (n, 3), body axes, that turns the thrust axis towards `wanted` and the nose towards world x."""
        up = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
        left = np.cross(up, [1.0, 0.0, 0.0])
        left /= np.linalg.norm(left, axis=1, keepdims=True)
        goal = np.stack([np.cross(left, up), left, up], axis=2)
        gap = np.einsum("nji,njk->nik", goal, turn)
        gap = gap - gap.transpose(0, 2, 1)
        error = -0.5 * np.stack([gap[:, 2, 1], gap[:, 0, 2], gap[:, 1, 0]], axis=1)
        spin = np.array(self.gains.attitude) * error - np.array(self.gains.rate) * rate
        torque: Double = self.inertia * spin + np.cross(rate, self.inertia * rate)
        return torque

    def _rotor_thrusts(self, thrust: Double, torque: Double) -> Double:
        """Thrusts (n, 4) in N that the rotors can reach in time: first roll and pitch, then the total, then yaw."""
        least = self._thrust(self.rotor * (1.0 - self.reach[1]))
        most = self._thrust(self.rotor + (1.0 - self.rotor) * self.reach[0])
        tilting = torque[:, :2] @ self.unmix[:, 1:3].T
        low = (least - tilting).max(1, keepdims=True)
        high = (most - tilting).min(1, keepdims=True)
        middle = 0.5 * (low + high)  # where roll and pitch suffer least when not even they can be had
        total = np.clip(thrust[:, None] / 4.0, np.where(low > high, middle, low), np.where(low > high, middle, high))
        base = np.clip(total + tilting, least, most)
        yawing = torque[:, 2:] @ self.unmix[:, 3:].T
        room = np.where(yawing > 0.0, most - base, base - least) / np.maximum(np.abs(yawing), 1e-12)
        thrusts: Double = base + np.clip(room.min(1, keepdims=True), 0.0, 1.0) * yawing
        return thrusts

    def _thrust(self, speed: Double) -> Double:
        c0, c1, c2 = self.robot.thrust_curve
        thrust: Double = c0 + c1 * speed + c2 * speed**2
        return thrust

    def _command(self, thrust: Double) -> Double:
        """Commands (n, 4), leading the rotors' lag; remembers where the rotors will be."""
        gap = self._speed(thrust) - self.rotor
        command: Double = np.clip(self.rotor + gap / np.where(gap > 0.0, self.reach[0], self.reach[1]), 0.0, 1.0)
        gap = command - self.rotor
        after = self.rotor + gap * np.where(gap > 0.0, self.follow[0], self.follow[1])
        self.rotor, self.rotor_mean = after, 0.5 * (self.rotor + after)
        return command
