"""A load on a rope under each vehicle: a point mass, and a rope that pulls and never pushes.

The rope is tied to the centre of mass, so it turns nobody. It is a damped spring that gives by `STRETCH` of its length
under the load at rest; the load feels gravity and the rope, no air. Vehicle and load are stepped in turns: over each
control step the load follows where the vehicle went, and the mean pull of that step acts on the vehicle in the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.randomize import Array
from sim.robots.quadrotors import GRAVITY

STRETCH = 0.03  # of the rope's length
DAMPING = 0.5  # of what would just not swing
STEPS = 8  # within a control step


class Slung:
    """The loads of `num` vehicles, of `share` of each one's mass, on ropes of `length` m."""

    def __init__(self, share: float, length: float, num: int, dt: float) -> None:
        self.share, self.length, self.dt = share, length, dt
        self.mass = np.zeros((num, 1))  # kg
        self.tied = np.zeros((num, 3))  # m, where the vehicle was
        self.place, self.velocity = np.zeros((2, num, 3))  # m, m/s
        self.own = np.zeros((num, 3), np.float32)  # N, what else pushes the vehicle

    def begin(self, rows: Any, mass: Array, position: Array, velocity: Array, force: Array) -> Array:
        """Hang at rest under vehicles of `mass` kg, which are also pushed by `force` N; the force on each, N."""
        self.mass[rows], self.own[rows] = self.share * mass, force
        self.tied[rows], self.velocity[rows] = position, velocity
        down = np.array([0.0, 0.0, 1.0])
        self.place[rows] = position - (1.0 + STRETCH) * self.length * down
        return np.asarray(self.own[rows] - GRAVITY * self.mass[rows] * down, np.float32)

    def pull(self, position: Array) -> Array:
        """Let the loads follow vehicles that are at `position` (num, 3) now; the force (num, 3) on each vehicle, N."""
        stiffness = GRAVITY / (STRETCH * self.length)  # per kg of load
        damping = 2.0 * DAMPING * np.sqrt(stiffness)
        h, speed = self.dt / STEPS, (position - self.tied) / self.dt
        mean = np.zeros_like(self.place)
        for step in range(STEPS):
            apart = self.place - (self.tied + (step + 1) * h * speed)
            distance = np.maximum(np.linalg.norm(apart, axis=1, keepdims=True), 1e-6)
            along = apart / distance
            opening = ((self.velocity - speed) * along).sum(axis=1, keepdims=True)
            tension = np.maximum(stiffness * (distance - self.length) + damping * opening, 0.0)
            tension = np.where(distance > self.length, tension, 0.0)  # m/s^2
            self.velocity -= h * (tension * along + [0.0, 0.0, GRAVITY])
            self.place += h * self.velocity
            mean += tension * along / STEPS
        self.tied = np.array(position, np.float64)
        return np.asarray(self.own + self.mass * mean, np.float32)
