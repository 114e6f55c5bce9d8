"""The vehicle's own controllers, in our axes: position -> velocity -> attitude -> body rates -> rotors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.robots.quadrotors import GRAVITY, Quadrotor

Array = NDArray[np.float64]
UP = np.array([0.0, 0.0, 1.0])

PLACE, SPEED, DRIFT = 1.0, 2.5, 0.6  # gains, 1/s, 1/s, 1/s^2: of position, of velocity, of its integral
FASTEST = np.array([3.0, 3.0, 1.0])  # m/s that a position asks for
LEAN = 0.6  # of the vertical acceleration that horizontal ones may have: 31 degrees
ATTITUDE = np.array([6.5, 6.5, 2.8])  # 1/s
MOST_RATE = np.array([3.8, 3.8, 2.5])  # rad/s that an attitude asks for
TRIM = np.array([4.0, 4.0, 1.0])  # 1/s^2, integral of the rate loop; what it may add to the acceleration, rad/s^2
MOST_TRIM = np.array([8.0, 8.0, 2.0])


@dataclass
class State:
    """Of the vehicle: m, m/s in the world; rotation (3, 3) body to world; rad/s along its own axes."""

    position: Array
    velocity: Array
    rotation: Array
    rates: Array


class Controller:
    """Of one vehicle. Each call of `rotors` is one period `dt` (s)."""

    def __init__(self, robot: Quadrotor, dt: float, gains: tuple[float, float, float], hover: float) -> None:
        """`gains` (1/s): angular acceleration per error in body rate. `hover`: the share of the thrust it hangs at."""
        self.robot, self.dt, self.gains, self.hover = robot, dt, np.array(gains), hover
        self._mix = np.linalg.inv(robot.mixer)  # thrust N and torques N m -> rotors N
        self.restart()

    def restart(self) -> None:
        """Forget the integrals."""
        self._drift, self._trim = np.zeros(3), np.zeros(3)

    def to_place(self, state: State, place: Array, heading: float) -> tuple[Array, float]:
        """Body rates (3,) and the share of the thrust towards a place (3,) m, its nose at `heading` rad from x."""
        wanted = np.clip(PLACE * (place - state.position), -FASTEST, FASTEST)
        return self.to_velocity(state, wanted, heading)

    def to_velocity(self, state: State, velocity: Array, heading: float) -> tuple[Array, float]:
        """The same for a velocity (3,) m/s."""
        error = velocity - state.velocity
        self._drift = np.clip(self._drift + DRIFT * error * self.dt, -2.0, 2.0)
        push = SPEED * error + self._drift + GRAVITY * UP
        push[2] = max(push[2], 0.3 * GRAVITY)
        sideways = float(np.hypot(push[0], push[1]))
        push[:2] *= min(1.0, LEAN * push[2] / max(sideways, 1e-9))
        up = push / np.linalg.norm(push)
        left = np.cross(up, [np.cos(heading), np.sin(heading), 0.0])
        left /= np.linalg.norm(left)
        wanted = np.stack([np.cross(left, up), left, up], axis=1)
        apart = wanted.T @ state.rotation
        error = 0.5 * np.array(
            [apart[1, 2] - apart[2, 1], apart[2, 0] - apart[0, 2], apart[0, 1] - apart[1, 0]]
        )  # minus the rotation vector, where small
        rates = np.clip(ATTITUDE * error, -MOST_RATE, MOST_RATE)
        return rates, self.hover * float(push @ state.rotation[:, 2]) / GRAVITY

    def rotors(self, state: State, rates: Array, share: float) -> Array:
        """Rotor commands (4,) for body rates (3,) rad/s and a share of the thrust."""
        error = rates - state.rates
        self._trim = np.clip(self._trim + TRIM * error * self.dt, -MOST_TRIM, MOST_TRIM)
        torque = np.array(self.robot.inertia) * (self.gains * error + self._trim)
        thrust = min(max(share, 0.0), 1.0) / self.hover * self.robot.mass * GRAVITY
        wanted = self._mix @ np.array([thrust, *torque])
        c0, c1, c2 = self.robot.thrust_curve
        low, high = self.robot.thrust(0.0), self.robot.thrust(1.0)
        wanted = np.clip(wanted, low, high) - c0
        root = np.sqrt(np.maximum(c1 * c1 + 4.0 * c2 * wanted, 0.0))
        share_of: Array = (root - c1) / (2.0 * c2) if c2 else wanted / c1
        return np.asarray(np.clip(share_of, 0.0, 1.0))
