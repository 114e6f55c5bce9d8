"""The quadrotor's equations of motion in float64, integrated finely: what every engine is compared with.

Written from the equations alone and sharing no code with the engines: classical Runge-Kutta on (position, quaternion,
velocity, body rate), with the rotor lag solved exactly inside each control step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import Quadrotor

Array = NDArray[np.float64]
GRAVITY = np.array([0.0, 0.0, -9.81])


def rotation(quaternion: Array) -> Array:
    """Rotation matrices (n, 3, 3), body to world, of quaternions (n, 4) in the order w, x, y, z."""
    w, x, y, z = (quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), 2, 0)


def _turn(quaternion: Array, rate: Array) -> Array:
    """The time derivative 1/2 q * (0, rate) of a quaternion under a body rate."""
    w, v = quaternion[:, :1], quaternion[:, 1:]
    scalar = -(v * rate).sum(1, keepdims=True)
    return 0.5 * np.concatenate([scalar, w * rate + np.cross(v, rate)], axis=1)


class Reference:
    """`num` vehicles, each with its own parameters (n, k), in float64. The attributes are the state's engine names."""

    def __init__(self, robot: Quadrotor, num: int, dt: float, step: float = 5e-4) -> None:
        self.dt = dt
        self.count = max(1, round(dt / step))
        self.p = {k: np.tile(v.astype(np.float64), (num, 1)) for k, v in robot.parameters().items()}
        self.position = np.zeros((num, 3))
        self.quaternion = np.tile([1.0, 0.0, 0.0, 0.0], (num, 1))
        self.linear_velocity = np.zeros((num, 3))
        self.angular_velocity = np.zeros((num, 3))
        self.rotor_speed = np.zeros((num, 4))

    def set_parameters(self, parameters: Mapping[str, Array]) -> None:
        """Replace parameters of all vehicles, name -> (n, k)."""
        for name, value in parameters.items():
            self.p[name] = np.broadcast_to(np.asarray(value, np.float64), self.p[name].shape).copy()

    def reset(self, state: Mapping[str, Array]) -> None:
        """Set the state of all vehicles, name -> (n, k)."""
        for name, value in state.items():
            setattr(self, name, np.array(value, np.float64))
        self.quaternion /= np.linalg.norm(self.quaternion, axis=1, keepdims=True)

    def _rotors(self, command: Array, time: float) -> Array:
        """Rotor fractions `time` seconds into the control step that started at `rotor_speed`."""
        p = self.p
        up = command > self.rotor_speed
        tau = np.where(up, p["rise_time"], p["fall_time"]) * p["rotor_lag"]
        return command + (self.rotor_speed - command) * np.exp(-time / tau)

    def _derivative(self, y: tuple[Array, ...], rotor: Array, cushion: Array) -> tuple[Array, ...]:
        p = self.p
        _, quaternion, velocity, rate = y
        turn = rotation(quaternion)
        c0, c1, c2 = (p["thrust_curve"][:, k : k + 1] for k in range(3))
        thrust = p["thrust_scale"] * (c0 + c1 * rotor + c2 * rotor**2) * cushion
        arm_x, arm_y = p["rotor_position"][:, 0::2], p["rotor_position"][:, 1::2]
        yaw = (p["rotor_direction"] * p["torque_ratio"] * thrust).sum(1)
        torque = np.stack([(arm_y * thrust).sum(1), -(arm_x * thrust).sum(1), yaw], axis=1) + p["torque"]
        air = np.einsum("nji,nj->ni", turn, velocity - p["wind"])
        body_force = -p["drag"] * air
        body_force[:, 2] += thrust.sum(1)
        acceleration = (np.einsum("nij,nj->ni", turn, body_force) + p["force"]) / p["mass"] + GRAVITY
        spin = (torque - np.cross(rate, p["inertia"] * rate)) / p["inertia"]
        return velocity, _turn(quaternion, rate), acceleration, spin

    def step(self, command: Array) -> None:
        """Advance by dt under `command` (n, 4)."""
        command = np.clip(np.asarray(command, np.float64), 0.0, 1.0)
        radius = self.p["propeller_radius"]
        height = np.maximum(self.position[:, 2:3], radius / 4)
        cushion = 1.0 + self.p["ground_effect"] * (radius / (4 * height)) ** 2
        h = self.dt / self.count
        y: tuple[Array, ...] = (self.position, self.quaternion, self.linear_velocity, self.angular_velocity)
        for k in range(self.count):
            at = [self._rotors(command, (k + part) * h) for part in (0.0, 0.5, 1.0)]
            k1 = self._derivative(y, at[0], cushion)
            k2 = self._derivative(tuple(a + h / 2 * b for a, b in zip(y, k1, strict=True)), at[1], cushion)
            k3 = self._derivative(tuple(a + h / 2 * b for a, b in zip(y, k2, strict=True)), at[1], cushion)
            k4 = self._derivative(tuple(a + h * b for a, b in zip(y, k3, strict=True)), at[2], cushion)
            y = tuple(
                a + h / 6 * (b1 + 2 * b2 + 2 * b3 + b4) for a, b1, b2, b3, b4 in zip(y, k1, k2, k3, k4, strict=True)
            )
        self.rotor_speed = self._rotors(command, self.dt)
        self.position, self.quaternion, self.linear_velocity, self.angular_velocity = y
        self.quaternion = self.quaternion / np.linalg.norm(self.quaternion, axis=1, keepdims=True)
